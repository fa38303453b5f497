"""What a rank on gloo did, from small recordings whose program is known."""

from __future__ import annotations

from pathlib import Path

from tests.traces.recordings import all_reduce, gloo, span, step, write_job
from traces.importer import import_files
from traces.program import Collective, CollectiveKind, Compute, DType, Op, StepMark, Trace, Wait

ACCUMULATE = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
BACKWARD = "autograd::engine::evaluate_function: AddmmBackward0"


def outline(trace: Trace, rank: int = 0) -> list[object]:
    """Compute as its us, a call as its count, a wait as what it waits for, a mark as "|"."""

    def short(op: Op) -> object:
        match op:
            case Compute():
                return op.ns / 1000
            case Collective():
                return (op.kind.value, op.count)
            case Wait():
                return f"wait {op.op}"
            case StepMark():
                return "|"
        raise AssertionError(op)

    return [short(op) for op in trace.programs[rank].ops]


def test_a_synchronous_call_waits_at_once_and_its_waiting_is_not_compute(tmp_path: Path) -> None:
    events = [
        step(7, 0, 100),
        span("aten::mm", 5, 30),
        all_reduce(30, 35, 3, 64, is_async=False),
        gloo("all_reduce", 31, 80, 4),
        span("aten::add", 82, 95),
    ]
    trace = import_files([write_job(tmp_path, [events, events])])

    assert outline(trace) == [30, ("all_reduce", 64), 5, "wait 1", 20, "|"]
    assert trace.programs[0].ops[1] == Collective(
        CollectiveKind.ALL_REDUCE, 0, 64, DType.FLOAT32, name="c10d::allreduce_", origin=trace.programs[0].ops[1].origin
    )
    assert trace.programs[0].ops[-1] == StepMark(7, trace.programs[0].ops[-1].origin)
    assert (trace.programs[0].ops[3].origin.start_ns, trace.programs[0].ops[3].origin.end_ns) == (35_000, 80_000)


def test_ddp_buckets_overlap_backward_and_are_waited_for_behind_it(tmp_path: Path) -> None:
    """The first bucket ends in an idle moment of backward; its wait is at backward's end all the same."""
    events = [
        step(0, 0, 200),
        span(BACKWARD, 10, 20),
        span(ACCUMULATE, 20, 24),
        all_reduce(21, 23, 3, 100, is_async=True),
        gloo("all_reduce", 22, 45, 4),
        span(BACKWARD, 24, 40),
        span(BACKWARD, 50, 70),
        span(ACCUMULATE, 70, 74),
        all_reduce(71, 73, 5, 200, is_async=True),
        gloo("all_reduce", 72, 120, 6),
        span("aten::copy_", 80, 90),
        span("aten::add", 125, 190),
    ]
    trace = import_files([write_job(tmp_path, [events, events])])

    assert outline(trace) == [
        21, ("all_reduce", 100), 50, ("all_reduce", 200), 2, "wait 1", 17, "wait 3", 80, "|",
    ]  # fmt: skip
    assert not any(finding.code == "assumed-wait" for finding in trace.findings)


def test_other_asynchronous_calls_wait_where_the_rank_first_could_have(tmp_path: Path) -> None:
    events = [
        step(0, 0, 100),
        all_reduce(10, 12, 3, 8, is_async=True),
        gloo("all_reduce", 11, 40, 4),
        span("aten::mm", 12, 30),
        span("aten::add", 42, 90),
    ]
    trace = import_files([write_job(tmp_path, [events, events])])

    assert outline(trace) == [10, ("all_reduce", 8), 20, "wait 1", 60, "|"]
    assert [finding.code for finding in trace.findings] == ["assumed-wait"]


def test_work_on_gloos_own_threads_is_not_the_ranks(tmp_path: Path) -> None:
    events = [
        step(0, 0, 100),
        all_reduce(10, 12, 3, 8, is_async=True),
        gloo("all_reduce", 11, 60, 4, tid=20),
        span("aten::copy_", 20, 59, tid=20),
    ]
    trace = import_files([write_job(tmp_path, [events, events])])

    assert outline(trace) == [10, ("all_reduce", 8), 2, "wait 1", 40, "|"]


def test_operations_outside_the_recorded_steps_are_left_out_and_said(tmp_path: Path) -> None:
    events = [
        all_reduce(1, 2, 1, 8, is_async=False),
        gloo("all_reduce", 1, 3, 2),
        step(0, 10, 50),
        all_reduce(20, 21, 3, 8, is_async=False),
        gloo("all_reduce", 20, 30, 4),
        all_reduce(60, 61, 5, 8, is_async=False),
        gloo("all_reduce", 60, 70, 6),
    ]
    trace = import_files([write_job(tmp_path, [events, events])])

    assert outline(trace) == [10, ("all_reduce", 8), 1, "wait 1", 20, "|"]
    assert [finding.code for finding in trace.findings] == ["outside-steps"]


def test_process_groups_are_told_apart_by_their_pairs_of_workers(corpus: Path) -> None:
    """The recording's tp groups are (0, 2) and (1, 3); each step runs a 64-element all_reduce and a barrier there."""
    trace = import_files([corpus / "self-recorded-gloo/ops"])
    by_name = {group.id: group for group in trace.groups}

    for rank, program in trace.programs.items():
        calls = [op for op in program.ops if isinstance(op, Collective)]
        small = [by_name[op.group].ranks for op in calls if op.kind is CollectiveKind.ALL_REDUCE and op.count == 64]
        assert small == [(rank % 2, rank % 2 + 2)] * 3
        barriers = [by_name[op.group].description for op in calls if op.kind is CollectiveKind.BARRIER]
        assert barriers == ["default_pg", "tp"] * 3
