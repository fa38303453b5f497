"""Real MPI jobs under `tracebed record`: what the trace holds against what the job did."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.traces.test_record import record, said, shape
from traces import archive
from traces.checks import check, is_replayable
from traces.program import Wait

pytestmark = pytest.mark.usefixtures("mpi")

JOB = Path(__file__).parent / "jobs" / "mpi.py"


def mpiexec(ranks: int, *arguments: str) -> list[str]:
    """As mpi4py says to run jobs, so that all ranks end when one fails."""
    return [str(Path(sys.executable).parent / "mpiexec"), "-n", str(ranks), sys.executable, "-m", "mpi4py", *arguments]


@pytest.mark.parametrize(
    ("mode", "ranks"), [("collectives", 3), ("uneven", 3), ("messages", 3), ("objects", 3), ("groups", 4)]
)
def test_what_a_job_calls_is_what_is_recorded(tmp_path: Path, mode: str, ranks: int) -> None:
    text = record(tmp_path / "job.trace", *mpiexec(ranks, str(JOB), mode, "3", str(tmp_path)))

    trace = archive.read(tmp_path / "job.trace")
    assert f"{ranks} of {ranks} ranks, 2 steps" in text
    assert "us an operation" in text
    for rank, program in trace.programs.items():
        own = json.loads((tmp_path / f"said.{rank}.json").read_text())
        assert said(program, trace) == own[1:], rank  # the first step is warm-up
        assert sum(isinstance(op, Wait) for op in program.ops) == len(shape(program))
    assert is_replayable(check(trace))
    told = {finding.message.split(": ", 1)[1].split()[0] for finding in trace.findings if finding.severity != "info"}
    assert told == {
        "uneven": {"Allgatherv", "Gatherv", "Scatterv", "Reduce_scatter"}, "objects": {"gather", "scatter"},
    }.get(mode, set())  # fmt: skip
