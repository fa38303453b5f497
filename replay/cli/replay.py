"""`tracebed replay`: run a trace on emulated networks and measure the step time."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from replay.cli.options import FIDELITY, STEPS, VERIFY, list_algorithms
from replay.cli.what_ifs import list_what_ifs
from replay.request import BEDS, LIBRARIES, STALL_S

if TYPE_CHECKING:
    from threading import Event

    from rich.progress import Progress, TaskID

    from replay.results import Run
    from replay.session import Asked, Job


@click.command("replay", no_args_is_help=True)
@click.argument("trace", type=click.Path(path_type=Path))
@click.option(
    "--network",
    "networks",
    multiple=True,
    required=True,
    metavar="NET",
    help="A network file or a profile; more than once, or several with commas between.",
)
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set a key of every network, by its dotted path."
)
@click.option(
    "--what-if",
    "what_if",
    multiple=True,
    metavar="NAME=VALUE",
    is_eager=True,
    callback=list_what_ifs,
    help="Change the job first, as in compute=0.1; more than once, in turn. `list` shows all there are.",
)
@click.option(
    "--algorithm",
    "algorithms",
    multiple=True,
    metavar="[KIND=]NAME[:WHERE]",
    is_eager=True,
    callback=list_algorithms,
    help="How collectives run: auto, nccl, gloo, mpi or an algorithm's name, for all or for one kind; WHERE is 64KiB..1MiB, "
    "ranks=8.. or both. More than once, the last that fits wins. `list` shows all.",
)
@click.option(
    "--segment",
    default="1 MiB",
    show_default=True,
    metavar="SIZE",
    help="The most that a pipelined message of a collective holds.",
)
@click.option(
    "--library",
    type=click.Choice(LIBRARIES),
    metavar="|".join(LIBRARIES),
    help="Run the job with this library's own operations instead of ours: torch.distributed on gloo, or MPICH.",
)
@STEPS
@click.option(
    "--on",
    "ground",
    type=click.Choice(["virtual", "host"]),
    default="virtual",
    show_default=True,
    help="The lab kernel in virtual time, or this machine's kernel in real time (root).",
)
@click.option(
    "--bed",
    type=click.Choice(BEDS),
    default="netns",
    show_default=True,
    help="What a host of the network is: a namespace, or a container.",
)
@click.option(
    "--image",
    default="",
    metavar="NAME",
    help="The containers' image, of the daemon of DOCKER_HOST; by default an empty one.",
)
@FIDELITY
@click.option(
    "--pcap",
    multiple=True,
    metavar="LINK",
    help="Capture what leaves this link at both ends, to LINK.pcap in the run folder; more than once. In bursts, a burst is "
    "one packet.",
)
@click.option(
    "--dilate",
    "dilation",
    default="1",
    metavar="K",
    help="With --on host: run job and network K times slower, for rates that this machine can't carry.",
)
@click.option(
    "--stall",
    "stall_s",
    type=click.FloatRange(0, min_open=True),
    default=STALL_S,
    show_default=True,
    metavar="SECONDS",
    help="Give a run up when nothing has moved for so long, in the run's own time: a link stays down.",
)
@VERIFY
@click.option(
    "-o",
    "--output",
    "base",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    show_default=True,
    help="Where the run folders go.",
)
@click.option("--jobs", type=click.IntRange(1), help="Runs side by side; by default one a processor, on the host one.")
@click.option("--json", "as_json", is_flag=True, help="Print what each run.json says as a JSON list.")
def command(
    trace: Path,
    networks: tuple[str, ...],
    settings: tuple[str, ...],
    what_if: tuple[str, ...],
    algorithms: tuple[str, ...],
    segment: str,
    library: str | None,
    steps: str,
    ground: str,
    bed: str,
    image: str,
    fidelity: str,
    pcap: tuple[str, ...],
    dilation: str,
    stall_s: float,
    verify: bool,
    base: Path,
    jobs: int | None,
    as_json: bool,
) -> int:
    """Run TRACE on each NET and measure the step time.

    Exit status 0: every run came to its end; 1: one failed, and is named; or can't be trusted, for this machine did not keep
    up (--on host); or all were stopped by Ctrl-C, which keeps the steps that have ended.

    \b
    Example:
      tracebed replay resnet50.trace --network ethernet-10g,wan-continental --what-if compute=0.1
    """  # fmt: skip
    from replay.choosers.rules import read_rules, read_segment
    from replay.cli.network import split_settings
    from replay.cli.table import show
    from replay.session import ask, load_network, read_job

    read_rules(algorithms)  # raises where one can't be read
    if image and bed != "docker":
        raise click.UsageError("--image belongs to --bed docker")
    job = read_job(trace, what_if, steps)
    names = [name for text in networks for name in ([text] if Path(text).exists() else text.split(","))]
    resolved = [load_network(name, job, split_settings(settings)) for name in names]
    asked = [
        ask(
            job,
            network,
            ground=ground,
            bed=bed,
            image=image,
            fidelity=fidelity,
            verify=verify,
            pcap=pcap,
            dilation=dilation,
            algorithms=algorithms,
            segment=read_segment(segment),
            library=library or "",
            stall_s=stall_s,
        )
        for network in resolved
    ]
    runs, failures, stopped = _run_all(job, asked, base, jobs or _side_by_side(ground))
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode([run for _, run in runs]).decode())
    elif runs:
        show(job, runs, settings)
    for failure in failures:
        print(f"tracebed: {failure}", file=sys.stderr)
    if stopped:
        raise KeyboardInterrupt
    return 1 if failures or any(run.doubts for _, run in runs) else 0


def _side_by_side(ground: str) -> int:
    import os

    return len(os.sched_getaffinity(0)) if ground == "virtual" else 1


def _run_all(job: Job, asked: list[Asked], base: Path, jobs: int) -> tuple[list[tuple[Path, Run]], list[str], bool]:
    """Every run that came to its end, in order, with its folder; a line for each that did not; and whether the user stopped
    them, and so some runs are not whole.

    Where they are stopped, or one shows that the input or the machine is at fault, the others are ended at once.
    """
    from concurrent.futures import Future, ThreadPoolExecutor
    from threading import Event

    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from emulator.errors import BedError
    from replay.session import new_folder

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    folders = [new_folder(base, job, each.network) for each in asked]
    stopped = Event()
    with Progress(*columns, console=Console(stderr=True)) as bars, ThreadPoolExecutor(jobs) as pool:
        waiting: list[tuple[Asked, Path, Future[Run]]] = []
        runs: list[tuple[Path, Run]] = []
        failures: list[str] = []
        try:
            for each, folder in zip(asked, folders, strict=True):
                bar = bars.add_task(f"{each.network.name}: waiting", total=job.trace.step_count, start=False)
                run = pool.submit(_run_one, job, each, folder, bars, bar, stopped)
                waiting.append((each, folder, run))
            for each, folder, run in waiting:
                try:
                    runs.append((folder, run.result()))
                except BedError as error:
                    failures.append(f"{each.network.name}: {error} (what was measured is in {folder})")
        except BaseException as error:
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            _end_children()
            if not isinstance(error, KeyboardInterrupt):
                raise
            ended = [(folder, run) for _, folder, run in waiting if not run.cancelled() and not run.exception()]
            runs = [(folder, run.result()) for folder, run in ended]
    return runs, failures, stopped.is_set()


def _end_children() -> None:
    """Kill this process's children, lab kernels and ranks: their runs end then, and take down what they made."""
    import os
    import signal
    from contextlib import suppress

    for thread in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it, or what it started, has ended meanwhile
            for pid in (thread / "children").read_text().split():
                os.kill(int(pid), signal.SIGKILL)


def _run_one(
    job: Job,
    asked: Asked,
    folder: Path,
    bars: Progress,
    bar: TaskID,
    stopped: Event,
) -> Run:
    from replay import control
    from replay.execute import Said, Up
    from replay.session import carry_out

    name, marks = asked.network.name, 0

    def say(said: Said) -> None:
        nonlocal marks
        if stopped.is_set():
            raise KeyboardInterrupt("stopped")
        if isinstance(said, Up):
            bars.update(bar, description=f"{name}: {len(job.trace.programs)} ranks, {said.fidelity} fidelity")
        elif isinstance(said, control.Progress):
            marks += 1
            bars.update(bar, completed=marks // len(job.trace.workers))

    bars.start_task(bar)
    bars.update(bar, description=f"{name}: starting")
    run = carry_out(job, asked, folder, command=sys.argv, say=say, is_stopped=stopped.is_set)
    bars.update(bar, description=f"{name}: done")
    return run
