"""The bound that no network can beat: what a step takes where messages take no time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from emulator.errors import BedError
from replay.ideal import ideal_step_ns, step_times
from replay.plan import lower
from tests.replay.network import Network, trace_of
from tests.replay.runs import all_reduces, computing, overlapping
from traces.program import Collective, CollectiveKind, Compute, DType, Group, Op, Recv, Send, StepMark, Trace, Wait

SUM = Collective(CollectiveKind.ALL_REDUCE, 0, 1000, DType.FLOAT32)


def ideal(*programs: Sequence[Op], groups: Sequence[Group] = ()) -> tuple[int, ...]:
    return ideal_step_ns(lower(trace_of(dict(enumerate(programs)), groups)))


def test_communication_alone_takes_nothing() -> None:
    assert ideal_step_ns(lower(all_reduces(4, 100_000_000, steps=3))) == (0, 0, 0)


def test_the_slowest_rank_holds_the_others_up() -> None:
    steps = ([Compute(3), SUM, Wait(1), StepMark(0)], [Compute(5), SUM, Wait(1), Compute(2), StepMark(0)])
    assert ideal(*steps) == (7,)


def test_a_step_counts_from_the_last_rank_of_the_one_before() -> None:
    """Without anything that joins them, rank 1 passes the marks at 10 and 20 and rank 0 at 1 and 2."""
    programs = [[Compute(ns), StepMark(0), Compute(ns), StepMark(1)] for ns in (1, 10)]
    assert ideal(*programs) == (10, 10)


def test_what_runs_beside_compute_is_hidden() -> None:
    late = [Compute(4), SUM, Wait(1), StepMark(0)]
    assert ideal([SUM, Compute(9), Wait(0), StepMark(0)], late) == (9,)
    assert ideal([SUM, Compute(2), Wait(0), StepMark(0)], late) == (4,)


def test_a_lane_runs_its_operations_in_order() -> None:
    """Rank 1 starts the first of two operations of one lane late, so the second, of which it is no part, waits too."""
    groups = (Group(0, "both", (0, 1), 7), Group(1, "alone", (0,), 7))
    alone = Collective(CollectiveKind.ALL_REDUCE, 1, 10, DType.FLOAT32)
    assert ideal([SUM, alone, Wait(1), StepMark(0)], [Compute(6), SUM, Wait(1), StepMark(0)], groups=groups) == (6,)
    apart = (groups[0], Group(1, "alone", (0,), 8))
    assert ideal(
        [SUM, alone, Wait(1), StepMark(0), Wait(0)], [StepMark(0), Compute(6), SUM, Wait(2)], groups=apart
    ) == (0,)


def test_a_pipeline_fills_stage_by_stage() -> None:
    """Three stages of 10 ns, four microbatches: the last ends after (3 + 4 - 1) x 10 ns."""
    programs: list[list[Op]] = []
    for stage in range(3):
        ops: list[Op] = []
        for _ in range(4):
            if stage:
                ops += [Recv(stage - 1, 8), Wait(len(ops))]
            ops.append(Compute(10))
            if stage < 2:
                ops.append(Send(stage + 1, 8))
        programs.append([*ops, StepMark(0)])
    assert ideal(*programs) == (60,)


def test_ranks_that_wait_for_each_other_for_ever_are_named() -> None:
    groups = [Group(number, name, (0, 1), number) for number, name in enumerate("ab")]
    a, b = (Collective(CollectiveKind.BARRIER, group.id, 0, name=group.name) for group in groups)
    why = r"for ever: rank 0 waits for message 0 of barrier 'a' from rank 1; rank 1 waits for .* 'b' from rank 0"
    with pytest.raises(BedError, match=why):
        ideal([a, Wait(0), b, Wait(2), StepMark(0)], [b, Wait(0), a, Wait(2), StepMark(0)], groups=groups)


@pytest.mark.parametrize("trace", [overlapping(2, 4000, 3), overlapping(5, 4000, 3), computing(4, 1000, 3)])
def test_no_network_is_faster(trace: Trace) -> None:
    plan = lower(trace)
    ends: dict[int, int] = {}
    for _, done in Network(plan, ns_per_byte=1, delay=100).run().steps:
        ends[done.step] = max(done.at_ns, ends.get(done.step, 0))
    bound = ideal_step_ns(plan)
    assert 0 < sum(bound) < sum(step_times(ends))
    for step in range(trace.step_count):
        assert sum(bound[: step + 1]) <= ends[step]
