"""Real jobs under `tracebed record`: what the trace holds against what the job did, and jobs that end badly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.traces.jobs import free_port
from tests.traces.test_horovod import TWO_STEPS, text_of
from traces import archive
from traces.checks import check, is_replayable
from traces.importer import import_files
from traces.program import ROOTED, Collective, Program, Recv, Send, Trace, Wait

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("torch")]

JOB = Path(__file__).parent / "jobs" / "train.py"
TRACEBED = [sys.executable, "-c", "from replay.cli.main import main; main()"]


def torchrun(ranks: int, *arguments: str) -> list[str]:
    where = ["--nproc-per-node", str(ranks), "--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    return [sys.executable, "-m", "torch.distributed.run", *where, *arguments]


def record(
    output: Path, *command: str, options: tuple[str, ...] = (), env: Mapping[str, str] | None = None, status: int = 0
) -> str:
    """What `tracebed record` says; it must exit with `status`."""
    quiet = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **(env or {})}
    argv = [*TRACEBED, "record", "-o", str(output), *options, "--", *command]
    done = subprocess.run(argv, env=quiet, capture_output=True, text=True, timeout=300, cwd=output.parent, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    assert status == 2 or not list(output.parent.glob("*.recording"))
    return done.stdout + done.stderr


def said(program: Program, trace: Trace) -> list[list[list[object]]]:
    """A rank's operations by step, as the job's own list has them."""
    members = {group.id: list(group.ranks) for group in trace.groups}
    by_step: list[list[list[object]]] = [[]]
    for op in program.ops:
        if isinstance(op, Collective):
            peer = op.root if op.kind in ROOTED else -1
            moved = [op.kind.value, op.count, op.dtype.value, peer, list(op.send_splits), list(op.recv_splits)]
            by_step[-1].append([*moved, members[op.group]])
        elif isinstance(op, Send | Recv):
            kind = type(op).__name__.lower()
            by_step[-1].append([kind, op.count, op.dtype.value, op.peer, [], [], members[op.group]])
        elif not isinstance(op, Wait) and hasattr(op, "step"):
            by_step.append([])
    return by_step[:-1]


def shape(program: Program) -> list[tuple[object, ...]]:
    """What two recorders of one run must agree on."""
    return [
        (op.kind.value if isinstance(op, Collective) else type(op).__name__, op.count, op.dtype.value)
        for op in program.ops
        if isinstance(op, Collective | Send | Recv)
    ]


def assert_as_said(trace: Trace, folder: Path, steps: slice = slice(1, None)) -> None:
    """Each rank's steps are those `steps` that it wrote down itself (the first is warm-up), and all is waited for."""
    for rank, program in trace.programs.items():
        own = json.loads((folder / f"said.{rank}.json").read_text())
        assert said(program, trace) == own[steps], rank
        assert sum(isinstance(op, Wait) for op in program.ops) == len(shape(program))


@pytest.mark.parametrize(("mode", "ranks"), [("pp", 3), ("moe", 3), ("groups", 4)])
def test_what_a_job_calls_is_what_is_recorded(tmp_path: Path, mode: str, ranks: int) -> None:
    text = record(tmp_path / "job.trace", *torchrun(ranks, str(JOB), mode, "4", str(tmp_path)))

    trace = archive.read(tmp_path / "job.trace")
    assert f"{ranks} of {ranks} ranks, 3 steps" in text
    assert "us an operation" in text
    assert_as_said(trace, tmp_path)
    assert is_replayable(check(trace))
    assert not [finding for finding in trace.findings if finding.severity != "info"]


@pytest.mark.parametrize("mode", ["ddp", "fsdp2", "tp"])
def test_what_torch_calls_is_what_is_recorded(tmp_path: Path, mode: str) -> None:
    """Against torch's own profiler, which watched the same run."""
    record(tmp_path / "job.trace", *torchrun(2, str(JOB), mode, "4", str(tmp_path)), options=("--warmup", "0"))

    trace = archive.read(tmp_path / "job.trace")
    profiled = import_files(sorted(tmp_path.glob("kineto.*.json")))
    assert trace.step_count == 4
    for rank, program in trace.programs.items():
        theirs = shape(profiled.programs[rank])
        assert len(theirs) >= 8
        ours = shape(program)[-len(theirs) :]  # what was called before the profiler started is ours alone
        assert [(kind, count) for kind, count, _ in ours] == [(kind, count) for kind, count, _ in theirs]
        assert all(known in (dtype, "uint8") for (*_, dtype), (*_, known) in zip(ours, theirs, strict=True))
        assert sum(isinstance(op, Wait) for op in program.ops) == len(shape(program))
    assert is_replayable(check(trace))


