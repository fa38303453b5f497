"""The engine's rules, in model time: lanes, waits, compute deadlines, what it records and what it says it waits for."""

from __future__ import annotations

from replay.engine import Engine, Finished, PostRecv, SetTimer, StartSend, StepDone
from replay.plan import Stream, lower
from tests.replay.network import Network, run, trace_of
from traces.program import Collective, CollectiveKind, Compute, Group, Op, Recv, Send, StepMark, Wait

PAIR = Group(0, "pair", (0, 1), 0)
OTHER = Group(1, "other", (0, 1), 1)
SAME = Group(2, "same lane", (0, 1), 0)


def broadcast(count: int, group: int = 0) -> Collective:
    """Takes `count` ns on the model network, from rank 0 to rank 1."""
    return Collective(CollectiveKind.BROADCAST, group, count, root=0)


def both(*ops: Op, groups: tuple[Group, ...] = (PAIR, OTHER, SAME), **options: int) -> Network:
    return run(trace_of({0: ops, 1: ops}, groups), **options)


def times(network: Network, rank: int) -> list[tuple[int, int, int]]:
    records = network.engines[rank].records
    return list(zip(records.issued, records.began, records.ended, strict=True))


def test_a_wait_blocks_until_its_operation_has_ended() -> None:
    network = both(Compute(10), broadcast(100), Compute(30), Wait(1), StepMark(0), delay=5)
    assert times(network, 1) == [(0, 0, 10), (10, 10, 115), (10, 10, 40), (40, 40, 115), (115, 115, 115)]
    assert (1, StepDone(0, 115, 75)) in network.steps


def test_a_wait_for_what_has_ended_takes_no_time() -> None:
    network = both(broadcast(100), Compute(300), Wait(0), StepMark(0))
    assert times(network, 1)[2] == (300, 300, 300)
    assert (1, StepDone(0, 300, 0)) in network.steps


def test_exposed_time_starts_anew_with_each_step() -> None:
    network = both(broadcast(100), Wait(0), StepMark(0), broadcast(40), Wait(3), StepMark(1))
    assert [step for rank, step in network.steps if rank == 1] == [StepDone(0, 100, 100), StepDone(1, 140, 40)]


def test_one_lane_runs_in_order_two_lanes_overlap() -> None:
    """The lanes share the sender's egress here, so only the moment of beginning tells them apart."""
    network = both(broadcast(100), broadcast(50, group=2), broadcast(50, group=1), Wait(0), Wait(1), Wait(2))
    began = [began for _, began, _ in times(network, 1)[:3]]
    assert began == [0, 100, 0]
    assert times(network, 1)[1] == (0, 100, 200)


def test_point_to_point_passes_a_collective_of_its_group() -> None:
    sender = (broadcast(1000), Send(1, 10), Wait(0), Wait(1))
    programs = {0: sender, 1: (Recv(0, 10), Wait(0), broadcast(1000), Wait(2))}
    network = run(trace_of(programs, (PAIR,)))
    assert times(network, 1)[0] == (0, 0, 1010)
    assert times(network, 0)[1][:2] == (0, 0)


def test_sends_do_not_queue_behind_an_unrelated_peer() -> None:
    programs = {
        0: (Recv(1, 5), Recv(2, 5), Wait(1), Wait(0)),
        1: (Compute(500), Send(0, 5), Wait(1)),
        2: (Send(0, 5), Wait(0)),
    }
    assert times(run(trace_of(programs)), 0)[2] == (0, 0, 5)


def test_an_operation_without_a_wait_still_ends() -> None:
    network = both(broadcast(100), StepMark(0))
    assert network.engines[1].finished
    assert times(network, 1) == [(0, 0, 100), (0, 0, 0)]


def plan_of(*ops: Op) -> Engine:
    return Engine(lower(trace_of({0: ops, 1: ops}, (PAIR,))).ranks[1])


def test_a_late_timer_does_not_shift_what_follows() -> None:
    engine = plan_of(Compute(100), Compute(100), StepMark(0), Compute(100))
    assert engine.start(1000) == [SetTimer(1100)]
    assert engine.timer(1130) == [SetTimer(1200)]
    assert engine.timer(1350) == [StepDone(0, 1200, 0), Finished()]
    assert list(engine.records.ended) == [1100, 1200, 1200, 1300]


def test_a_start_that_is_late_counts_from_when_it_was_due() -> None:
    engine = plan_of(Compute(100), broadcast(8), Wait(1))
    engine.start(0)
    key = lower(trace_of({0: (broadcast(8),), 1: (broadcast(8),)}, (PAIR,))).ranks[1].ops[0]
    assert engine.timer(180) == [PostRecv(Stream(0, 0, False), key.number << 24, 8, None)]  # type: ignore[union-attr]
    assert list(engine.records.began) == [0, 100, 100]
    assert engine.received(Stream(0, 0, False), 0, 250) == [Finished()]
    assert list(engine.records.ended) == [100, 250, 250]


def test_what_it_waits_for() -> None:
    named = Collective(CollectiveKind.BROADCAST, 0, 8, root=0, name="x")
    engine = plan_of(Compute(5), named, named, Wait(2))
    engine.start(0)
    assert engine.blocked() == "rank 1 computes"
    engine.timer(5)
    assert engine.blocked() == "rank 1 waits for message 0 of broadcast 'x' from rank 0, before broadcast 'x'"
    engine.received(Stream(0, 0, False), 0, 9)
    assert engine.blocked() == "rank 1 waits for message 0 of broadcast 'x' from rank 0"
    assert engine.received(Stream(0, 0, False), 1 << 24, 9) == [Finished()]
    assert engine.blocked() == "rank 1 has finished"


def test_a_sender_waits_for_room() -> None:
    engine = Engine(lower(trace_of({0: (Send(1, 9, name="act"),), 1: (Recv(0, 9, name="act"),)})).ranks[0])
    assert engine.start(0) == [StartSend(Stream(1, 0, True), 0, 9, None)]
    assert engine.blocked() == "rank 0 waits for room to send message 0 of send 'act' to rank 1"


def test_the_same_run_gives_the_same_records() -> None:
    def once() -> list[list[tuple[int, int, int]]]:
        network = both(broadcast(100), Compute(7), broadcast(31, group=1), Wait(0), Wait(2), segment=16, delay=3)
        return [times(network, rank) for rank in (0, 1)]

    assert once() == once()
