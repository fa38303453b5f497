"""Lowering: what ranks must agree on, and how operations are numbered."""

from __future__ import annotations

from pathlib import Path

import pytest

from replay.collectives.schedule import Recv as RecvTask
from replay.collectives.schedule import Send as SendTask
from replay.plan import RankPlan, Stream, Transfer, lower
from tests.replay.network import trace_of
from traces.archive import read
from traces.errors import TraceError
from traces.program import Collective, CollectiveKind, Compute, DType, Group, Recv, Send, StepMark, Trace, Wait

SAMPLE = Path(__file__).parents[2] / "traces" / "samples" / "resnet50-ddp.trace"
AR = Collective(CollectiveKind.ALL_REDUCE, 0, 64, DType.FLOAT32, name="grads")
GROUPS = (Group(0, "world", (0, 1, 2), 0), Group(1, "pair", (2, 0), 7))


def transfers(plan: RankPlan) -> list[Transfer]:
    return [op for op in plan.ops if isinstance(op, Transfer)]


def test_the_sample_lowers_with_its_indices() -> None:
    trace = read(SAMPLE)
    plan = lower(trace)
    for rank, program in trace.programs.items():
        for planned, op in zip(plan.ranks[rank].ops, program.ops, strict=True):
            assert (planned.op if isinstance(planned, Transfer) else planned) is op
    assert plan.ranks[0].streams() == [Stream(1, 0, False), Stream(3, 0, False)]


def test_an_operation_has_one_number_at_all_its_ranks() -> None:
    pair = Collective(CollectiveKind.BROADCAST, 1, 5, root=2)
    trace = trace_of({0: (pair, AR, pair), 1: (AR,), 2: (AR, pair, pair)}, GROUPS)
    plan = lower(trace)
    names = {rank: [(t.op.group, t.number) for t in transfers(own)] for rank, own in plan.ranks.items()}
    world = names[1][0]
    assert names[0][1] == names[2][0] == world
    assert [names[0][0], names[0][2]] == [names[2][1], names[2][2]]
    assert len({number for own in names.values() for _, number in own}) == 3
    assert transfers(plan.ranks[0])[0].call.root == 0
    assert plan.ranks[0].streams() == [Stream(1, 0, False), Stream(2, 0, False), Stream(2, 7, False)]


def test_sends_meet_receives_by_tag_then_by_order() -> None:
    a, b, c = (Send(1, count, tag=tag) for count, tag in ((10, 0), (20, 5), (30, 0)))
    x, y, z = (Recv(0, count, tag=tag) for count, tag in ((20, 5), (10, 0), (30, 0)))
    plan = lower(trace_of({0: (a, b, c), 1: (x, y, z)}))
    sent = {t.number: t.op.count for t in transfers(plan.ranks[0])}
    assert sent == {t.number: t.op.count for t in transfers(plan.ranks[1])}
    assert isinstance(transfers(plan.ranks[0])[0].schedule.tasks[0], SendTask)
    assert isinstance(transfers(plan.ranks[1])[0].schedule.tasks[0], RecvTask)
    assert plan.ranks[1].streams() == [Stream(0, 0, True)]


def test_segments_and_item_sizes() -> None:
    plan = lower(trace_of(dict.fromkeys(range(2), (AR,))), segment=64)
    assert all(task.count * 4 <= 64 for task in transfers(plan.ranks[0])[0].schedule.tasks)


def wrong(programs: dict[int, tuple[Collective | Send | Recv | Wait | Compute | StepMark, ...]]) -> Trace:
    return trace_of(programs, GROUPS)


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        (wrong({0: (AR,), 1: (AR,)}), "rank 0, op 0 'grads': rank 2 was not recorded"),
        (wrong({0: (AR, AR), 1: (AR, AR), 2: (AR,)}), "rank 0, op 1 'grads': rank 2 has no operation to match it"),
        (
            wrong({0: (AR,), 1: (AR,), 2: (Collective(CollectiveKind.ALL_REDUCE, 0, 65, DType.FLOAT32),)}),
            "rank 0, op 0 'grads': expected all_reduce (sum, root -1) of 65 float32 as at rank 2, op 0",
        ),
        (wrong({0: (Send(1, 8),), 1: (Recv(0, 9),), 2: ()}), "expected recv of 9 uint8 as at rank 1, op 0"),
        (wrong({0: (Send(1, 8),), 1: (), 2: ()}), "rank 0, op 0: rank 1 has no operation to match it"),
        (wrong({0: (Send(0, 8),), 1: (), 2: ()}), "a rank can't send to itself"),
        (wrong({0: (Send(1, 8, group=9),), 1: (), 2: ()}), "group 9 is not in the trace"),
        (wrong({1: (Collective(CollectiveKind.BARRIER, 1, 0),)}), "rank 1 is not in group 'pair'"),
        (wrong({0: (Collective(CollectiveKind.BROADCAST, 1, 4, root=1),)}), "root 1 is not in group 'pair'"),
        (wrong({0: (Collective(CollectiveKind.ALL_TO_ALL, 1, 5),)}), "5 elements can't be split evenly over 2 ranks"),
        (
            wrong({0: (Collective(CollectiveKind.ALL_TO_ALL, 1, 5, send_splits=(5,), recv_splits=(1, 2)),)}),
            "expected 2 splits, found 1",
        ),
        (
            wrong(
                {
                    0: (Collective(CollectiveKind.ALL_TO_ALL, 1, 5, send_splits=(2, 3), recv_splits=(4, 3)),),
                    2: (Collective(CollectiveKind.ALL_TO_ALL, 1, 7, send_splits=(2, 5), recv_splits=(2, 2)),),
                }
            ),
            "rank 0, op 0: expects 4 elements from rank 2, which sends 5",
        ),
    ],
)
def test_ranks_that_do_not_agree_are_named(trace: Trace, message: str) -> None:
    with pytest.raises(TraceError) as error:
        lower(trace)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
