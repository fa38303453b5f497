"""`tracebed check`: what is wrong with a trace."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from traces.program import Finding, Trace


@click.command("check", no_args_is_help=True)
@click.argument("trace", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(trace: Path, as_json: bool) -> int:
    """Find what is wrong with TRACE, and whether it can be replayed.

    Findings of a kind are shown together: how many there are, at which ranks, and the first; --json gives each.

    Exit status 0: it can be replayed, though there may be findings to know of; 1: it can't.

    \b
    Example:
      tracebed check resnet50.trace
    """
    from traces import archive
    from traces.checks import check, is_replayable
    from traces.checks.said import where

    loaded = archive.read(trace)
    findings = check(loaded)
    replayable = is_replayable(findings)
    if as_json:
        import msgspec

        each = [msgspec.to_builtins(finding) | {"where": where(loaded, finding)} for finding in findings]
        said = {"replayable": replayable, "findings": each}
        click.echo(msgspec.json.encode(said).decode())
        return 0 if replayable else 1

    if findings:
        _show(loaded, findings)
    click.echo(f"{trace}: " + ("can be replayed" if replayable else "can't be replayed"))
    return 0 if replayable else 1


def _show(trace: Trace, findings: Sequence[Finding]) -> None:
    """Two lines for all findings of a kind: how many, at which ranks; and the first of them."""
    from traces.checks.said import ranges, where

    alike: dict[tuple[str, str, bool], list[Finding]] = {}
    for finding in findings:
        alike.setdefault((finding.severity, finding.code, finding.replayable), []).append(finding)
    for (severity, code, is_right), found in alike.items():
        ranks = ranges({finding.rank for finding in found if finding.rank >= 0})
        of = f", rank {ranks}" if ranks else ""
        verdict = "replay is still right" if is_right else "replay would not be right"
        click.echo(f"{severity}: {code} ({len(found)}{of}): {verdict}")
        place = where(trace, found[0]) if found[0].op >= 0 or len(found) > 1 else ""  # else the line above says it
        example = f"{place}: {found[0].message}" if place else found[0].message
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else len(example) + 4
        click.echo(click.wrap_text(example, width, "    ", "    "))
