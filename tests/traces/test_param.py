"""PARAM's basic traces. No public file was found: these rows are written after PARAM's own parser."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from traces.checks import check, is_replayable
from traces.errors import TraceError
from traces.files import Opened
from traces.formats import choose, param
from traces.importer import import_files
from traces.program import Collective, CollectiveKind, Compute, DType, Recv, Send, StepMark, Trace, Wait

ALL = {"pg_id": 0, "world_size": 2}
SIZE = {"in_msg_size": 8, "out_msg_size": 8, "dtype": "Float"}


def job(*ranks: list[dict[str, object]]) -> Trace:
    return param.read(
        [Opened(f"rank-{rank}.json", json.dumps(rows).encode(), "", True) for rank, rows in enumerate(ranks)]
    )


def codes(trace: Trace) -> set[str]:
    return {finding.code for finding in check(trace)}


def test_calls_waits_and_times() -> None:
    """Behind a wait nobody can tell waiting from compute; elsewhere time between calls is compute."""
    rows: list[dict[str, object]] = [
        {"comms": "init", **ALL, "global_ranks": [0, 1], "req": -1},
        {"comms": "allreduce", **ALL, "req": 4, **SIZE, "startTime_ns": 1000, "markers": ["backward", "bucket"]},
        {"comms": "broadcast", **ALL, "req": 5, **SIZE, "root": 1, "startTime_ns": 1300},
        {"comms": "wait", "req": [4, False], "startTime_ns": 1350},
        {"comms": "wait", "req": 5, "startTime_ns": 1900},
        {"compute": "gemm", "mm_dim": 100, "dtype": "float32", "count": 3},
        {"comms": "wait", "req": 77, "startTime_ns": 1900},
    ]
    trace = job(rows, rows)

    assert trace.programs[1].ops == (
        Collective(CollectiveKind.ALL_REDUCE, 0, 8, DType.FLOAT32, name="bucket"),
        Compute(300),
        Collective(CollectiveKind.BROADCAST, 0, 8, DType.FLOAT32, root=1),
        Compute(50),
        Wait(0),
        Wait(2),
        StepMark(0),
    )
    assert codes(trace) == {"assumed-reduce-op", "dangling-wait", "untimed-compute", "waiting-or-compute"}
    assert is_replayable(check(trace))


def test_counts_are_what_one_rank_gives_or_gets() -> None:
    sizes = {"dtype": "half", "in_msg_size": 4, "out_msg_size": 8}
    rows: list[dict[str, object]] = [
        {"comms": "all_gather_base", "req": 0, **sizes},
        {"comms": "reduce_scatter_base", "req": 1, **sizes, "in_msg_size": 16},
        {"comms": "barrier", "req": 2},
        {"comms": "wait", "req": 0},
        {"comms": "wait", "req": 1},
    ]
    trace = job(rows, rows)

    found = [(op.kind, op.count) for op in trace.programs[0].ops if isinstance(op, Collective)]
    assert found == [(CollectiveKind.ALL_GATHER, 4), (CollectiveKind.REDUCE_SCATTER, 8), (CollectiveKind.BARRIER, 0)]
    assert trace.programs[0].ops[-2:] == (Wait(2), StepMark(0))
    assert codes(trace) == {"assumed-reduce-op", "no-timestamps", "wait-after-window"}


def test_uneven_parts_and_batched_messages() -> None:
    def rows(rank: int) -> list[dict[str, object]]:
        other = 1 - rank
        way = {"src_rank": rank, "dst_rank": other, "use_batch": True}
        back = {"src_rank": other, "dst_rank": rank, "use_batch": True}
        send, receive = ([3, 5], [3, 2]) if rank == 0 else ([2, 6], [5, 6])
        return [
            {"comms": "all_to_allv", "req": 9, "dtype": "int", "in_msg_size": 8, "out_msg_size": 8,
             "in_split": send, "out_split": receive},
            {"comms": "wait", "req": 9},
            {"comms": "isend", **SIZE, **way},
            {"comms": "irecv", **SIZE, **back},
            {"comms": "batch_isend_irecv", "req": 11},
            {"comms": "wait", "req": 11},
        ]  # fmt: skip

    trace = job(rows(0), rows(1))

    exchange, *rest = trace.programs[0].ops
    assert exchange == Collective(CollectiveKind.ALL_TO_ALL, 0, 8, DType.INT32, send_splits=(3, 5), recv_splits=(3, 2))
    sent, received = Send(1, 8, DType.FLOAT32), Recv(1, 8, DType.FLOAT32)
    assert rest == [Wait(0), sent, received, Wait(2), Wait(3), StepMark(0)]
    assert is_replayable(check(trace))


def test_groups_are_those_of_their_members() -> None:
    """A rank outside a group may hold a stand-in for it, and two groups may have one number."""

    def rows(ranks: list[int], elsewhere: list[int]) -> list[dict[str, object]]:
        return [
            {"comms": "init", "pg_id": 0, "global_ranks": [0, 1, 2, 3]},
            {"comms": "init", "pg_id": 1, "global_ranks": ranks},
            {"comms": "init", "pg_id": 2, "global_ranks": elsewhere},
            {"comms": "all_reduce", "pg_id": 1, "req": 1, **SIZE},
            {"comms": "wait", "req": 1},
        ]

    trace = job(rows([0, 1], [1]), rows([0, 1], [0]), rows([2, 3], [0]), rows([2, 3], [0]))

    assert [(group.id, group.name, group.ranks) for group in trace.groups] == [
        (0, "0", (0, 1, 2, 3)), (1, "1", (0, 1)), (2, "1", (2, 3)),
    ]  # fmt: skip
    assert [p.ops[0].group for p in trace.programs.values() if isinstance(p.ops[0], Collective)] == [1, 1, 2, 2]
    assert is_replayable(check(trace))


def test_what_is_not_said_is_a_finding() -> None:
    rows: list[dict[str, object]] = [{"comms": "reduce", "req": 0, "pg_id": 6, "root": 9}, {"comms": "wait", "req": 0}]
    trace = job(rows, rows)

    assert {"assumed-root", "assumed-group", "no-sizes"} <= codes(trace)
    assert not is_replayable(check(trace))


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([{"comms": "all_reduce", **SIZE, "dtype": "rune"}], "rank-0.json, row 0: not a call of PARAM's: dtype 'rune'"),
        (
            [{"comms": "wait"}, {"comms": "allreducer"}],
            "row 1: not a call of PARAM's: 'allreducer' is no communication",
        ),
        ([{"comms": "isend", **SIZE}], "isend without dst_rank"),
        ([{"markers": []}], "row 0: not a call of PARAM's: expected comms or compute"),
        ([{"compute": "gemm"}], "no rank communicates"),
        ([{"comms": "all_reduce", "in_msg_size": -1}], r"in_msg_size"),
    ],
)
def test_errors_name_the_row(rows: list[dict[str, object]], expected: str) -> None:
    with pytest.raises(TraceError, match=expected):
        job(rows)


def test_content_decides(tmp_path: Path) -> None:
    rows = [{"req": 1, "comms": "all_reduce", **SIZE}]
    for rank in range(2):
        (tmp_path / f"comms_{rank}.json").write_text(json.dumps(rows))
    trace = import_files([tmp_path])

    assert (trace.world_size, trace.sources[0].format) == (2, "param")
    assert choose(b'[{"ph": "X", "name": "allreduce"}]') is None
