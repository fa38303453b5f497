"""Each thing that can be wrong with a trace is found, with its rank and operation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.traces.build import exchange, reduce, sync, trace
from traces.checks import check, is_replayable
from traces.checks.said import where
from traces.program import (
    Collective,
    CollectiveKind,
    Compute,
    DType,
    Finding,
    Op,
    Origin,
    Recv,
    Send,
    Source,
    StepMark,
    Trace,
    Wait,
)
from traces.steps import select


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
    assert found(trace(longer, sync(reduce()))) == [("op-seen-by-some", 0, 2), ("never-ends", 0, 2)]


def test_a_recording_that_began_later_than_the_others() -> None:
    """As where a profiler's window opens in the middle of a step."""
    job = (*sync(reduce(1)), *sync(reduce(2), 2), StepMark(0), *sync(reduce(3), 5), StepMark(1))
    late = (*sync(reduce(2)), StepMark(0), *sync(reduce(3), 3), StepMark(1))
    said = [finding for finding in check(trace(job, job, late)) if finding.code != "never-ends"]
    assert [(f.code, f.rank, f.op) for f in said] == [("window-edge", 2, 0)]
    assert "which has 1 more operations of group '0' before" in said[0].message
    assert check(select(trace(job, job, late), 1, 2)) == ()


def test_ranks_that_start_different_operations() -> None:
    other = Collective(CollectiveKind.BARRIER, 0, 0)
    assert found(trace(sync(reduce()), sync(other))) == [
        ("never-ends", 0, 0),
        ("op-seen-by-some", 1, 0),
        ("never-ends", 1, 0),
    ]


def test_groups_are_held_against_their_own_members_only() -> None:
    pair = (*sync(reduce(group=1)),)
    assert found(trace(pair, pair, [Compute(1)], groups=[(0, 1)])) == []
    assert found(trace(pair, pair, [Compute(1), *pair[:1]], groups=[(0, 1)])) == [("truncated-group", 2, -1)]
    other = Collective(CollectiveKind.BARRIER, 1, 0)
    assert found(trace(pair, pair, [Compute(1), other], groups=[(0, 1)])) == [("not-a-member", 2, 1)]
    assert found(trace(pair, [reduce(group=7)], groups=[(0, 1)]))[-1] == ("not-a-member", 1, 0)


def test_a_list_of_ranks_that_was_cut_is_named_once() -> None:
    """As the observers cut lists of more than 30 ranks (PyTorch pull requests 110908 and 120475)."""
    pair = sync(reduce(group=1))
    (said,) = check(trace(*[pair] * 6, groups=[(0, 1, 2)]))
    assert (said.code, said.rank, said.replayable) == ("truncated-group", 3, False)
    assert "group '1' lists 3 ranks, but rank 3-5 start the same operations" in said.message


def test_lists_of_ranks_that_cannot_be() -> None:
    ops = sync(reduce())
    assert found(trace(ops, ops, groups=[(0, 5)])) == [("group-ranks", 5, -1)]
    assert found(trace(ops, ops, groups=[(0, 1, 1)])) == [("group-ranks", 1, -1)]


def test_sizes_that_disagree() -> None:
    assert found(trace(sync(reduce(8)), sync(reduce(9)))) == [("size-mismatch", 1, 0)]


def test_roots_that_disagree() -> None:
    def broadcast(root: int) -> Collective:
        return Collective(CollectiveKind.BROADCAST, 0, 4, root=root)

    assert found(trace(sync(broadcast(0)), sync(broadcast(1)))) == [("root-mismatch", 1, 0)]


def test_all_to_all_splits_must_meet() -> None:
    lopsided = replace(exchange([1, 2], [1, 3]), recv_splits=())
    assert found(trace(sync(lopsided), sync(exchange([3, 4], [2, 4])))) == [("splits-mismatch", 0, 0)]
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
    assert found(trace([Compute(1)], [receive, Wait(0)])) == [("unmatched-receive", 1, 0), ("never-ends", 1, 0)]
    assert found(trace([send], [Recv(peer=0, count=5)])) == [("size-mismatch", 1, 0)]
    assert found(trace([send], [Recv(peer=0, count=4, tag=1)])) == [
        ("unmatched-send", 0, 0),
        ("unmatched-receive", 1, 0),
        ("never-ends", 1, 0),
    ]
    any_source = trace([reduce()], [reduce(), Recv(peer=-1, count=4)])
    assert found(any_source) == [("unmatched-receive", 1, 1), ("never-ends", 1, 1)]
    assert found(trace([Send(peer=7, count=4)], [Compute(1)])) == [("outside-group", 0, 0)]
    assert found(trace([Send(peer=0, count=4)], [Compute(1)])) == [("self-message", 0, 0)]
    assert found(trace([Send(peer=1, count=4, group=9)], [Compute(1)])) == [("not-a-member", 0, 0)]


def test_what_was_sent_to_a_rank_that_was_not_recorded_is_not_held_against_anyone() -> None:
    assert found(trace([Send(peer=1, count=4)], world_size=2)) == [("missing-rank", 1, -1)]


