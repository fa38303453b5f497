"""`tracebed export`: what other tools get is what the trace holds, and comes back."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from replay.export import export
from replay.messages import graphs, on_world
from replay.plan import Transfer, lower
from tests.replay.simgrid import RATE, simulated_s
from tests.traces.build import exchange, reduce, sync, trace
from tests.traces.symbolic import stuck
from tests.traces.test_commands import SAMPLE, tracebed
from traces import archive
from traces.checks import check, is_replayable
from traces.errors import TraceError
from traces.files import Opened
from traces.formats import goal, smpi
from traces.importer import import_files
from traces.program import (
    ROOTED,
    Collective,
    CollectiveKind,
    Compute,
    DType,
    Group,
    Op,
    Program,
    Recv,
    Send,
    StepMark,
    Trace,
    Wait,
)

PAIR = trace(
    [Compute(10), Send(1, 100, tag=3), Compute(20), Wait(1), StepMark(0), Recv(1, 7, tag=4), Wait(5), StepMark(1)],
    [Recv(0, 100, tag=3), Wait(0), Compute(5), StepMark(0), Send(0, 7, tag=4), Compute(9), Wait(4), StepMark(1)],
)


def goal_again(job: Trace) -> Trace:
    return goal.read([Opened("x.goal", export(job, "goal")[0], "", True)])


def sizes(job: Trace) -> dict[int, Counter[tuple[type, int, int]]]:
    """By rank, how many messages it sends or receives: (way, peer, bytes)."""
    return {
        rank: Counter((type(op), op.peer, op.count * op.dtype.itemsize) for op in p.ops if isinstance(op, Send | Recv))
        for rank, p in job.programs.items()
    }


def lowered(job: Trace) -> dict[int, Counter[tuple[type, int, int]]]:
    """The same of what a replay sends."""
    counted: dict[int, Counter[tuple[type, int, int]]] = {}
    for rank, own in lower(job).ranks.items():
        counted[rank] = Counter()
        for op in own.ops:
            for task in op.schedule.tasks if isinstance(op, Transfer) else ():
                kind = {"Send": Send, "Recv": Recv}.get(type(task).__name__)
                if kind is not None and hasattr(task, "peer"):
                    counted[rank][kind, op.ranks[task.peer], task.count * op.call.itemsize] += 1
    return counted


def one_of_each(size: int, *, members: tuple[int, ...]) -> Trace:
    """Every kind of collective, of `members` of a job of `size` ranks, one behind the other."""
    groups = (Group(0, "0", tuple(range(size)), 0), Group(1, "1", members, 1))
    programs = {}
    for rank in range(size):
        ops: list[Op] = []
        for kind in CollectiveKind if rank in members else ():
            count = 0 if kind is CollectiveKind.BARRIER else 12 * len(members)
            ops += sync(Collective(kind, 1, count, DType.INT32, members[-1] if kind in ROOTED else -1), len(ops))
        programs[rank] = Program(rank, (*ops, Compute(3), StepMark(0)))
    return Trace(size, groups, programs, 1)


@pytest.mark.parametrize("name", ["goal", "smpi-ti"])
def test_messages_come_back_as_they_were(name: str) -> None:
    data, _ = export(PAIR, name)
    read = goal.read if name == "goal" else smpi.read

    assert read([Opened("x", data, "", True)]).programs == PAIR.programs


def test_goal_keeps_what_runs_beside_the_program() -> None:
    """The second step of the ring follows the first, not the compute that lies behind the start."""
    job = trace(*([reduce(64), Compute(1000), Wait(0), Compute(5), StepMark(0)] for _ in range(2)))
    ops = graphs(lower(job))[0]

    compute, after = [index for index, node in enumerate(ops) if isinstance(node.op, Compute)]
    assert ops[compute].after == ()
    messages = [index for index, node in enumerate(ops) if isinstance(node.op, Send | Recv)]
    assert len(messages) == 4
    assert all(compute not in ops[index].after for index in messages)
    assert compute in ops[after].after
    assert set(ops[after].after) & set(messages)


def test_a_lane_runs_one_operation_at_a_time() -> None:
    job = trace(*([reduce(64), reduce(32), Wait(0), Wait(1), StepMark(0)] for _ in range(2)))
    nodes = graphs(lower(job))[0]

    assert [node.after for node in nodes] == [(), (), (1,), (), (0, 2, 3), (0, 2, 3), (5,), (0, 2, 3), (4, 6, 7)]


@pytest.mark.parametrize(("size", "members"), [(2, (0, 1)), (4, (0, 1, 2, 3)), (5, (1, 2, 4)), (7, tuple(range(7)))])
def test_goal_holds_the_messages_of_every_collective_and_runs(size: int, members: tuple[int, ...]) -> None:
    job = one_of_each(size, members=members)
    again = goal_again(job)

    assert sizes(again) == lowered(job)
    assert stuck(again.programs) == {}
    assert is_replayable(check(again))
    assert [op for op in again.programs[0].ops if isinstance(op, Compute)] == [Compute(3)]


@pytest.mark.parametrize(("size", "members"), [(3, (0, 1)), (5, (1, 2, 4)), (9, (8, 0, 1, 2, 3, 4, 5))])
def test_smpi_gets_messages_for_groups_that_it_has_not(size: int, members: tuple[int, ...]) -> None:
    job = one_of_each(size, members=members)
    simple, number = on_world(job, lower(job))
    data, _ = export(job, "smpi-ti")
    again = smpi.read([Opened("x", data, "", True)])

    assert number == len(CollectiveKind) * len(members)
    assert sizes(again) == lowered(job)
    assert stuck(simple.programs) == {}
    assert again.programs == simple.programs


def test_tags_that_would_not_tell_messages_apart_are_given_anew() -> None:
    """SMPI names a request by both ranks and the tag."""
    job = trace(
        [Send(1, 5), Send(1, 6), Wait(1), Wait(0), StepMark(0)], [Recv(0, 5), Recv(0, 6), Wait(0), Wait(1), StepMark(0)]
    )
    again = smpi.read([Opened("x", export(job, "smpi-ti")[0], "", True)])

    assert again.programs[0].ops == (Send(1, 5, tag=0), Send(1, 6, tag=1), Wait(1), Wait(0), StepMark(0))
    assert again.programs[1].ops[:2] == (Recv(0, 5, tag=0), Recv(0, 6, tag=1))


def test_chakra_keeps_collectives_groups_and_what_runs_beside(tmp_path: Path) -> None:
    byte = DType.UINT8
    bucket = Collective(CollectiveKind.ALL_REDUCE, 0, 400, byte, name="bucket")
    shard = Collective(CollectiveKind.REDUCE_SCATTER, 1, 8, byte, name="shard")
    even = Collective(CollectiveKind.ALL_TO_ALL, 1, 8, byte, name="even")
    pair = [bucket, Compute(7000, "forward"), Wait(0), shard, Wait(3), even, Wait(5), StepMark(2)]
    one = [bucket, Compute(9000, "forward"), Wait(0), Recv(0, 5, tag=3, name="p2p"), Wait(3), StepMark(2)]
    zero = [*pair[:-1], Send(1, 5, tag=3, name="p2p"), Wait(7), StepMark(2)]
    job = trace(zero, one, pair, groups=[(0, 2)])
    files, said = export(job, "chakra")
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    again = import_files([tmp_path])

    assert set(files) == {"trace.0.et", "trace.1.et", "trace.2.et", "comm_group.json"}
    assert again.programs == job.programs
    assert [group.ranks for group in again.groups] == [(0, 1, 2), (0, 2)]
    assert said == ()
    assert [finding.code for finding in again.findings] == ["assumed-reduce-op"]


def test_chakra_of_a_recorded_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tracebed("export", SAMPLE, "--to", "chakra", "-o", tmp_path / "et", "--json") == 0
    said = json.loads(capsys.readouterr().out)["findings"]
    again, job = import_files([tmp_path / "et"]), archive.read(SAMPLE)

    assert [(f["code"], f["message"].split()[0]) for f in said] == [("lost-dtype", "112"), ("rounded", "191")]
    for rank, program in again.programs.items():
        ops = job.programs[rank].ops
        assert [type(op) for op in program.ops] == [type(op) for op in ops]
        for mine, theirs in zip(program.ops, ops, strict=True):
            if isinstance(theirs, Collective):
                assert (mine.kind, mine.count) == (theirs.kind, theirs.count * theirs.dtype.itemsize)
            if isinstance(theirs, Compute):
                assert abs(mine.ns - theirs.ns) <= 500


def test_what_smpi_does_not_say_is_said() -> None:
    most = Collective(CollectiveKind.ALL_REDUCE, 0, 10, DType.BFLOAT16, reduce_op="max")
    job = trace(
        *([most, Compute(5), Wait(0), reduce(4, group=1), Wait(3), StepMark(0)] for _ in range(2)), groups=[(1, 0)]
    )
    _, findings = export(job, "smpi-ti")

    assert [(f.code, f.message.split()[0]) for f in findings] == [
        ("as-messages", "2"), ("lost-dtype", "2"), ("lost-overlap", "2"), ("lost-reduce-op", "2"), ("speed", "2"),
    ]  # fmt: skip


def test_a_count_that_smpi_can_not_hold() -> None:
    job = trace(*([*sync(reduce(1 << 31)), StepMark(0)] for _ in range(2)))

    with pytest.raises(TraceError, match="rank 0, op 0: a count of 2147483648 is beyond SMPI's"):
        export(job, "smpi-ti")


@pytest.mark.parametrize("op", [reduce(1 << 61), Collective(CollectiveKind.ALL_GATHER, 0, 1 << 40), Send(1, 1 << 61)])
def test_an_operation_that_no_job_has_is_refused_before_it_is_cut_into_messages(op: Collective | Send) -> None:
    other = Recv(0, op.count) if isinstance(op, Send) else op
    job = trace([op, Wait(0), StepMark(0)], [other, Wait(0), StepMark(0)], world_size=2)

    moved = op.count * {"all_reduce": 4, "all_gather": 2}.get(getattr(op, "kind", ""), 1)
    with pytest.raises(TraceError, match=f"rank 0, op 0: .* of {moved} bytes is more than 1048576 messages"):
        export(job, "goal")


def test_more_messages_than_a_file_can_have() -> None:
    """Each of 120 operations is of some 40,000 messages at a rank, in schedules that are shared."""
    ops: list[Op] = [op for number in range(120) for op in sync(reduce(20_000 << 18), 2 * number)]

    with pytest.raises(TraceError, match=r"more than 4194304 messages \(write fewer steps or ranks: tracebed scale\)"):
        export(trace([*ops, StepMark(0)], [*ops, StepMark(0)]), "goal")


@pytest.mark.parametrize("name", ["goal", "chakra", "smpi-ti"])
def test_what_ranks_do_not_agree_on_is_not_written(name: str) -> None:
    with pytest.raises(TraceError, match="rank 1 has no operation to match it"):
        export(trace([*sync(Send(1, 5)), StepMark(0)], [Compute(5), StepMark(0)]), name)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, collectives in (("goal", 0), ("smpi-ti", 28)):
        file, made = tmp_path / f"job.{name}", tmp_path / "made.trace"
        assert tracebed("export", SAMPLE, "--to", name, "-o", file, "--json") == 0
        said = json.loads(capsys.readouterr().out)
        assert (said["format"], said["bytes"]) == (name, file.stat().st_size)
        assert tracebed("import", file, "-o", made) == 0
        capsys.readouterr()
        again, job = archive.read(made), archive.read(SAMPLE)
        assert (again.world_size, again.step_count, again.sources[0].format) == (4, 4, name)
        for rank, program in again.programs.items():
            assert sum(isinstance(op, Collective) for op in program.ops) == collectives
            assert sum(op.ns for op in program.ops if isinstance(op, Compute)) == sum(
                op.ns for op in job.programs[rank].ops if isinstance(op, Compute)
            )
        assert is_replayable(check(again))


def test_a_format_that_can_not_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tracebed("export", SAMPLE, "--to", "kineto", "-o", tmp_path / "x") == 2
    known = "goal, chakra, smpi-ti, param, perfetto, csv, parquet"
    assert capsys.readouterr().err == f"tracebed: can't write 'kineto' (known: {known})\n"


def test_files_of_two_formats_are_not_one_job(tmp_path: Path) -> None:
    for name in ("goal", "smpi-ti"):
        (tmp_path / f"{name}.txt").write_bytes(export(PAIR, name)[0])

    with pytest.raises(TraceError, match=r"smpi-ti.txt: is smpi-ti, and goal.txt is goal: not of one job"):
        import_files([tmp_path])


def test_simgrid_runs_every_collective(tmp_path: Path, needs: Callable[..., None]) -> None:
    needs("smpirun")
    for size, members in ((4, (0, 1, 2, 3)), (5, (1, 2, 4))):
        assert simulated_s(one_of_each(size, members=members), tmp_path) > 0
    uneven = trace(*([*sync(exchange(s, r)), StepMark(0)] for s, r in (((1, 2), (1, 5)), ((5, 0), (2, 0)))))
    assert simulated_s(uneven, tmp_path) > 0


def test_simgrid_takes_the_time_that_the_trace_says(tmp_path: Path, needs: Callable[..., None]) -> None:
    """0.25 s of compute, 12.5 MB over 1 Gbit/s (0.1 s; SMPI gives a message 92 % of the link) and 0.5 s after it."""
    needs("smpirun")
    job = trace(
        [Compute(250_000_000), *sync(Send(1, RATE // 10), 1), StepMark(0)],
        [*sync(Recv(0, RATE // 10), 0), Compute(500_000_000), StepMark(0)],
    )

    assert simulated_s(job, tmp_path) == pytest.approx(0.85, rel=0.05)


def test_simgrid_replays_a_recorded_job(tmp_path: Path, needs: Callable[..., None]) -> None:
    """It can't be faster than the rank that computes longest and the bytes that a link must carry for the all_reduces."""
    needs("smpirun")
    job = archive.read(SAMPLE)
    compute = max(sum(op.ns for op in p.ops if isinstance(op, Compute)) for p in job.programs.values())
    carried = 4 * 4 * 25_557_032 * 2 * 3 // 4

    assert simulated_s(job, tmp_path) > compute / 1e9 + carried / RATE
