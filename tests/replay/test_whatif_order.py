"""Waits of the next forward pass, slices and priorities, on hand-written traces and in model time."""

from __future__ import annotations

import pytest

from replay.engine import Engine, PostRecv
from replay.plan import Plan, lower
from replay.sending import Outbox, Sending
from replay.whatif.registry import apply
from tests.replay.network import Network, trace_of
from tests.replay.whatifs import behind, changed, overlapping
from traces.errors import TraceError
from traces.program import Collective, CollectiveKind, Compute, StepMark, Trace, Wait


def test_a_forward_pass_waits_for_its_own_gradients() -> None:
    """The forward pass of what took 60, 80 and 60 ns backward takes 30, 40 and 30, the other way round."""
    step = "-g2 30 -g1 40 -g0 90 +g0 80 +g1 60 +g2 |"
    assert changed(overlapping(3), "waits=forward") == f"160 +g0 80 +g1 60 +g2 | {step} {step} -g2 -g1 -g0"


def test_of_several_passes_the_first_waits() -> None:
    """Of two passes of 150 ns each the last goes backward from 200 on: what started at 160 had no part of it."""
    step = "-g2 21 -g1 29 -g0 110 +g0 80 +g1 60 +g2 |"
    assert changed(overlapping(2), "waits=forward,passes=2") == f"160 +g0 80 +g1 60 +g2 | {step} -g2 -g1 -g0"


def test_the_optimizer_follows_each_wait_by_bytes() -> None:
    """The last step's come behind its mark, so that it takes as long as the others."""
    assert changed(overlapping(2, optimizer=70), "waits=forward") == (
        "160 +g0 80 +g1 60 +g2 | -g2 10:optimizer 30 -g1 40:optimizer 40 -g0 20:optimizer 90 +g0 80 +g1 60 +g2 | "
        "-g2 10:optimizer -g1 40:optimizer -g0 20:optimizer"
    )


def test_waits_move_where_a_next_step_is_and_only_once() -> None:
    with pytest.raises(TraceError, match=r"the trace has one step.*--repeat"):
        apply(overlapping(1), ["waits=forward"])
    with pytest.raises(TraceError, match="waited for in the next step already"):
        apply(overlapping(2), ["waits=forward", "waits=forward"])
    with pytest.raises(TraceError, match="waited for before all of a step are started"):
        apply(behind(2), ["waits=forward"])


def test_slices_hold_all_elements() -> None:
    assert changed(overlapping(1), "partition=400B") == ("160 +g0 80 +g1 0/2 +g1 1/2 60 +g2 -g0 -g1 0/2 -g1 1/2 -g2 |")
    trace = apply(overlapping(1), ["partition=240B"]).trace
    assert [op.count for op in trace.programs[0].ops if isinstance(op, Collective)] == [60, 40, 60, 60, 60, 20, 50]
    with pytest.raises(TraceError, match="an element of float32 is larger"):
        apply(overlapping(1), ["partition=3B"])


def test_what_is_waited_for_first_is_most_urgent() -> None:
    ops = (Compute(1), "a", "b", Wait(2), "c", Wait(1), StepMark(0))
    assert Sending("waits", 1).urgency(ops)[1:5] == [5, 3, 7, 7]
    assert Sending("fifo", 1).urgency(ops)[1:5] == [1, 2, 3, 4]


def test_a_credit_holds_back_and_lets_go_by_urgency() -> None:
    outbox = Outbox[str](100)
    for urgency, nbytes, name in ((5, 60, "late"), (1, 150, "large"), (1, 10, "second"), (3, 50, "middle")):
        outbox.hold(urgency, nbytes, name)
    assert list(outbox.release()) == ["large"]  # more than the credit, and alone
    outbox.hold(0, 80, "urgent")
    assert not list(outbox.release())
    outbox.gone(150)
    assert list(outbox.release()) == ["urgent", "second"]
    outbox.gone(80)
    assert list(outbox.release()) == ["middle"]
    outbox.gone(10)
    assert not list(outbox.release())
    outbox.gone(50)
    assert list(outbox.release()) == ["late"]


def broadcast(count: int, name: str) -> Collective:
    return Collective(CollectiveKind.BROADCAST, 0, count, root=0, name=name)


def two() -> Trace:
    """A long operation, and a short one that is started later and waited for earlier."""
    ops = (broadcast(1000, "long"), Compute(100), broadcast(50, "short"), Wait(2), StepMark(0), Wait(0))
    return trace_of({0: ops, 1: ops}, steps=1)


def run(trace: Trace, sending: Sending | None, segment: int) -> Network:
    plan = lower(trace, segment=segment)
    return Network(Plan({rank: type(own)(rank, own.ops, sending) for rank, own in plan.ranks.items()})).run()


@pytest.mark.parametrize(
    ("sending", "long", "short"),
    [
        (None, 1000, 1050),  # behind the long one
        (Sending("fifo", 100), 1000, 1050),
        (Sending("waits", 100), 1050, 150),
        (Sending("waits", 300), 1050, 350),
    ],
)
def test_an_urgent_operation_overtakes_by_messages(sending: Sending | None, long: int, short: int) -> None:
    """It is started at 100, when the long one's first message has left and as many bytes are under way as there is credit."""
    network = run(two(), sending, segment=100)
    assert [network.engines[1].records.ended[op] for op in (0, 2)] == [long, short]


def test_all_receives_are_posted_at_once() -> None:
    engine = Engine(type(lower(two()).ranks[1])(1, lower(two()).ranks[1].ops, Sending("waits", 1)))
    posted = [action for action in engine.start(0) + engine.timer(100) if isinstance(action, PostRecv)]
    assert [action.nbytes for action in posted] == [1000, 50]


def test_priorities_need_something_to_overtake() -> None:
    with pytest.raises(TraceError, match=r"nothing is more urgent .put --what-if waits=forward in front"):
        apply(overlapping(2), ["priority=waits"])
    with pytest.raises(TraceError, match="there is a priority already"):
        apply(overlapping(2), ["priority=fifo", "priority=fifo"])
    with pytest.raises(TraceError, match="nothing can be sent without credit"):
        apply(overlapping(2), ["priority=fifo,credit=0"])
    scenario = apply(overlapping(2), ["waits=forward", "priority=waits,credit=1MB"])
    assert scenario.sending == Sending("waits", 1_000_000)
