"""Jobs for whole replays, the replays themselves, and what they leave, for the tests that go end to end."""

from __future__ import annotations

import csv
import dataclasses
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from emulator.transport import NO_COSTS
from replay.results import Run
from replay.session import load_network, new_folder, read_job, replay
from tests.replay.network import trace_of
from traces import archive
from traces.program import Collective, CollectiveKind, Compute, DType, Op, StepMark, Trace, Wait


def all_reduces(ranks: int, nbytes: int, steps: int) -> Trace:
    """Steps of one all-reduce of `nbytes` of float32 and nothing else."""
    ops: list[Op] = []
    for step in range(steps):
        ops += [Collective(CollectiveKind.ALL_REDUCE, 0, nbytes // 4, DType.FLOAT32), Wait(len(ops)), StepMark(step)]
    return trace_of(dict.fromkeys(range(ranks), ops), steps=steps)


def overlapping(ranks: int, nbytes: int, steps: int) -> Trace:
    """Steps as a training job has them: uneven compute, an all-reduce under it, an all-to-all behind it."""
    return trace_of({rank: _overlapping(rank, ranks, nbytes // 4, steps) for rank in range(ranks)}, steps=steps)


def _overlapping(rank: int, ranks: int, count: int, steps: int) -> list[Op]:
    ops: list[Op] = []
    for step in range(steps):
        first = len(ops)
        ops += [
            Compute(1_000_000 + 137_000 * ((rank * 7 + step * 3) % 5)),
            Collective(CollectiveKind.ALL_REDUCE, 0, count, DType.FLOAT32),
            Compute(500_000),
            Collective(CollectiveKind.ALL_TO_ALL, 0, count // ranks * ranks, DType.FLOAT32),
            Wait(first + 1),
            Wait(first + 3),
            StepMark(step),
        ]
    return ops


def computing(ranks: int, step_ns: int, steps: int) -> Trace:
    """Steps of `step_ns` of compute and one barrier: a run that lasts, for tests that end it."""
    ops: list[Op] = []
    for step in range(steps):
        ops += [Compute(step_ns), Collective(CollectiveKind.BARRIER, 0, 0), Wait(len(ops) + 1), StepMark(step)]
    return trace_of(dict.fromkeys(range(ranks), ops), steps=steps)


def written(trace: Trace, folder: Path) -> Path:
    """The file of `trace`, in `folder`."""
    path = folder / "job.trace"
    archive.write(trace, path)
    return path


def replayed(
    trace: Path,
    network: str | Path,
    base: Path,
    settings: Mapping[str, str] | None = None,
    *,
    bed: str = "netns",
    fidelity: str = "auto",
    verify: bool = False,
    what_if: Sequence[str] = (),
    costs: bool = False,
    library: str = "",
) -> tuple[Run, Path]:
    """`trace` replayed in virtual time: what run.json says, and the run folder, a new one under `base`. What hosts take besides
    the wire is left out where `costs` does not ask for it, as most tests are of the wire.
    """
    job = read_job(trace, what_if)
    resolved = load_network(str(network), job, dict(settings or {}))
    if not costs:
        resolved = dataclasses.replace(resolved, costs=NO_COSTS)
    folder = new_folder(base, job, resolved)
    return replay(job, resolved, folder, bed=bed, fidelity=fidelity, verify=verify, library=library), folder


def rows(file: Path) -> list[dict[str, str]]:
    """The rows of a CSV file of a run folder."""
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def step_times(folder: Path) -> list[int]:
    """Each ended step's time in ns."""
    return [int(row["step_ns"]) for row in rows(folder / "steps.csv")]


def run_json(folder: Path) -> Run:
    """What run.json says."""
    return msgspec.json.decode((folder / "run.json").read_bytes(), type=Run)


def tracebed(*arguments: str | Path, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The command, run to its end as a user runs it; `env` comes on top of ours."""
    return subprocess.run(tracebed_argv(*arguments), env={**os.environ, **(env or {})}, capture_output=True, text=True)


def tracebed_argv(*arguments: str | Path) -> Sequence[str]:
    """The command line for `arguments`."""
    return [str(Path(sys.executable).with_name("tracebed")), *map(str, arguments)]
