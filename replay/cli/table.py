"""The tables of runs, for people: what each took, what holds its steps, and what both rest on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from replay.critical import Holder
    from replay.results import Run, Summary
    from replay.session import Job

_COLUMNS = ("step mean", "±95%", "median", "p95", "exposed", "vs recorded", "ideal", "drops")
_KINDS = {"compute": "compute of ", "operation": "", "link": "link ", "process": "process of "}
_PATH_COLUMNS = ("on the critical path", "for", "part", "a step without it")
_DRIFT = 0.01  # of the step time; ranks that meet in every step differ by what they start apart, over all steps
_MEANING = (
    "exposed: the part of a step that a rank waited in communication, for the network or for slower ranks;",
    "±95%: the 95 % interval of the mean, by what steps differ; ideal: no network time at all",
)


def show(job: Job, runs: Sequence[tuple[Path, Run]], settings: Iterable[str] = ()) -> None:
    """Print the tables of runs of which some steps ended, each with its folder."""
    from rich.console import Console

    first = runs[0][1]
    steps, ground = job.trace.step_count, first.request.ground
    ranks = f"{len(job.trace.workers)}" + (f" and {len(job.trace.servers)} servers" if job.trace.servers else "")
    measured = [(_name(run), run.summary) for _, run in runs if run.summary]
    table = _table(f"{job.path.stem}; ranks: {ranks}, steps: {steps}, on {ground}; times in ms", "network", *_COLUMNS)
    for name, summary in measured:
        table.add_row(name, *_cells(summary))
    console = Console(highlight=False)
    console.print(table)
    if any(summary.held for _, summary in measured):
        console.print(_held(measured))
    lines = [*_MEANING, *(line for name, summary in measured for line in _left_out(name, summary))]
    lines += [f"set in every network: {setting}" for setting in settings]
    lines += [f"what if: {statement}" for statement in job.assumed]
    lines += _said_of_runs(job, runs)
    lines += [
        f"{name}: ranks drift apart; a rank's own step takes {milliseconds(own)} in the mean over ranks"
        for name, summary in measured
        if (own := summary.own_step_mean_ns) and abs(own / summary.step_mean_ns - 1) > _DRIFT
    ]
    if job.what_if and any(summary.recorded_step_ns for _, summary in measured):
        lines.append("vs recorded: against the job as it was recorded, without the what-ifs")
    lines += [f"{run.request.network['name']}: not to be trusted: {doubt}" for _, run in runs for doubt in run.doubts]
    if ground == "host" and not any(run.doubts for _, run in runs):
        lines.append("on host: real time on this machine's kernel, which kept up")
    if first.request.verify:
        lines.append(f"verified: {sum(summary.verified for _, summary in measured):,} elements, all right")
    lines += [f"{run.request.network['name']}: stopped; {run.error}" for _, run in runs if run.status == "stopped"]
    for line in [*lines, *(f"{run.request.network['name']}: {folder}" for folder, run in runs)]:
        console.print(line, soft_wrap=True)


def show_why(name: str, step_ns: float, holders: Sequence[Holder]) -> None:
    """Print what is on the critical path of a run whose mean step is `step_ns`."""
    from rich.console import Console

    table = _table(f"{name}; a step: {milliseconds(step_ns)}; times in ms", *_PATH_COLUMNS)
    for holder in holders:
        table.add_row(*_path_cells(holder, step_ns))
    Console(highlight=False).print(table)


def _held(measured: Iterable[tuple[str, Summary]]) -> Table:
    table = _table("", "network", *_PATH_COLUMNS)
    for name, summary in measured:
        for place, holder in enumerate(summary.held):
            table.add_row("" if place else name, *_path_cells(holder, summary.step_mean_ns))
    return table


def _path_cells(holder: Holder, step_ns: float) -> tuple[str, ...]:
    part = holder.path_ns / step_ns if step_ns else 0.0
    what = f"{_KINDS[holder.kind]}{holder.name}"
    return what, milliseconds(holder.path_ns), f"{part:.0%}", milliseconds(holder.free_step_ns)


def _table(title: str, *columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in columns:
        words = name in ("network", _PATH_COLUMNS[0])
        table.add_column(name, justify="left" if words else "right", no_wrap=name == "network", overflow="fold")
    return table


def _name(run: Run) -> str:
    name = str(run.request.network["name"])
    said = "untrusted" if run.doubts else run.status
    return name if said == "complete" else f"{name}, {said}"


def _cells(summary: Summary) -> tuple[str, ...]:
    mean = summary.step_mean_ns
    against = mean / summary.recorded_step_ns if summary.recorded_step_ns else 0.0
    return (
        milliseconds(mean),
        milliseconds(max(summary.step_high_ns - mean, mean - summary.step_low_ns)),
        milliseconds(summary.step_median_ns),
        milliseconds(summary.step_p95_ns),
        f"{summary.exposed_mean_ns / mean:.0%}" if mean else "0%",
        f"{against:.2f}x" if against else "unknown",
        milliseconds(summary.ideal_step_ns),
        "?" if summary.drops is None else f"{summary.drops:,}",
    )


def _left_out(name: str, summary: Summary) -> list[str]:
    if not summary.warmup_steps:
        return []
    steps = "step is" if summary.warmup_steps == 1 else f"{summary.warmup_steps} steps are"
    return [f"{name}: the first {steps} unlike the rest (warm-up) and left out of all times; steps.csv has all"]


def _said_of_runs(job: Job, runs: Sequence[tuple[Path, Run]]) -> list[str]:
    """What is assumed besides what the job assumes, each once, and of which networks where not of all."""
    said: dict[str, list[str]] = {}
    for _, run in runs:
        for statement in run.assumed[len(job.assumed) :]:
            said.setdefault(statement, []).append(str(run.request.network["name"]))
    return [text if len(names) == len(runs) else f"{', '.join(names)}: {text}" for text, names in said.items()]


def milliseconds(ns: float) -> str:
    """A time in ms for people: four significant digits, whole ms from 1 s on."""
    return f"{ns / 1e6:,.0f}" if ns >= 1e9 else f"{ns / 1e6:.4g}"
