"""Each thing that can be wrong with a trace is found, with its rank and operation."""

from __future__ import annotations

import pytest

from tests.traces.build import exchange, reduce, sync, trace
from traces.checks import check, is_replayable
from traces.program import Collective, CollectiveKind, Compute, Recv, Send, StepMark, Trace, Wait


def found(subject: Trace) -> list[tuple[str, int, int]]:
    return [(finding.code, finding.rank, finding.op) for finding in check(subject)]


def test_a_sound_trace_has_no_findings() -> None:
    ops = (Compute(5), *sync(reduce(), 1), StepMark(0))
    assert check(trace(ops, ops)) == ()


def test_a_missing_rank_is_named_and_makes_replay_wrong() -> None:
    findings = check(trace(sync(reduce()), sync(reduce()), world_size=6))

    assert [(f.code, f.rank, f.replayable) for f in findings] == [("missing-rank", 2, False)]
    assert "rank 2-5 of a job of 6" in findings[0].message
    assert not is_replayable(findings)


def test_a_trace_without_communication_is_nothing_to_replay() -> None:
    assert found(trace([Compute(1)], [Compute(1)])) == [("no-communication", -1, -1)]


def test_an_operation_that_only_some_ranks_saw() -> None:
    longer = (*sync(reduce()), *sync(reduce(), 2))
    assert found(trace(longer, sync(reduce()))) == [("op-seen-by-some", 0, 2)]


def test_ranks_that_start_different_operations() -> None:
    other = Collective(CollectiveKind.BARRIER, 0, 0)
    assert found(trace(sync(reduce()), sync(other))) == [("op-seen-by-some", 1, 0)]


def test_groups_are_held_against_their_own_members_only() -> None:
    pair = (*sync(reduce(group=1)),)
    assert found(trace(pair, pair, [Compute(1)], groups=[(0, 1)])) == []
    assert found(trace(pair, pair, pair, groups=[(0, 1)])) == [("not-a-member", 2, 0)]


def test_sizes_that_disagree() -> None:
    assert found(trace(sync(reduce(8)), sync(reduce(9)))) == [("size-mismatch", 1, 0)]


def test_roots_that_disagree() -> None:
    def broadcast(root: int) -> Collective:
        return Collective(CollectiveKind.BROADCAST, 0, 4, root=root)

    assert found(trace(sync(broadcast(0)), sync(broadcast(1)))) == [("root-mismatch", 1, 0)]


def test_all_to_all_splits_must_meet() -> None:
    sound = trace(sync(exchange([1, 2], [1, 3])), sync(exchange([3, 4], [2, 4])))
    assert found(sound) == []
    wrong = trace(sync(exchange([1, 2], [1, 5])), sync(exchange([3, 4], [2, 4])))
    assert found(wrong) == [("splits-mismatch", 0, 0)]
    short = trace(sync(exchange([1], [1])), sync(exchange([3, 4], [2, 4])))
    assert found(short) == [("splits-mismatch", 0, 0)]


@pytest.mark.parametrize(
    ("ops", "at"),
    [((Wait(3),), 0), ((Compute(1), Wait(0)), 1), ((reduce(), Wait(0), Wait(0)), 2), ((reduce(), Wait(-1)), 1)],
)
def test_a_wait_for_nothing(ops: tuple[Compute | Collective | Wait, ...], at: int) -> None:
    assert ("dangling-wait", 0, at) in found(trace(ops, ops))


def test_point_to_point_needs_both_sides() -> None:
    send, receive = Send(peer=1, count=4), Recv(peer=0, count=4)
    assert found(trace([send, Wait(0)], [receive, Wait(0)])) == []
    assert found(trace([send, Wait(0)], [Compute(1)])) == [("unmatched-send", 0, 0)]
    assert found(trace([Compute(1)], [receive, Wait(0)])) == [("unmatched-receive", 1, 0)]
    assert found(trace([send], [Recv(peer=0, count=5)])) == [("size-mismatch", 1, 0)]
    assert (
        found(trace([send], [Recv(peer=0, count=4, tag=1)]))
        == [("unmatched-receive", 1, 0), ("unmatched-send", 0, 0)][::-1]
    )
    assert found(trace([reduce()], [reduce(), Recv(peer=-1, count=4)])) == [("unmatched-receive", 1, 1)]


def test_ranks_with_different_steps() -> None:
    assert found(trace([*sync(reduce()), StepMark(0)], [*sync(reduce()), StepMark(1)])) == [("steps-differ", 1, -1)]
