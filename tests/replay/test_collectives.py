"""Every collective, with real tensors, over the model network: each element of each result is compared by `Verified`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from emulator.errors import BedError
from replay.collectives.registry import choose, schedule_of
from replay.collectives.schedule import Call, Copy, Recv, Send, part, segments
from replay.plan import RankPlan, Transfer, lower
from tests.replay.network import Network, StuckError, everywhere, run, trace_of
from traces.errors import TraceError
from traces.program import ROOTED, Collective, CollectiveKind, Compute, DType, Group, Wait
from traces.program import Recv as RecvOp
from traces.program import Send as SendOp

SIZES = (2, 3, 5, 8)
COUNTS = (0, 1, 7, 1000)
SEGMENT = 256
REDUCING = (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE, CollectiveKind.REDUCE_SCATTER)


def all_to_all(size: int, rank: int, seed: int) -> Collective:
    """An all-to-all-v whose blocks differ, some of them empty."""
    random = np.random.default_rng(seed)
    sizes = random.integers(0, 40, (size, size)) * random.integers(0, 2, (size, size))
    send, recv = tuple(map(int, sizes[rank])), tuple(map(int, sizes[:, rank]))
    return Collective(CollectiveKind.ALL_TO_ALL, 0, sum(send), DType.INT32, send_splits=send, recv_splits=recv)


def calls(kind: CollectiveKind, size: int, count: int) -> Iterator[Collective]:
    if kind is CollectiveKind.ALL_TO_ALL:
        yield Collective(kind, 0, count * size, DType.FLOAT32)
        return
    if kind is CollectiveKind.BARRIER:
        yield Collective(kind, 0, 0)
        return
    for root in range(size) if kind in ROOTED else (-1,):
        yield Collective(kind, 0, count, DType.FLOAT32, root=root)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", list(CollectiveKind))
def test_every_result_is_right(kind: CollectiveKind, size: int, count: int) -> None:
    for op in calls(kind, size, count):
        network = run(everywhere(op, size), segment=SEGMENT, delay=50, verify=True)
        expected = {
            CollectiveKind.ALL_REDUCE: size * count,
            CollectiveKind.BROADCAST: size * count,
            CollectiveKind.REDUCE: count,
            CollectiveKind.REDUCE_SCATTER: size * count,
            CollectiveKind.SCATTER: size * count,
            CollectiveKind.GATHER: size * count,
            CollectiveKind.ALL_GATHER: size * size * count,
            CollectiveKind.ALL_TO_ALL: size * size * count,
            CollectiveKind.BARRIER: 0,
        }
        assert sum(payload.checked for payload in network.payloads.values()) == expected[kind]


@pytest.mark.parametrize("size", SIZES)
def test_uneven_all_to_all(size: int) -> None:
    total = 0
    for seed in range(5):
        trace = trace_of({rank: (all_to_all(size, rank, seed), Wait(0)) for rank in range(size)})
        network = run(trace, delay=10, verify=True)
        received = sum(sum(all_to_all(size, rank, seed).recv_splits) for rank in range(size))
        assert sum(payload.checked for payload in network.payloads.values()) == received
        total += received
    assert total > 0


@pytest.mark.parametrize("kind", list(CollectiveKind))
def test_a_group_of_one_sends_nothing(kind: CollectiveKind) -> None:
    op = Collective(kind, 0, 0 if kind is CollectiveKind.BARRIER else 9, DType.INT16, root=0 if kind in ROOTED else -1)
    network = run(everywhere(op, 1), verify=True)
    assert network.sent_bytes == {0: 0}
    assert network.engines[0].records.ended[1] == 0


@pytest.mark.parametrize("kind", [kind for kind in CollectiveKind if kind is not CollectiveKind.BARRIER])
def test_sub_groups_in_any_order_of_ranks(kind: CollectiveKind) -> None:
    groups = (Group(3, "odd", (5, 1, 3), 0), Group(4, "even", (0, 4, 2), 1))
    programs = {}
    for group in groups:
        root = group.ranks[1] if kind in ROOTED else -1
        for rank in group.ranks:
            programs[rank] = (Collective(kind, group.id, 12, DType.INT32, root=root), Wait(0))
    network = run(trace_of(programs, groups), segment=8, delay=5, verify=True)
    assert sum(payload.checked for payload in network.payloads.values()) > 0
    for rank in programs:
        assert all(stream.peer % 2 == rank % 2 for stream in lower(trace_of(programs, groups)).ranks[rank].streams())


@pytest.mark.parametrize("reduce_op", ["sum", "avg", "min", "max", "product"])
@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("kind", REDUCING)
def test_every_dtype_and_reduction(kind: CollectiveKind, dtype: DType, reduce_op: str) -> None:
    for size in (3, 18):
        op = Collective(kind, 0, 101, dtype, root=1 if kind is CollectiveKind.REDUCE else -1, reduce_op=reduce_op)
        network = run(everywhere(op, size), segment=64, verify=True)
        assert network.payloads[1].checked > 0


def test_an_unknown_reduction_is_refused_before_it_runs() -> None:
    op = Collective(CollectiveKind.ALL_REDUCE, 0, 4, reduce_op="median")
    with pytest.raises(TraceError, match="rank 0, op 0: can't verify reduction 'median'"):
        run(everywhere(op, 2), verify=True)


def test_point_to_point() -> None:
    programs = {
        0: (SendOp(1, 5, DType.FLOAT32), SendOp(1, 0, DType.FLOAT32, tag=9), Wait(0), Wait(1)),
        1: (RecvOp(0, 0, DType.FLOAT32, tag=9), RecvOp(0, 5, DType.FLOAT32), Wait(0), Wait(1)),
    }
    assert run(trace_of(programs), verify=True).payloads[1].checked == 5


@pytest.mark.parametrize("damage", ["lose", "offset"])
def test_a_wrong_schedule_is_found(damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check itself can fail: a receive that forgets to reduce, or writes one element too far, is named."""
    real = schedule_of

    def damaged(call: Call):  # type: ignore[no-untyped-def]
        schedule = real(call)
        if call.me != 1:
            return schedule
        at = next(index for index, task in enumerate(schedule.tasks) if isinstance(task, Recv))
        task = schedule.tasks[at]
        assert isinstance(task, Recv)
        worse = replace(task, reduce=False) if damage == "lose" else replace(task, offset=task.offset + 1)
        return type(schedule)((*schedule.tasks[:at], worse, *schedule.tasks[at + 1 :]), schedule.elements)

    monkeypatch.setattr("replay.plan.schedule_of", damaged)
    with pytest.raises(BedError, match=r"rank \d, op 0 all_reduce 'x': element \d+ .* expected"):
        run(everywhere(Collective(CollectiveKind.ALL_REDUCE, 0, 64, DType.FLOAT32, name="x"), 4), verify=True)


