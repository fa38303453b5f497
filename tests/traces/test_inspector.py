"""NCCL Inspector's files: records with the fields of its README, by hand."""

from __future__ import annotations

import json

import pytest

from traces.checks import check, is_replayable
from traces.errors import TraceError
from traces.files import Opened
from traces.formats import choose, inspector
from traces.program import Collective, CollectiveKind, Compute, Recv, Send, StepMark, Trace, Wait


def line(
    rank: int, coll: str, size: int, *, ran: tuple[int, int] | None = None, of: str = "0x9e", ranks: int = 2
) -> str:
    perf: dict[str, object] = {"coll": coll, "coll_sn": 1, "coll_msg_size_bytes": size, "coll_exec_time_us": 110}
    if ran:
        kernel = {"channel_id": 0, "kernel_start_ts": ran[0], "kernel_stop_ts": ran[1]}
        perf["event_trace_ts"] = {"coll_start_ts": ran[0] - 50, "coll_stop_ts": ran[0] - 45, "kernel_events": [kernel]}
    return record(rank, of, ranks, coll_perf=perf)


def message(rank: int, p2p: str, peer: int, size: int = 9000) -> str:
    return record(rank, "0x9e", 2, p2p_perf={"p2p": p2p, "p2p_sn": 1, "p2p_peer": peer, "p2p_msg_size_bytes": size})


def record(rank: int, of: str, ranks: int, **perf: object) -> str:
    metadata = {"inspector_output_format_version": "v4.0", "dump_timestamp_us": 1, "hostname": "a", "pid": 70 + rank}
    header = {"id": of, "rank": rank, "n_ranks": ranks, "nnodes": 1}
    return json.dumps({"header": header, "metadata": metadata, **perf})


def read(*files: list[str]) -> Trace:
    opened = [Opened(f"{n}.log", "\n".join([*lines, ""]).encode(), "", True) for n, lines in enumerate(files)]
    return inspector.read(opened)


def codes(trace: Trace) -> set[str]:
    return {finding.code for finding in trace.findings}


def test_operations_in_the_order_of_the_file() -> None:
    trace = read(*([line(r, "AllReduce", 65_536), line(r, "ReduceScatter", 9_000)] for r in (0, 1)))

    ops = trace.programs[1].ops
    assert [type(op) for op in ops] == [Collective, Wait, Collective, Wait, StepMark]
    found = [(op.kind, op.count) for op in ops if isinstance(op, Collective)]
    assert found == [(CollectiveKind.ALL_REDUCE, 65_536), (CollectiveKind.REDUCE_SCATTER, 9_000)]
    assert codes(trace) == {"no-timestamps", "assumed-order", "assumed-type", "small-left-out"}
    assert is_replayable(check(trace))


def test_messages_that_follow_each_other_start_together() -> None:
    trace = read(*([message(r, "Send", 1 - r), message(r, "Recv", 1 - r), message(r, "Send", r)] for r in (0, 1)))

    assert [type(op) for op in trace.programs[0].ops] == [Send, Recv, Wait, Wait, StepMark]
    assert "skipped-line" in codes(trace)
    assert is_replayable(check(trace))


def test_between_kernels_is_compute_and_those_that_overlap_stay_so() -> None:
    """Two groups: the second kernel starts within the first, the third after both."""
    ran = ((1_000, 1_400), (1_100, 1_200), (2_000, 2_100))
    logs = []
    for rank in (0, 1):
        first, second, third = ran
        lines = [line(rank, "AllReduce", 100, ran=first), line(rank, "AllGather", 10, ran=second, of="0x7")]
        logs.append([*lines, line(rank, "AllReduce", 100, ran=third)])
    trace = read(*logs)

    ops = trace.programs[0].ops
    assert [type(op).__name__ for op in ops] == [
        *("Collective", "Compute", "Collective", "Wait", "Wait", "Compute", "Collective", "Wait", "StepMark")
    ]
    assert [op.ns for op in ops if isinstance(op, Compute)] == [100_000, 600_000]
    assert codes(trace) == {"assumed-type", "assumed-wait"}
    assert is_replayable(check(trace))


def test_one_of_four_processes_lacks_the_others() -> None:
    trace = read([line(2, "AllReduce", 9_000, ranks=4)])

    assert (trace.world_size, sorted(trace.programs)) == (4, [2])


def test_a_file_that_a_crash_cut_lacks_its_last_operation() -> None:
    text = "\n".join([line(0, "AllReduce", 9_000), line(0, "AllReduce", 9_000)[:-20]])
    trace = inspector.read([Opened("x", text.encode(), "", True)])

    assert "cut-line" in codes(trace)
    assert sum(isinstance(op, Collective) for op in trace.programs[0].ops) == 1


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([["{}"]], "line 1: not a record"),
        ([[line(0, "AllReduce", -1)]], "line 1: not a record"),
        ([[line(2, "AllReduce", 1)]], "line 1: rank 2 of 2"),
        ([[line(0, "Swap", 1)]], "line 1: operation 'Swap'"),
        ([[message(0, "Send", 7)]], "line 1: peer 7 of 2"),
        ([[message(0, "Send", 0)]], "no operation is in the file"),
        ([[line(0, "AllReduce", 1)], [line(0, "AllReduce", 1)]], "rank 0 of communicator 0x9e wrote another file"),
        ([[line(0, "AllReduce", 1, of="0x1")], [line(1, "AllReduce", 1, of="0x2")]], "no communicator holds all"),
        ([[line(0, "AllReduce", 1, ranks=4), line(0, "AllReduce", 1, of="0x2")]], "1 of the 2 ranks"),
    ],
)
def test_what_is_wrong_is_named(files: list[list[str]], said: str) -> None:
    with pytest.raises(TraceError) as caught:
        read(*files)
    assert said in str(caught.value)


def test_content_shows_the_format() -> None:
    known = choose(line(0, "AllReduce", 1).encode())

    assert known is not None
    assert known.name == "nccl-inspector"