def test_types_and_reductions_that_disagree() -> None:
    half = replace(reduce(8), dtype=DType.FLOAT64, count=4)
    assert found(trace(sync(reduce(8)), sync(half))) == [("type-mismatch", 1, 0)]
    most = replace(reduce(8), reduce_op="max")
    assert found(trace(sync(reduce(8)), sync(most))) == [("reduce-op-mismatch", 1, 0)]
    outside = Collective(CollectiveKind.BROADCAST, 0, 4, root=5)
    assert [f.code for f in check(trace(sync(outside), sync(outside)))] == ["root-mismatch"]


def test_operations_that_move_nothing() -> None:
    nothing = (*sync(reduce(8)), *sync(reduce(0), 2), *sync(reduce(0), 4))
    said = check(trace(nothing, nothing))
    assert [(f.code, f.rank, f.op, f.replayable) for f in said] == [
        ("zero-bytes", 0, 2, True),
        ("zero-bytes", 1, 2, True),
    ]
    assert said[0].message == "2 operations of 0 bytes: they move nothing; the first: all_reduce"


def test_a_trace_of_which_nothing_moves_has_lost_its_sizes() -> None:
    assert found(trace(sync(reduce(0)), sync(reduce(0)))) == [("no-sizes", 0, 0), ("no-sizes", 1, 0)]
    barrier = Collective(CollectiveKind.BARRIER, 0, 0)
    assert found(trace(sync(barrier), sync(barrier))) == []


def test_an_all_to_all_in_which_one_rank_only_receives_moves_something() -> None:
    assert found(trace(sync(exchange([0, 0], [0, 3])), sync(exchange([3, 0], [0, 0])))) == []


def test_numbers_below_zero() -> None:
    assert ("negative-number", 0, 0) in found(trace(sync(reduce(-8)), sync(reduce(-8))))
    assert found(trace([Compute(-1), reduce()], [reduce()])) == [("negative-number", 0, 0)]


def test_ends_that_are_far_apart_in_a_short_step() -> None:
    def job(end_ns: int) -> tuple[Op, ...]:
        return (reduce(end_ns=10), Wait(0), StepMark(0, Origin(0, -1, end_ns, end_ns)))

    quick, slow = trace(job(1_000), job(1_000)), trace(job(10_000), job(10_000))
    assert found(replace(quick, clock_residual_ns={0: 5, 1: 40})) == [("clock-residual", 1, -1)]
    assert found(replace(slow, clock_residual_ns={0: 5, 1: 40})) == []
    on_one_host = replace(quick, clock_residual_ns={0: 5, 1: 40}, hosts={0: "a", 1: "a"})
    assert found(on_one_host) == []
    assert found(replace(on_one_host, hosts={0: "a", 1: "b"})) == [("clock-residual", 1, -1)]


def test_ranks_with_different_steps() -> None:
    assert found(trace([*sync(reduce()), StepMark(0)], [*sync(reduce()), StepMark(1)])) == [("steps-differ", 1, -1)]


def test_a_peer_that_is_a_place_in_the_group_and_no_rank() -> None:
    """As send and recv record ranks of the group (PyTorch issue 153819)."""
    ops = [[Compute(1)], [Compute(1)], [Send(peer=1, count=4, group=1)], [Recv(peer=0, count=4, group=1), Wait(0)]]
    said = [finding for finding in check(trace(*ops, groups=[(2, 3)])) if finding.code == "outside-group"]
    assert [(f.rank, f.op, f.replayable) for f in said] == [(2, 0, False), (3, 0, False)]
    assert said[0].message.startswith("send with rank 1 is in a group of rank 2-3")


def test_more_in_flight_than_a_device_holds() -> None:
    big = 10_000_000_000  # float32: 40 GB
    lost = [*[reduce(big)] * 3, Wait(0), Wait(1), Wait(2)]
    assert found(trace(lost, lost)) == [("in-flight", 0, 2), ("in-flight", 1, 2)]
    two = [reduce(big), reduce(big), Wait(0), Wait(1)]
    assert found(trace(two, two)) == []


def test_operations_that_are_all_waited_for_at_once() -> None:
    def read(ops: list[Op]) -> Trace:
        return replace(trace(ops, ops), sources=(Source("job.txt", "", "some"),))

    ops = [op for at in range(0, 33, 3) for op in (Compute(5), *sync(reduce(), at + 1))]
    (said,) = check(read(ops))
    assert (said.code, said.severity, said.replayable) == ("all-synchronous", "info", True)
    assert said.message.startswith("rank 0-1: each")
    assert check(trace(ops, ops)) == ()  # made here, so nothing was lost
    assert check(read([replace(op, origin=Origin(0, -1, 5, 9)) if isinstance(op, Wait) else op for op in ops])) == ()
    assert check(read([*ops, reduce(), Compute(3), Wait(33)])) == ()


def test_where_a_finding_was_recorded() -> None:
    recorded = replace(reduce(), origin=Origin(0, 107))
    subject = replace(trace([recorded, Wait(0)], [Wait(0)]), sources=(Source("rank-0.json", "", "kineto"),))
    assert where(subject, Finding("x", "", rank=0, op=0)) == "rank 0, op 0 (all_reduce; rank-0.json, event 107)"
    assert where(subject, Finding("x", "", rank=1, op=0)) == "rank 1, op 0 (wait)"
    assert where(subject, Finding("x", "", rank=5)) == "rank 5"
    assert where(subject, Finding("x", "")) == ""