def test_an_operator_that_nobody_knows_is_said(tmp_path: Path) -> None:
    record(tmp_path / "job.trace", *torchrun(2, str(JOB), "new", "3", str(tmp_path)), options=("--warmup", "0"))

    trace = archive.read(tmp_path / "job.trace")
    assert [shape(program) for program in trace.programs.values()] == [[("all_reduce", 8, "float32")] * 3] * 2
    (unknown,) = [finding for finding in trace.findings if finding.code == "unknown-operation"]
    assert unknown.message == "3 operations 'shuffle_' are of no known kind; left out"
    assert not is_replayable(check(trace))


def test_a_job_that_is_killed_leaves_the_steps_that_all_ranks_completed(tmp_path: Path) -> None:
    """Rank 1 kills itself as it begins its sixth step; torchrun then ends the others."""
    job = torchrun(3, str(JOB), "groups", "9")
    text = record(tmp_path / "job.trace", *job, env={"DIES_AT_STEP": "5"}, status=1)

    trace = archive.read(tmp_path / "job.trace")
    assert "the job ended with status" in text
    assert "3 of 3 ranks, 4 steps" in text
    assert is_replayable(check(trace))
    assert {len(said(program, trace)) for program in trace.programs.values()} == {4}


def test_only_the_steps_that_are_asked_for(tmp_path: Path) -> None:
    record(tmp_path / "job.trace", *torchrun(2, str(JOB), "moe", "8", str(tmp_path)), options=("--steps", "3:5"))

    trace = archive.read(tmp_path / "job.trace")
    assert trace.step_count == 2
    assert_as_said(trace, tmp_path, slice(3, 5))


def test_nodes_record_apart_and_are_merged(tmp_path: Path) -> None:
    """Two commands, as on two machines, of two ranks each."""
    port = free_port()
    nodes = []
    for node in range(2):
        where = ["--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", "2", "--master-addr", "127.0.0.1"]
        job = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            *where,
            "--master-port",
            str(port),
            str(JOB),
            "groups",
            "4",
        ]
        argv = [*TRACEBED, "record", "-o", f"node{node}.trace", "--", *job, str(tmp_path)]
        quiet = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        nodes.append(subprocess.Popen(argv, cwd=tmp_path, env=quiet))
    try:
        assert [node.wait(timeout=300) for node in nodes] == [0, 0]
    finally:
        for process in nodes:
            process.kill()
            process.wait()
    half = archive.read(tmp_path / "node0.trace")
    assert (half.world_size, sorted(half.programs)) == (4, [0, 1])

    merge = [*TRACEBED, "merge", "node1.trace", "node0.trace", "-o", "job.trace"]
    subprocess.run(merge, cwd=tmp_path, check=True, timeout=60)
    trace = archive.read(tmp_path / "job.trace")
    assert_as_said(trace, tmp_path)
    assert is_replayable(check(trace))


def test_a_plain_job_that_marks_its_steps_itself(tmp_path: Path) -> None:
    """No launcher: a shell starts two Pythons."""
    script = tmp_path / "job.py"
    script.write_text(
        "import sys, torch, torch.distributed as dist, tracebed_record\n"
        "where = 'file://' + __file__ + '.store'\n"
        "dist.init_process_group('gloo', init_method=where, rank=int(sys.argv[1]), world_size=2)\n"
        "for _ in range(3):\n"
        "    dist.all_reduce(torch.ones(10))\n"
        "    tracebed_record.step()\n"
        "dist.destroy_process_group()\n"  # without it gloo's threads end half of such jobs with SIGABRT, recorded or not
    )
    both = f"{sys.executable} {script} 0 & {sys.executable} {script} 1; wait $!"
    assert "2 of 2 ranks, 2 steps" in record(tmp_path / "job.trace", "sh", "-c", both)


def test_a_job_of_one_rank_has_nothing_to_replay(tmp_path: Path) -> None:
    text = record(tmp_path / "job.trace", *torchrun(1, str(JOB), "ddp", "2"), status=2)
    assert "no communication is recorded here" in text


