"""The numbers of `tracebed info`, held against calculation by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.traces.build import exchange, sync, trace
from traces.bandwidth import bus_factor
from traces.importer import import_files
from traces.meetings import begins, meetings
from traces.program import (
    Collective,
    CollectiveKind,
    Compute,
    DType,
    Group,
    Op,
    Origin,
    Program,
    Recv,
    Send,
    StepMark,
    Trace,
    Wait,
)
from traces.summary import GroupRow, StepRow, Summary, summarise

_K = CollectiveKind
US = 1_000


def at(start_us: int, end_us: int) -> Origin:
    return Origin(0, -1, start_us * US, end_us * US)


def op(kind: CollectiveKind, count: int, start: int, end: int) -> Collective:
    return Collective(kind, 0, count, DType.FLOAT32, origin=at(start, end))


def rank(begins_us: int) -> tuple[Op, ...]:
    """Computes up to `begins_us`, beside an all_reduce of 4,000,000 bytes computes for 20 us, and stops for it until 200 us."""
    return (
        Compute(begins_us * US, origin=at(0, begins_us)),
        op(_K.ALL_REDUCE, 1_000_000, begins_us, 200),
        Compute(20 * US, origin=at(begins_us, begins_us + 20)),
        Wait(1, at(begins_us + 20, 200)),
        StepMark(7, at(200, 200)),
    )


@pytest.fixture
def job() -> Summary:
    return summarise(trace(rank(40), rank(100), rank(80), rank(60)))


def test_a_collective_takes_from_when_the_last_rank_comes(job: Summary) -> None:
    (row,) = job.operations
    assert (row.kind, row.ranks, row.bytes, row.count) == ("all_reduce", 4, 4_000_000, 1)
    assert (row.min_ns, row.mean_ns, row.max_ns) == (100 * US, 100 * US, 100 * US)
    assert row.algorithm_gb_s == pytest.approx(40)  # 4 MB in 100 us
    assert row.bus_gb_s == pytest.approx(60)  # by 2 x 3/4


def test_a_step_is_compute_and_what_is_exposed(job: Summary) -> None:
    # Waits of 140, 80, 100, 120 us beside operations of 160, 100, 120, 140 us.
    assert job.steps == (StepRow(7, 200 * US, 90 * US, 110 * US, 130 * US, pytest.approx(1 - 110 / 130), 60 * US),)


def test_the_rank_that_others_wait_for_is_seen(job: Summary) -> None:
    assert [rank.late_ns for rank in job.ranks] == [0, 60 * US, 40 * US, 20 * US]
    assert [rank.last for rank in job.ranks] == [0, 1, 0, 0]
    assert [rank.waited_ns for rank in job.ranks] == [140 * US, 80 * US, 100 * US, 120 * US]
    assert job.ranks[1].exposed == pytest.approx(80 / 200)
    assert job.collectives == 1


@pytest.mark.parametrize(
    ("kind", "size", "factor"),
    [
        (_K.ALL_REDUCE, 400, 1.5),
        (_K.ALL_GATHER, 1600, 0.75),
        (_K.REDUCE_SCATTER, 1600, 0.75),
        (_K.ALL_TO_ALL, 400, 0.75),
        (_K.GATHER, 1600, 0.75),
        (_K.SCATTER, 1600, 0.75),
        (_K.BROADCAST, 400, 1.0),
        (_K.REDUCE, 400, 1.0),
    ],
)
def test_sizes_and_factors_are_those_of_nccl_tests(kind: CollectiveKind, size: int, factor: float) -> None:
    """Their all_gather and reduce_scatter count the whole, of which our `count` is a rank's part."""
    (row,) = summarise(trace(*[(replace(op(kind, 100, 0, 10), root=0),)] * 4)).operations
    assert (row.bytes, bus_factor(kind, 4)) == (size, factor)
    assert row.bus_gb_s == pytest.approx(size / 10_000 * factor)


def test_what_queues_behind_another_operation_begins_when_that_ends() -> None:
    queued = (op(_K.ALL_REDUCE, 10, 0, 50), op(_K.ALL_REDUCE, 20, 1, 80), Wait(0, at(2, 50)), Wait(1, at(50, 80)))
    assert begins(Program(0, queued), {0: 0}) == {0: 0, 1: 50 * US}
    big, small = summarise(trace(queued, queued)).operations
    assert (big.mean_ns, small.mean_ns) == (30 * US, 50 * US)


def test_uneven_exchanges_are_one_row_whatever_their_sizes() -> None:
    first, second = exchange([1, 2], [1, 3]), exchange([3, 4], [2, 4])
    (row,) = summarise(trace([first, second], [second, first])).operations
    assert (row.kind, row.count, row.bytes) == ("all_to_allv", 2, 20)


