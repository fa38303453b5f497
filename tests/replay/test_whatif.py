"""What-ifs on hand-written traces."""

from __future__ import annotations

from fractions import Fraction

import pytest

from replay.whatif.compute import mean_compute
from replay.whatif.registry import Scenario, apply
from tests.replay.network import trace_of
from traces.errors import TraceError
from traces.program import Collective, CollectiveKind, Compute, StepMark, Trace, Wait

BARRIER = Collective(CollectiveKind.BARRIER, 0, 0)


def job() -> Trace:
    """Two ranks, two steps; rank 1 computes three times as long: 8 ms and 24 ms a step, 16 ms in the mean."""
    programs = {rank: (Compute(8_000_000 * (1 + 2 * rank)), BARRIER, Wait(1), StepMark(0)) * 2 for rank in range(2)}
    return trace_of(programs, steps=2)


def computes(trace: Trace, rank: int) -> list[int]:
    return [op.ns for op in trace.programs[rank].ops if isinstance(op, Compute)]


def test_a_ratio_scales_every_compute_and_nothing_else() -> None:
    scenario = apply(job(), ["compute=0.25"])
    trace, (statement,) = scenario.trace, scenario.assumed
    assert computes(trace, 0) == [2_000_000] * 2
    assert computes(trace, 1) == [6_000_000] * 2
    assert [op for op in trace.programs[0].ops if not isinstance(op, Compute)] == [
        op for op in job().programs[0].ops if not isinstance(op, Compute)
    ]
    assert statement.startswith("compute x 0.25: 16.000 ms a step (mean over ranks) becomes 4.000 ms")


def test_a_time_becomes_the_mean_of_a_step() -> None:
    trace = apply(job(), ["compute=128ms"]).trace
    assert mean_compute(trace) == 128_000_000
    assert computes(trace, 1)[0] == 3 * computes(trace, 0)[0]


def test_rounding_does_not_add_up() -> None:
    trace = apply(trace_of({0: (Compute(1),) * 999}, steps=1), ["compute=0.333"]).trace
    assert sum(computes(trace, 0)) == 999 * 333 // 1000
    assert set(computes(trace, 0)) == {0, 1}


def test_what_ifs_apply_in_turn() -> None:
    scenario = apply(job(), ["compute=10ms", "compute=2"])
    assert mean_compute(scenario.trace) == Fraction(20_000_000)
    assert len(scenario.assumed) == 2
    assert apply(job(), []) == Scenario(job())


@pytest.mark.parametrize("text", ["compute", "speed=2", "compute=fast", "compute=-1", "compute=", "compute=2 parsec"])
def test_what_can_not_be_read_is_named(text: str) -> None:
    with pytest.raises(TraceError, match="what-if"):
        apply(job(), [text])


def test_a_time_needs_something_to_scale() -> None:
    with pytest.raises(TraceError, match="no compute to scale"):
        apply(trace_of({0: (StepMark(0),)}, steps=1), ["compute=1ms"])