def test_ranks_of_torch_multiprocessing_and_a_recording_that_the_job_starts(tmp_path: Path) -> None:
    """Without the launcher: the job imports Tracebed and says what is to be recorded."""
    script = tmp_path / "job.py"
    script.write_text(
        "import sys, torch, torch.distributed as dist, torch.multiprocessing as mp\n"
        "from traces.record import recording, step\n"
        "def rank(number):\n"
        "    dist.init_process_group('gloo', init_method='file://' + __file__ + '.store', rank=number, world_size=2)\n"
        "    dist.all_reduce(torch.ones(99))\n"
        "    with recording(sys.argv[1]):\n"
        "        for _ in range(3):\n"
        "            dist.all_reduce(torch.ones(10))\n"
        "            step()\n"
        "    dist.all_reduce(torch.ones(99))\n"
        "    dist.destroy_process_group()\n"
        "if __name__ == '__main__':\n"
        "    mp.spawn(rank, nprocs=2)\n"
    )
    subprocess.run([sys.executable, str(script), str(tmp_path / "job.trace")], check=True, timeout=120)
    trace = archive.read(tmp_path / "job.trace")
    assert (trace.world_size, trace.step_count) == (2, 3)
    assert [shape(program) for program in trace.programs.values()] == [[("all_reduce", 10, "float32")] * 3] * 2


def test_a_profile_of_some_steps_gives_the_times_and_the_recording_what_was_called(tmp_path: Path) -> None:
    """As on a GPU, where the hook starts this profile itself. not run: NCCL, for which there is no GPU here."""
    script = tmp_path / "job.py"
    script.write_text(
        "import os, torch, torch.distributed as dist, tracebed_record\n"
        "from tracebed_record.gpu import Profile\n"
        "dist.init_process_group('gloo')\n"
        "profile = Profile(os.environ['TRACEBED_RECORD'], dist.get_rank(), (1, 3))\n"
        "for step in range(5):\n"
        "    profile.reached(step)\n"
        "    dist.all_reduce(torch.ones(10 + step), op=dist.ReduceOp.MAX)\n"
        "    dist.reduce(torch.ones(7, dtype=torch.float64), 1)\n"
        "    tracebed_record.step()\n"
        "profile.stop()\n"
        "dist.destroy_process_group()\n"
        "os._exit(0)\n"  # as in jobs/train.py
    )
    record(tmp_path / "job.trace", *torchrun(2, str(script)), options=("--steps", "0:3"))
    trace = archive.read(tmp_path / "job.trace")
    assert trace.step_count == 2
    for program in trace.programs.values():
        assert shape(program) == [
            *[("all_reduce", 11, "float32"), ("reduce", 7, "float64")],
            *[("all_reduce", 12, "float32"), ("reduce", 7, "float64")],
        ]
        assert [op.reduce_op for op in program.ops if isinstance(op, Collective)] == ["max", "sum"] * 2
    assert {source.format for source in trace.sources} == {"kineto", "tracebed-recording"}


def test_a_sitecustomize_of_the_job_runs_too(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.customized = True\n")
    text = record(
        tmp_path / "job.trace",
        sys.executable,
        "-c",
        "print(customized)",
        env={"PYTHONPATH": own_path(tmp_path)},
        status=2,
    )
    assert "True" in text


def own_path(first: Path) -> str:
    return os.pathsep.join(filter(None, [str(first), os.environ.get("PYTHONPATH", "")]))


def test_horovods_timeline_is_the_recording_where_nothing_else_is(tmp_path: Path) -> None:
    """A job that writes the file where Horovod would, which is not installed here."""
    script = tmp_path / "job.py"
    script.write_text(
        f"import os\ntext = {text_of(TWO_STEPS)!r}\nopen(os.environ['HOROVOD_TIMELINE'], 'wb').write(text)\n"
    )
    job = [sys.executable, str(script)]
    text = record(tmp_path / "job.trace", *job, options=("--warmup", "0"), env={"HOROVOD_TIMELINE": ""})
    assert "2 of 2 ranks, 2 steps" in text
    trace = archive.read(tmp_path / "job.trace")
    assert [source.format for source in trace.sources] == ["horovod"]
    assert is_replayable(check(trace))

    own = tmp_path / "own.json"
    record(tmp_path / "job.trace", *job, env={"HOROVOD_TIMELINE": str(own)}, status=2)
    assert own.read_bytes() == text_of(TWO_STEPS)
