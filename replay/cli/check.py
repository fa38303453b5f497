"""`tracebed check`: what is wrong with a trace."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from traces.program import Finding


@click.command("check", no_args_is_help=True)
@click.argument("trace", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(trace: Path, as_json: bool) -> int:
    """Find what is wrong with TRACE, and whether it can be replayed.

    Findings of a kind are one line, with how many there are and the first as an example; --json gives each.

    Exit status 0: it can be replayed, though there may be findings to know of; 1: it can't.

    \b
    Example:
      tracebed check resnet50.trace
    """
    from traces import archive
    from traces.checks import check, is_replayable

    findings = check(archive.read(trace))
    replayable = is_replayable(findings)
    if as_json:
        import msgspec

        said = {"replayable": replayable, "findings": msgspec.to_builtins(findings)}
        click.echo(msgspec.json.encode(said).decode())
        return 0 if replayable else 1

    if findings:
        _show(findings)
    click.echo(f"{trace}: " + ("can be replayed" if replayable else "can't be replayed"))
    return 0 if replayable else 1


def _show(findings: Sequence[Finding]) -> None:
    """One row for all findings of a kind: how many, at which ranks, and the first of them."""
    from rich.console import Console
    from rich.table import Table

    from traces.checks.said import ranges

    alike: dict[tuple[str, str, bool], list[Finding]] = {}
    for finding in findings:
        alike.setdefault((finding.severity, finding.code, finding.replayable), []).append(finding)
    table = Table("severity", "finding")
    table.add_column("count", justify="right")
    for heading in ("ranks", "replay is still right", "example"):
        table.add_column(heading)
    for (severity, code, is_right), found in alike.items():
        ranks = ranges({finding.rank for finding in found if finding.rank >= 0})
        first = found[0]
        numbers = (("rank", first.rank), ("op", first.op))
        place = ", ".join(f"{what} {number}" for what, number in numbers if number >= 0)
        example = f"{place}: {first.message}" if place else first.message
        table.add_row(severity, code, str(len(found)), ranks, "yes" if is_right else "no", example)
    Console().print(table)
