"""`tracebed info`: what a trace holds."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.table import Table

    from traces.program import Trace
    from traces.summary import Summary

_MOST_ROWS = 40  # of operations, groups and ranks
_MOST_STEPS = 20

# A table's title, the headings of its words and of its numbers, and its rows.
_Sheet = tuple[str, Sequence[str], Sequence[str], Sequence[Sequence[str]]]


@click.command("info", no_args_is_help=True)
@click.argument("trace", type=click.Path(path_type=Path))
@click.option("--all", "show_all", is_flag=True, help="Show every step, group and rank.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, of every step, group and rank.")
def command(trace: Path, show_all: bool, as_json: bool) -> int:
    """Say what TRACE holds: its steps, its collectives with their bandwidths, its groups, and each rank.

    Sizes and bandwidths are those of nccl-tests. A collective's time runs from when the last rank came to when the last
    one ended, as what the others recorded before contains waiting. "-": the recording does not tell.

    exposed: how long a rank stopped for communication. overlap: the part of communication in which it did not.
    skew, late: how much later than the first rank the last one, or this one, came to a collective, on average.

    Groups that are alike are one row, with the sums of all; of more than 20 steps least, median and most are shown.

    \b
    Example:
      tracebed info resnet50.trace
      tracebed info resnet50.trace --all
    """
    from traces import archive
    from traces.summary import summarise

    loaded = archive.read(trace)
    summary = summarise(loaded, together=not (as_json or show_all))
    if as_json:
        import msgspec

        said = msgspec.to_builtins(summary) | {
            "hash": archive.trace_hash(trace),
            "sources": msgspec.to_builtins(loaded.sources),
            "provenance": dict(loaded.provenance),
        }
        click.echo(msgspec.json.encode(said).decode())
        return 0
    _show(trace, loaded, summary, show_all)
    return 0


def _show(path: Path, trace: Trace, summary: Summary, show_all: bool) -> None:
    from rich.console import Console

    console = Console()
    click.echo(
        f"{path}: {len(summary.ranks)} of {summary.world_size} ranks, steps: {len(summary.steps)}, "
        f"groups: {len(trace.groups)}"
    )
    most_rows, most_steps = (sys.maxsize, sys.maxsize) if show_all else (_MOST_ROWS, _MOST_STEPS)
    tables = (_steps(summary, most_steps), _operations(summary), _groups(summary), _ranks(summary))
    for title, words, numbers, rows in tables:
        console.print(_table(title, words, numbers, rows, most_rows))
        click.echo()
    late = max(summary.ranks, key=lambda rank: rank.late_ns or 0, default=None)
    if late is not None and late.late_ns:
        click.echo(
            f"latest: rank {late.rank}, {late.late_ns / 1e6:.3f} ms after the first on average, last at {late.last} of "
            f"{summary.collectives} collectives"
        )


def _steps(summary: Summary, most: int) -> _Sheet:
    title, names = "steps, ms", [str(row.step) for row in summary.steps]
    found: list[Sequence[float | None]] = [
        (row.recorded_ns, row.compute_ns, row.exposed_ns, row.overlap, row.skew_ns) for row in summary.steps
    ]
    if len(found) > most:
        title, names = f"{len(found)} steps, ms (--all shows each)", ["min", "median", "max"]
        known = [[value for value in column if value is not None] for column in zip(*found, strict=True)]
        found = [[of(values) if values else None for values in known] for of in (min, statistics.median, max)]
    rows = [
        (name, _ms(recorded), _ms(compute), _ms(exposed), _percent(overlap), _ms(skew))
        for name, (recorded, compute, exposed, overlap, skew) in zip(names, found, strict=True)
    ]
    return title, ("step",), ("recorded", "compute", "exposed", "overlap", "skew"), rows


def _operations(summary: Summary) -> _Sheet:
    rows = [
        (
            row.group,
            row.kind,
            row.dtype,
            f"{row.bytes:.0f}",
            str(row.count),
            *(_us(ns) for ns in (row.min_ns, row.mean_ns, row.max_ns)),
            *(_number(rate) for rate in (row.algorithm_gb_s, row.bus_gb_s)),
        )
        for row in summary.operations
    ]
    numbers = ("bytes", "count", "min", "avg", "max", "algbw", "busbw")
    return "operations, us and GB/s", ("group", "operation", "type"), numbers, rows


def _groups(summary: Summary) -> _Sheet:
    from traces.checks.said import ranges

    rows = [
        (
            row.name,
            row.description,
            ranges(row.ranks),
            str(row.collectives),
            str(row.messages),
            f"{row.bytes / 1e6:,.3f}",
            _ms(row.time_ns),
        )
        for row in summary.groups
    ]
    return "groups", ("group", "for", "ranks"), ("collectives", "messages", "MB", "ms"), rows


def _ranks(summary: Summary) -> _Sheet:
    steps = max(len(summary.steps), 1)
    rows = [
        (
            str(row.rank),
            row.host or "-",
            str(row.operations),
            f"{row.bytes / 1e6:,.1f}",
            _ms(sum(row.compute_ns) / steps),
            _ms(row.waited_ns / steps if row.waited_ns is not None else None),
            _percent(row.exposed),
            _ms(row.late_ns),
            str(row.last) if row.late_ns is not None else "-",
        )
        for row in summary.ranks
    ]
    numbers = ("ops", "MB", "compute", "waited", "exposed", "late", "last")
    return "ranks (compute, waited: ms a step; late: ms)", ("rank", "host"), numbers, rows


def _table(title: str, words: Sequence[str], numbers: Sequence[str], rows: Sequence[Sequence[str]], most: int) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    for heading in words:
        table.add_column(heading, overflow="fold", no_wrap=heading == "operation")
    for heading in numbers:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows[:most]:
        table.add_row(*row)
    if len(rows) > most:
        table.caption = f"and {len(rows) - most} more (--all shows them)"
    return table


def _ms(ns: float | None) -> str:
    return "-" if ns is None else f"{ns / 1e6:,.3f}"


def _us(ns: float | None) -> str:
    return "-" if ns is None else f"{ns / 1e3:,.{1 if ns < 1e6 else 0}f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}" if value < 10 else f"{value:.1f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
