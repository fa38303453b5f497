"""Ranks that wait for each other are found, with the cycle and the operations in it."""

from __future__ import annotations

from dataclasses import replace

from tests.traces.build import reduce, sync, trace
from traces.checks import check, is_replayable
from traces.checks.deadlock import deadlock
from traces.program import Collective, CollectiveKind, Compute, Recv, Send, Trace, Wait


def found(subject: Trace) -> list[tuple[str, int, int]]:
    return [(finding.code, finding.rank, finding.op) for finding in deadlock(subject)]


def rooted(kind: CollectiveKind, root: int, group: int = 0) -> Collective:
    return Collective(kind, group, 4, root=root)


BROADCAST = CollectiveKind.BROADCAST


def test_two_collectives_of_a_group_in_different_order() -> None:
    first, second = reduce(), rooted(BROADCAST, 0)
    (said,) = deadlock(trace((first, second), (second, first)))
    assert (said.code, said.severity, said.replayable) == ("deadlock", "error", False)
    assert said.message == (
        "ranks wait for each other for ever: all_reduce (op 0) at rank 0 waits for rank 1, "
        "broadcast (op 0) at rank 1 waits for rank 0; stuck: rank 0-1"
    )


def test_groups_that_go_round() -> None:
    """Three pairs of three ranks; each rank waits for one pair before it starts the other."""

    def rank(first: int, second: int) -> tuple[Collective | Wait, ...]:
        return (*sync(reduce(group=first)), *sync(reduce(group=second), 2))

    groups = [(0, 1), (1, 2), (2, 0)]
    (said,) = deadlock(trace(rank(1, 3), rank(2, 1), rank(3, 2), groups=groups))
    assert said.message.count("all_reduce (op 0)") == 3
    assert found(trace(rank(1, 3), rank(1, 2), rank(2, 3), groups=groups)) == []


def test_groups_of_one_lane_in_different_order() -> None:
    ahead, behind = (reduce(group=1), reduce(group=2)), (reduce(group=2), reduce(group=1))
    apart = trace(ahead, behind, groups=[(0, 1), (0, 1)])
    assert found(apart) == []
    shared = replace(apart, groups=tuple(replace(group, lane=0) for group in apart.groups))
    assert found(shared) == [("deadlock", 0, 0)]


def test_receives_that_come_before_the_sends() -> None:
    def rank(peer: int) -> tuple[Send | Recv | Wait, ...]:
        return Recv(peer, 4), Wait(0), Send(peer, 4), Wait(2)

    assert found(trace(rank(1), rank(0))) == [("deadlock", 0, 0)]


def test_sends_that_meet_are_stuck_only_where_a_send_waits_for_its_receiver() -> None:
    def rank(peer: int) -> tuple[Send | Recv | Wait, ...]:
        return Send(peer, 4), Wait(0), Recv(peer, 4), Wait(2)

    both = trace(rank(1), rank(0))
    assert found(both) == [("deadlock-unbuffered", 0, 0)]
    assert is_replayable(check(both))
    started_first = [(Send(peer, 4), Recv(peer, 4), Wait(0), Wait(1)) for peer in (1, 0)]
    assert found(trace(*started_first)) == []


def test_a_root_need_not_wait_for_those_it_sends_to() -> None:
    """Rank 0 broadcasts and then sends; rank 1 receives first."""
    root = (*sync(rooted(BROADCAST, 0)), Send(1, 4), Wait(2))
    other = (Recv(0, 4), Wait(0), *sync(rooted(BROADCAST, 0), 2))
    assert found(trace(root, other)) == [("deadlock-unbuffered", 0, 0)]
    theirs = [tuple(replace(op, root=1) if isinstance(op, Collective) else op for op in ops) for ops in (root, other)]
    assert found(trace(*theirs)) == [("deadlock", 0, 0)]


def test_only_the_root_of_a_reduce_needs_the_others() -> None:
    kind = CollectiveKind.REDUCE
    leaf = (*sync(rooted(kind, 1)), Send(1, 4), Wait(2))
    root = (Recv(0, 4), Wait(0), *sync(rooted(kind, 1), 2))
    assert found(trace(leaf, root)) == [("deadlock-unbuffered", 0, 0)]
    swapped = [tuple(replace(op, root=0) if isinstance(op, Collective) else op for op in ops) for ops in (leaf, root)]
    assert found(trace(*swapped)) == [("deadlock", 0, 0)]


def test_what_a_rank_never_takes_part_in_holds_up_the_others() -> None:
    late = (Recv(0, 4), Wait(0), *sync(reduce(), 2))
    (said,) = deadlock(trace((Compute(1), *sync(reduce(), 1)), late, sync(reduce())))
    assert (said.code, said.rank, said.op) == ("never-ends", 1, 0)
    assert said.message == "recv (op 0) at rank 1 never ends: nothing at rank 0 is for it; stuck: rank 0-2"


def test_what_is_not_waited_for_must_end_too() -> None:
    assert found(trace([reduce()], [Compute(1)])) == [("never-ends", 0, 0)]


def test_nothing_is_said_of_a_job_that_is_not_whole() -> None:
    assert found(trace(sync(reduce()), world_size=2)) == []


def test_ten_thousand_operations_behind_each_other_need_no_deep_stack() -> None:
    """A lane that fills while one rank waits, and then ends in one go."""
    many = [reduce() for _ in range(10_000)]
    assert found(trace([Recv(1, 4), Wait(0), *many], [*many, Send(0, 4)])) == []


def test_a_root_outside_its_group_is_waited_for_in_vain() -> None:
    """Rank 0 has the call too, but not as a member."""
    call = rooted(BROADCAST, 0, group=1)
    (said,) = deadlock(trace([call], [Compute(1)], [call], groups=[(1, 2)]))
    assert said.message == "broadcast (op 0) at rank 2 never ends: nothing at rank 0 is for it; stuck: rank 2"