@pytest.mark.parametrize("size", [2, 3, 5, 8, 9])
@pytest.mark.parametrize("kind", list(CollectiveKind))
def test_the_nth_send_of_a_pair_is_its_nth_receive(kind: CollectiveKind, size: int) -> None:
    plan = lower(everywhere(next(calls(kind, size, 1003)), size), segment=512)
    flows: dict[tuple[int, int], list[list[int]]] = {}
    for rank, own in plan.ranks.items():
        for task in transfer(own).schedule.tasks:
            if isinstance(task, Send):
                flows.setdefault((rank, task.peer), [[], []])[0].append(task.count)
            elif isinstance(task, Recv):
                flows.setdefault((task.peer, rank), [[], []])[1].append(task.count)
    assert flows
    for sent, received in flows.values():
        assert sent == received


def transfer(plan: RankPlan) -> Transfer:
    op = plan.ops[0]
    assert isinstance(op, Transfer)
    return op


@pytest.mark.parametrize("size", SIZES)
def test_bytes_on_the_wire(size: int) -> None:
    """What each algorithm's docstring says a rank sends."""
    count = 64 * size

    def sent(kind: CollectiveKind, root: int = -1) -> list[int]:
        return list(run(everywhere(Collective(kind, 0, count, root=root), size), segment=SEGMENT).sent_bytes.values())

    assert sent(CollectiveKind.ALL_REDUCE) == [2 * (size - 1) * count // size] * size
    assert sent(CollectiveKind.ALL_GATHER) == [(size - 1) * count] * size
    assert sent(CollectiveKind.REDUCE_SCATTER) == [(size - 1) * count] * size
    assert sent(CollectiveKind.ALL_TO_ALL) == [(size - 1) * count // size] * size
    assert sorted(sent(CollectiveKind.BROADCAST, 1)) == [0] + [count] * (size - 1)
    assert sent(CollectiveKind.REDUCE, 1)[1] == 0
    assert sent(CollectiveKind.GATHER, 1)[1] == 0
    assert sent(CollectiveKind.SCATTER, 1)[1] == (size - 1) * count


@pytest.mark.parametrize("size", SIZES)
def test_ring_time_without_pipelining_is_the_formula(size: int) -> None:
    """2(N-1) x (chunk time + delay): with one message a chunk, a step starts when the chunk of the last one has come."""
    chunk, delay = 1000, 70
    network = run(everywhere(Collective(CollectiveKind.ALL_REDUCE, 0, chunk * size), size), delay=delay)
    assert network.now == 2 * (size - 1) * (chunk + delay)


@pytest.mark.parametrize("size", SIZES)
def test_a_pipelined_ring_keeps_the_wire_busy(size: int) -> None:
    """Cut into segments that outlast the delay, the chunks follow each other without a gap: the delay counts once."""
    chunk, delay = 1000, 70
    trace = everywhere(Collective(CollectiveKind.ALL_REDUCE, 0, chunk * size), size)
    assert run(trace, segment=100, delay=delay).now == 2 * (size - 1) * chunk + delay


@pytest.mark.parametrize("size", SIZES)
def test_barrier_holds_everyone_for_the_last(size: int) -> None:
    """Whoever comes last, nobody leaves before."""
    barrier = Collective(CollectiveKind.BARRIER, 0, 0)
    for last in range(size):
        programs = {rank: (Compute(1000 if rank == last else rank), barrier, Wait(1)) for rank in range(size)}
        network = run(trace_of(programs), delay=3)
        assert min(engine.records.ended[2] for engine in network.engines.values()) >= 1000


def test_parts_and_segments_cover_everything_once() -> None:
    for count in (0, 1, 5, 1000):
        spans = [part(count, 7, index) for index in range(7)]
        assert [offset for offset, _ in spans] == [sum(size for _, size in spans[:i]) for i in range(7)]
        assert sum(size for _, size in spans) == count
        assert max(size for _, size in spans) - min(size for _, size in spans) <= 1
        call = Call("all_reduce", "ring", 2, 0, count, itemsize=8, segment=100)
        pieces = list(segments(call, 3, count))
        assert sum(size for _, size in pieces) == count
        assert all(0 < size * 8 <= 100 for _, size in pieces)


def test_equal_calls_share_their_schedule() -> None:
    trace = trace_of({rank: tuple(Collective(CollectiveKind.ALL_REDUCE, 0, 99) for _ in range(3)) for rank in range(2)})
    first, second, _ = lower(trace).ranks[0].ops
    assert isinstance(first, Transfer)
    assert isinstance(second, Transfer)
    assert first.schedule is second.schedule


def test_an_unknown_algorithm_lists_the_known() -> None:
    with pytest.raises(TraceError, match="known: ring"):
        choose(CollectiveKind.ALL_REDUCE, "telepathy")


def test_copies_stay_inside_the_rank() -> None:
    schedule = schedule_of(Call("all_to_all", "pairwise", 2, 0, 3, 1, 99, send_splits=(2, 1), recv_splits=(2, 4)))
    assert schedule.tasks[0] == Copy(0, 3, 2)
    assert schedule.elements == 9


def test_the_harness_finds_a_deadlock() -> None:
    """Two ranks that start two collectives of one lane in opposite order never end; each says what it lacks."""
    groups = (Group(0, "a", (0, 1), 0), Group(1, "b", (0, 1), 0))
    a, b = (Collective(CollectiveKind.ALL_REDUCE, group, 8, name=name) for group, name in ((0, "a"), (1, "b")))
    trace = trace_of({0: (a, b, Wait(0), Wait(1)), 1: (b, a, Wait(0), Wait(1))}, groups)
    with pytest.raises(StuckError, match=r"rank 0 waits for message 0 of all_reduce 'a' from rank 1; rank 1 .* 'b'"):
        Network(lower(trace)).run()
