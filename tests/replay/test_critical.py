"""What holds a step, on a network in model time whose egress and delay are known: the graph gives the run back, the path adds
up to the step, and without something the step takes what it really would."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from emulator.network import Network as Resolved
from emulator.network import load
from replay.control import Result
from replay.critical import Holder, holders
from replay.moments import Message, Moments, Work, _Building, moments
from replay.plan import lower
from tests.replay.network import Network, run, trace_of
from tests.replay.runs import all_reduces, overlapping
from traces.program import Collective, CollectiveKind, Compute, Op, Recv, Send, StepMark, Trace, Wait

DELAY = 5_000


def measured(trace: Trace, *, delay: int = DELAY, segment: int = 1 << 20) -> Moments:
    """The moments of a run at 1 byte a ns."""
    return moments(lower(trace, segment=segment), results(run(trace, delay=delay, segment=segment)))


def results(network: Network) -> dict[int, Result]:
    found = {}
    for rank, engine in network.engines.items():
        records = engine.records
        times = (records.issued.tobytes(), records.began.tobytes(), records.ended.tobytes())
        found[rank] = Result(rank, 0, *times, (), 0, records.messages.tobytes())
    return found


def star(ranks: int) -> Resolved:
    """The rate of the model network."""
    return load("ethernet-10g", ranks=ranks, overrides={"link.rate": "8 gbit", "link.delay": "0 ns"})


def held(run: Moments, ranks: int, first_step: int = 0) -> dict[tuple[str, str], Holder]:
    return {(each.kind, each.name): each for each in holders(run, star(ranks), (), first_step)}


def ping_pong(rank: int) -> list[Op]:
    """Two messages one way and one the other, of which each end waits for what comes."""
    if rank == 0:
        return [Send(1, 3000), Send(1, 500), Recv(1, 200), Wait(2), Wait(0), Wait(1), StepMark(0)]
    return [Recv(0, 3000), Recv(0, 500), Wait(1), Compute(70), Send(0, 200), Wait(0), Wait(4), StepMark(0)]


JOBS = {
    "overlap": overlapping(4, 40_000, steps=3),
    "ring": all_reduces(3, 1001, steps=2),
    "messages": trace_of({rank: ping_pong(rank) for rank in (0, 1)}, steps=1),
    "barrier": trace_of(
        dict.fromkeys(range(5), (Compute(3), Collective(CollectiveKind.BARRIER, 0, 0), Wait(1), StepMark(0))), steps=1
    ),
}


@pytest.mark.parametrize("segment", [64, 1 << 20])
@pytest.mark.parametrize("name", JOBS)
def test_the_graph_gives_back_what_was_measured(name: str, segment: int) -> None:
    found = measured(JOBS[name], segment=segment)
    assert found.retimed(found.took) == list(found.at)
    assert all(earlier < moment for moment, after in enumerate(found.after) for earlier in after)


@pytest.mark.parametrize("name", JOBS)
def test_the_path_is_as_long_as_the_step(name: str) -> None:
    found = measured(JOBS[name])
    steps = found.step_ns(found.at)
    path = sum(each.path_ns for (kind, _), each in held(found, 5).items() if kind != "link")
    assert path == pytest.approx(sum(steps) / len(steps))


def straggling(ranks: int, slow: int, extra: int) -> Trace:
    def ops(rank: int) -> Sequence[Op]:
        made: list[Op] = []
        for step in range(2):
            made += [
                Compute(10_000 + (extra if rank == slow else 0)),
                Collective(CollectiveKind.ALL_REDUCE, 0, 4000),
                Wait(len(made) + 1),
                StepMark(step),
            ]
        return made

    return trace_of({rank: ops(rank) for rank in range(ranks)}, steps=2)


def test_a_straggler_is_named_and_the_step_without_it_is_the_others() -> None:
    found = measured(straggling(4, slow=2, extra=200_000))
    (name, longest), *_ = held(found, 4).items()
    assert name == ("compute", "rank 2")
    assert (
        longest.path_ns == (210_000 + 200_000) / 2
    )  # the second time it had begun before the last rank ended the step
    usual = measured(straggling(4, slow=2, extra=0))
    without = usual.step_ns(usual.at)
    assert longest.free_step_ns == pytest.approx(sum(without) / 2, rel=0.1)  # which has some compute


def test_without_its_only_operation_a_step_is_its_compute() -> None:
    found = held(measured(straggling(4, slow=1, extra=0)), 4)
    assert found["operation", "all_reduce of 4 kB"].free_step_ns == 10_000


def test_operations_are_told_apart_by_their_names() -> None:
    ops: list[Op] = [
        Collective(CollectiveKind.BROADCAST, 0, 9000, root=0, name="large"),
        Collective(CollectiveKind.BROADCAST, 0, 100, root=0, name="small"),
        Wait(0),
        Wait(1),
        StepMark(0),
    ]
    found = held(measured(trace_of({0: ops, 1: ops}, steps=1), delay=0), 2)
    assert found["operation", "broadcast of 9 kB 'large'"] == Holder(
        "operation", "broadcast of 9 kB 'large'", 9000, 100
    )
    assert found["operation", "broadcast of 100 B 'small'"] == Holder(
        "operation", "broadcast of 100 B 'small'", 100, 9000
    )


def test_steps_ahead_of_the_first_do_not_count() -> None:
    trace = overlapping(3, 40_000, steps=4)
    found = measured(trace)
    steps = found.step_ns(found.at)[2:]
    path = sum(each.path_ns for (kind, _), each in held(found, 3, first_step=2).items() if kind != "link")
    assert path == pytest.approx(sum(steps) / 2)


def test_a_send_that_the_kernel_held_waits_for_its_receiver() -> None:
    """The receiver computes for 50 us before it posts what fills the wire: the sender's end of it is the receiver's doing."""
    sender: list[Op] = [Send(1, 30_000), Wait(0), StepMark(0)]
    receiver: list[Op] = [Compute(50_000), Recv(0, 30_000), Wait(1), StepMark(0)]
    found = measured(trace_of({0: sender, 1: receiver}, steps=1), delay=0)
    sent = next(c for c in found.cause if isinstance(c, Message) and not c.arrives)
    assert (sent.source, sent.target, sent.nbytes, sent.began, sent.ended) == (0, 1, 30_000, 0, 30_000)
    assert held(found, 2)["compute", "rank 1"].path_ns == 50_000


def test_moments_that_wait_for_each_other_in_a_circle_are_put_in_a_line() -> None:
    """As clocks that are read late may have it: the earliest goes first, and nothing is lost."""
    building = _Building()
    idle = Work(0, compute=False)
    start = building._add(0, idle)
    late, early = building._add(9, idle, start), building._add(8, idle, start)
    building._after[late].append(early)
    building._after[early].append(late)
    found = building.done()
    assert list(found.at) == [0, 8, 9]
    assert list(found.after) == [(), (0,), (0, 1)]
