"""Real MPI jobs under `tracebed record`: what the trace holds against what the job did."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path

import pytest

from tests.traces.test_record import assert_as_said, record, said, shape
from traces import archive
from traces.checks import check, is_replayable
from traces.program import Send

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
    assert_as_said(trace, tmp_path)
    assert is_replayable(check(trace))
    told = {finding.message.split(": ", 1)[1].split()[0] for finding in trace.findings if finding.severity != "info"}
    assert told == {
        "uneven": {"Allgatherv", "Gatherv", "Scatterv", "Reduce_scatter"}, "objects": {"gather", "scatter"},
    }.get(mode, set())  # fmt: skip


def test_only_the_steps_that_are_asked_for(tmp_path: Path) -> None:
    job = mpiexec(3, str(JOB), "messages", "5", str(tmp_path))
    record(tmp_path / "job.trace", *job, options=("--steps", "1:3"))

    trace = archive.read(tmp_path / "job.trace")
    for rank, program in trace.programs.items():
        assert said(program, trace) == json.loads((tmp_path / f"said.{rank}.json").read_text())[1:3]


def test_what_is_received_after_the_steps_that_are_asked_for(tmp_path: Path) -> None:
    """It was started in one of them, and its sender's message is in the trace."""
    script = tmp_path / "job.py"
    script.write_text(
        "import tracebed_record\n"
        "from mpi4py import MPI\n"
        "world = MPI.COMM_WORLD\n"
        "into, other = bytearray(9), 1 - world.rank\n"
        "for step in range(3):\n"
        "    world.Isend(bytearray(step + 1), other).Wait()\n"
        "    request = world.Irecv(into, other)\n"
        "    world.Barrier()\n"
        "    tracebed_record.step()\n"
        "    request.Wait()\n"
    )
    record(tmp_path / "job.trace", *mpiexec(2, str(script)), options=("--steps", "0:2", "--warmup", "0"))
    trace = archive.read(tmp_path / "job.trace")
    step = [("Send", 1, "uint8"), ("Recv", 1, "uint8"), ("barrier", 0, "uint8")]
    assert [shape(program) for program in trace.programs.values()] == [
        [*step, *[(kind, 2 * count, dtype) for kind, count, dtype in step]]
    ] * 2
    assert is_replayable(check(trace))


def test_objects_that_are_reduced_travel_as_mpi4py_sends_them(tmp_path: Path) -> None:
    """Partial results differ in size: what a rank sends is what the other receives, and all of it was sent."""
    script = tmp_path / "job.py"
    script.write_text(
        "import operator\n"
        "from mpi4py import MPI\n"
        "for root in range(2):\n"
        "    assert MPI.COMM_WORLD.reduce('x' * 300, operator.add, root) in (None, 'x' * 300 * MPI.COMM_WORLD.size)\n"
    )
    record(tmp_path / "job.trace", *mpiexec(4, str(script)))
    trace = archive.read(tmp_path / "job.trace")
    assert is_replayable(check(trace))
    sent = {
        (rank, op.peer, op.count)
        for rank, program in trace.programs.items()
        for op in program.ops
        if isinstance(op, Send)
    }
    one, two, four = (len(pickle.dumps("x" * 300 * ranks, pickle.HIGHEST_PROTOCOL)) for ranks in (1, 2, 4))
    assert {(1, 0, one), (3, 2, one), (2, 0, two), (0, 1, four)} <= sent


def test_a_job_that_starts_mpi_itself(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        "import mpi4py\n"
        "mpi4py.rc.initialize = False\n"
        "from mpi4py.MPI import COMM_WORLD, Init\n"
        "Init()\n"
        "COMM_WORLD.allreduce(COMM_WORLD.rank)\n"
    )
    assert "2 of 2 ranks, 1 steps" in record(tmp_path / "job.trace", *mpiexec(2, str(script)))
    assert [shape(program) for program in archive.read(tmp_path / "job.trace").programs.values()] == [
        [("all_reduce", 5, "uint8")]
    ] * 2


def test_what_is_not_recorded_is_said(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        "from mpi4py import MPI\n"
        "world = MPI.COMM_WORLD\n"
        "world.scan(world.rank)\n"
        "request = world.Send_init(bytearray(4), world.rank)\n"
        "request.Start()\n"
        "world.Recv(bytearray(9), world.rank)\n"
        "request.Wait()\n"
        "world.Barrier()\n"
    )
    record(tmp_path / "job.trace", *mpiexec(2, str(script)))
    trace = archive.read(tmp_path / "job.trace")
    said = " ".join(finding.message for finding in trace.findings)
    assert "Intracomm.scan is not recorded" in said
    assert "Prequest.Start is not recorded" in said


def test_a_job_that_dies_leaves_the_steps_that_all_ranks_completed(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        "import os, signal, tracebed_record\n"
        "from mpi4py import MPI\n"
        "for step in range(5):\n"
        "    MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, bytearray(8))\n"
        "    if step == 3 and MPI.COMM_WORLD.rank == 1:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    tracebed_record.step()\n"
    )
    text = record(tmp_path / "job.trace", *mpiexec(2, str(script)), status=1)
    assert "2 of 2 ranks, 2 steps" in text


@pytest.mark.torch
@pytest.mark.usefixtures("torch")
def test_ranks_of_torch_that_mpiexec_starts(tmp_path: Path) -> None:
    """They know who they are from the launcher's environment; what they did through MPI is said to be missing."""
    script = tmp_path / "job.py"
    script.write_text(
        "import os, torch, torch.distributed as dist, tracebed_record\n"
        "rank, size = int(os.environ['PMI_RANK']), int(os.environ['PMI_SIZE'])\n"
        "dist.init_process_group('gloo', init_method='file://' + __file__ + '.store', rank=rank, world_size=size)\n"
        "from mpi4py import MPI\n"
        "MPI.COMM_WORLD.bcast('hello')\n"
        "for _ in range(3):\n"
        "    dist.all_reduce(torch.ones(10))\n"
        "    tracebed_record.step()\n"
        "dist.destroy_process_group()\n"
    )
    assert "2 of 2 ranks, 2 steps" in record(tmp_path / "job.trace", *mpiexec(2, str(script)))
    trace = archive.read(tmp_path / "job.trace")
    assert [shape(program) for program in trace.programs.values()] == [[("all_reduce", 10, "float32")] * 2] * 2
    assert {finding.code for finding in trace.findings} == {"other-library"}
