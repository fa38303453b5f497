"""Cutting steps out of a trace, and their recorded times."""

from __future__ import annotations

import pytest

from tests.traces.build import reduce, sync, trace
from traces.checks import check
from traces.errors import TraceError
from traces.program import Compute, Op, Origin, StepMark, Wait
from traces.steps import recorded_step_ns, select


def at(moment: int) -> Origin:
    return Origin(0, -1, moment, moment)


def job() -> tuple[Op, ...]:
    """Three steps; the operation of the second is waited for in the third."""
    return (
        *sync(reduce(1)), Compute(10), StepMark(5),
        Compute(20), reduce(2), StepMark(6),
        Wait(5), Compute(30), *sync(reduce(3), 9), StepMark(7),
    )  # fmt: skip


def test_a_cut_keeps_waits_on_their_operations() -> None:
    whole = trace(job(), job())
    cut = select(whole, 0, 3)
    assert cut.programs == whole.programs

    first = select(whole, 0, 1)
    assert first.programs[1].ops == (*sync(reduce(1)), Compute(10), StepMark(5))
    assert first.step_count == 1


def test_an_operation_that_is_waited_for_behind_the_cut_is_waited_for_at_its_end() -> None:
    cut = select(trace(job(), job()), 1, 2)

    assert cut.programs[0].ops == (Compute(20), reduce(2), Wait(1), StepMark(6))
    assert [(f.code, f.rank) for f in cut.findings] == [("wait-after-window", 0), ("wait-after-window", 1)]
    assert all(finding.replayable for finding in check(cut))


def test_a_wait_for_an_operation_before_the_cut_is_left_out() -> None:
    cut = select(trace(job(), job()), 2, 3)

    assert cut.programs[0].ops == (Compute(30), reduce(3), Wait(1), StepMark(7))
    assert [(f.code, f.rank) for f in cut.findings] == [("dangling-wait", 0), ("dangling-wait", 1)]


@pytest.mark.parametrize(("first", "last"), [(0, 4), (2, 2), (-1, 1), (3, 2)])
def test_steps_that_are_not_there(first: int, last: int) -> None:
    with pytest.raises(TraceError, match=r"no steps .*the trace has steps 0:3"):
        select(trace(job(), job()), first, last)


def test_a_step_ends_when_its_last_rank_passes_the_mark() -> None:
    early = (Compute(1, origin=at(100)), StepMark(0, at(400)), StepMark(1, at(900)))
    late = (Compute(1, origin=at(150)), StepMark(0, at(500)), StepMark(1, at(800)))

    assert recorded_step_ns(trace(early, late)) == (400, 400)


def test_without_times_there_are_no_step_times() -> None:
    assert recorded_step_ns(trace(job(), job())) == ()


def test_programs_without_operations_have_no_recorded_times() -> None:
    assert recorded_step_ns(trace((), ())) == ()