def test_messages_take_from_when_both_have_come() -> None:
    send = Send(1, 250, DType.FLOAT32, origin=at(10, 11))
    receive = Recv(0, 250, DType.FLOAT32, origin=at(0, 30))
    summary = summarise(trace([send], [receive]))
    (row,) = summary.operations
    assert (row.kind, row.bytes, row.count, row.mean_ns, row.bus_gb_s) == ("send", 1000, 1, 20 * US, 0.05)
    assert (summary.groups[0].messages, summary.groups[0].collectives) == (1, 0)


def test_what_was_not_recorded_is_none_and_not_nought() -> None:
    untimed = (Compute(5), *sync(Collective(_K.ALL_REDUCE, 0, 8), 1), StepMark(0))
    summary = summarise(trace(untimed, untimed))
    assert summary.steps == (StepRow(0, None, 5, None, None, None, None),)
    assert (summary.operations[0].count, summary.operations[0].mean_ns, summary.operations[0].bus_gb_s) == (
        1,
        None,
        None,
    )
    assert (summary.ranks[0].waited_ns, summary.ranks[0].late_ns, summary.ranks[0].exposed) == (None, None, None)


def test_a_collective_of_a_rank_that_was_not_recorded_has_no_time() -> None:
    summary = summarise(trace(rank(40), rank(60), world_size=3))
    assert (summary.operations[0].count, summary.operations[0].mean_ns, summary.collectives) == (1, None, 0)


def test_which_operations_are_one_where_a_rank_lost_some() -> None:
    whole = [op(_K.ALL_REDUCE, count, 0, 1) for count in (1, 2, 3)]
    parts = {0: Program(0, tuple(whole)), 1: Program(1, tuple(whole[1:])), 2: Program(2, tuple(whole[:2]))}
    assert [sorted(meeting.parts) for meeting in meetings(parts)] == [[0, 2], [0, 1, 2], [0, 1]]
    alike = [op(_K.ALL_REDUCE, 1, 0, 1)] * 3
    unclear = {0: Program(0, tuple(alike)), 1: Program(1, tuple(alike[1:]))}
    assert [sorted(meeting.parts) for meeting in meetings(unclear)] == [[0], [0], [0]]


@pytest.mark.corpus
def test_real_recordings_give_the_figures_that_were_measured_of_them(corpus: Path) -> None:
    """notes/trace_formats.md, section 1: Megatron's starts differ by up to 41.7 ms, DLRM's by up to 7.6 ms."""
    inputs = corpus / "param/et_replay/tests/inputs"
    megatron = import_files([corpus / "astra-sim/my_test/inputs/workload/megatron-tp8"])
    dlrm = import_files([inputs / "dlrm_kineto.tar.gz", inputs / "dlrm_pytorch_et.tar.gz"])
    apart = {}
    for name, job in (("megatron", megatron), ("dlrm", dlrm)):
        starts = [[op.origin.start_ns for _, op in met.parts.values()] for met in meetings(job.programs)]
        apart[name] = max(max(each) - min(each) for each in starts)
    assert apart == {"megatron": pytest.approx(41.7e6, abs=0.05e6), "dlrm": pytest.approx(7.6e6, abs=0.05e6)}

    big, small = summarise(megatron).operations
    assert (big.bytes, big.count, small.bytes, small.count) == (64 << 20, 81, 32768, 3)
    # What no 8 GPUs on one NVLink switch exceed: 300 GB/s each way on an A100 (NVIDIA's data sheet).
    assert big.min_ns is not None
    assert 1.75 * big.bytes / big.min_ns < 300
    assert summarise(dlrm).collectives == 8


def test_groups_that_are_alike_are_one_row_with_the_sums_of_all() -> None:
    """Two pairs that reduce, one that gathers: the last is of another kind though its name and size are alike."""
    groups = tuple(Group(n, f"dp-{n}", (2 * n, 2 * n + 1), n, "data parallel") for n in range(3))
    kinds, times = (_K.ALL_REDUCE, _K.ALL_REDUCE, _K.ALL_GATHER), (10, 30, 50)
    programs = {
        rank: Program(rank, (Collective(kinds[rank // 2], rank // 2, 100, origin=at(0, times[rank // 2])),))
        for rank in range(6)
    }
    job = Trace(6, groups, programs, 0)
    assert [row.name for row in summarise(job).groups] == ["dp-0", "dp-1", "dp-2"]

    together = summarise(job, together=True)
    assert together.groups == (
        GroupRow("dp, 2 groups of 2", "data parallel", (0, 1, 2, 3), 2, 0, 200, 40 * US),
        GroupRow("dp-2", "data parallel", (4, 5), 1, 0, 200, 50 * US),
    )
    reduced, gathered = together.operations
    assert (reduced.group, reduced.count, reduced.min_ns, reduced.mean_ns, reduced.max_ns) == (
        "dp, 2 groups of 2",
        2,
        10 * US,
        20 * US,
        30 * US,
    )
    assert reduced.algorithm_gb_s == pytest.approx(200 / (40 * US))
    assert gathered.group == "dp-2"
