"""`tracebed info`: what a trace holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from traces.program import Trace
    from traces.summary import Summary


@click.command("info", no_args_is_help=True)
@click.argument("trace", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(trace: Path, as_json: bool) -> int:
    """Say what TRACE holds: operations and bytes by group and kind, compute and waiting by rank, recorded step times.

    Bytes are those of the calls' own tensors, all ranks together, not what travels: that depends on the algorithm.

    \b
    Example:
      tracebed info resnet50.trace
    """
    from traces import archive
    from traces.summary import summarise

    loaded = archive.read(trace)
    summary = summarise(loaded)
    if as_json:
        import msgspec

        said = msgspec.to_builtins(summary) | {
            "hash": archive.trace_hash(trace),
            "groups": msgspec.to_builtins(loaded.groups),
            "sources": msgspec.to_builtins(loaded.sources),
            "provenance": dict(loaded.provenance),
        }
        click.echo(msgspec.json.encode(said).decode())
        return 0
    _show(trace, loaded, summary)
    return 0


def _show(path: Path, trace: Trace, summary: Summary) -> None:
    from rich.console import Console
    from rich.table import Table

    recorded = (
        f"{len(summary.ranks)} of {summary.world_size} ranks, steps: {summary.steps}, groups: {len(trace.groups)}"
    )
    click.echo(f"{path}: {recorded}")
    if summary.step_ns:
        click.echo("recorded steps: " + ", ".join(f"{ns / 1e6:.3f}" for ns in summary.step_ns) + " ms")
    operations = Table("group", "operation", "type", title="operations, all ranks")
    for heading in ("count", "per rank", "bytes"):
        operations.add_column(heading, justify="right")
    for row in summary.operations:
        fewest, most = row.per_rank
        per_rank = str(most) if fewest == most else f"{fewest}-{most}"
        operations.add_row(row.group, row.kind, row.dtype, str(row.operations), per_rank, f"{row.bytes:,}")
    ranks = Table("rank", "host", title="ranks")
    for heading in ("operations", "MB", "compute, ms/step", "waited, ms/step", "clock residual, us"):
        ranks.add_column(heading, justify="right")
    for rank in summary.ranks:
        compute, waited = (f"{ns / max(summary.steps, 1) / 1e6:.3f}" for ns in (sum(rank.compute_ns), rank.waited_ns))
        residual = f"{rank.clock_residual_ns / 1e3:.1f}"
        ranks.add_row(
            str(rank.rank), rank.host, str(rank.operations), f"{rank.bytes / 1e6:,.3f}", compute, waited, residual
        )
    Console().print(operations, ranks)
