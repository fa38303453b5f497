"""`tracebed check`: what is wrong with a trace."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("check", no_args_is_help=True)
@click.argument("trace", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(trace: Path, as_json: bool) -> int:
    """Find what is wrong with TRACE, and whether it can be replayed.

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

    from rich.console import Console
    from rich.table import Table

    table = Table("severity", "finding", "rank", "op", "replay is still right", "what")
    for finding in findings:
        rank, op = (str(number) if number >= 0 else "" for number in (finding.rank, finding.op))
        table.add_row(finding.severity, finding.code, rank, op, "yes" if finding.replayable else "no", finding.message)
    if findings:
        Console().print(table)
    click.echo(f"{trace}: " + ("can be replayed" if replayable else "can't be replayed"))
    return 0 if replayable else 1
