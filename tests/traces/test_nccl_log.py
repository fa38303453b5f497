"""Logs of NCCL and RCCL: the lines that enqueue.cc and init.cc print, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from traces.checks import check, is_replayable
from traces.errors import TraceError
from traces.files import Opened
from traces.formats import choose, nccl_log
from traces.importer import import_files
from traces.program import Collective, CollectiveKind, Compute, DType, Recv, Send, StepMark, Trace, Wait

K = CollectiveKind


def init(rank: int, size: int, *, comm: str = "0xa", group: str = "0x77", pid: int | None = None) -> str:
    pid = 100 + rank if pid is None else pid
    return (
        f"node:{pid}:9 [0] NCCL INFO ncclCommInitRank comm {comm} rank {rank} nranks {size} cudaDev 0 nvmlDev 0 busId 1000 "
        f"commId {group} - Init COMPLETE"
    )


def call(rank: int, name: str, launch: int, count: int, *, root: int = 0, size: int = 2, **more: str) -> str:
    said = {"comm": "0xa", "dtype": "7", "op": "0", "at": "", "end": "", **more}
    return (
        f"{said['at']}node:{100 + rank}:9 [0] NCCL INFO {name}: opCount {launch:x} sendbuff 0x7f1 recvbuff 0x7f2 count {count} "
        f"datatype {said['dtype']} op {said['op']} root {root} comm {said['comm']} [nranks={size}] stream 0x5{said['end']}"
    )


def read(*logs: list[str]) -> Trace:
    return nccl_log.read([Opened(f"{n}.txt", "\n".join([*log, ""]).encode(), "", True) for n, log in enumerate(logs)])


def codes(trace: Trace) -> set[str]:
    return {finding.code for finding in trace.findings}


def both(*lines: str) -> list[str]:
    """The lines of rank 0, and the same of rank 1, in one file."""
    return [*lines, *(line.replace("node:100:", "node:101:") for line in lines)]


def test_calls_of_two_processes_in_one_file() -> None:
    lines = both(call(0, "AllReduce", 0x1A, 8, op="2"), call(0, "Broadcast", 0x1B, 5, root=1, dtype="9"))
    trace = read([init(0, 2), init(1, 2), "node:100:9 [0] NCCL INFO Channel 00/02 : 0 1", *lines])

    assert (trace.world_size, sorted(trace.programs)) == (2, [0, 1])
    ops = trace.programs[0].ops
    assert [type(op) for op in ops] == [Collective, Wait, Collective, Wait, StepMark]
    first, second = (op for op in ops if isinstance(op, Collective))
    assert (first.kind, first.count, first.dtype, first.reduce_op) == (K.ALL_REDUCE, 8, DType.FLOAT32, "max")
    assert (second.kind, second.count, second.dtype, second.root) == (K.BROADCAST, 5, DType.BFLOAT16, 1)
    assert codes(trace) == {"no-timestamps", "assumed-wait"}
    assert trace.hosts == {0: "node", 1: "node"}
    assert is_replayable(check(trace))


def test_sends_and_receives_of_one_launch_start_together_and_those_to_oneself_are_left_out() -> None:
    logs = [
        [init(r, 2), *(call(r, name, 5, 10 + r, root=peer) for peer in (0, 1) for name in ("Send", "Recv"))]
        for r in (0, 1)
    ]
    logs[0][-1] = call(0, "Recv", 5, 11, root=1)
    logs[1][2] = call(1, "Recv", 5, 10, root=0)
    trace = read(*logs)

    assert [type(op) for op in trace.programs[0].ops] == [Send, Recv, Wait, Wait, StepMark]
    sent, received = trace.programs[0].ops[:2]
    assert isinstance(sent, Send)
    assert isinstance(received, Recv)
    assert (sent.peer, sent.count, received.peer, received.count) == (1, 10, 1, 11)
    assert "alone" in codes(trace)
    assert is_replayable(check(trace))


def test_ranks_and_sub_groups_come_from_init_lines() -> None:
    """Processes 100 to 103 are ranks 3 to 0 of the world, and the even ones share a communicator that pairs them backwards."""
    logs = []
    for process in range(4):
        log = [init(3 - process, 4, pid=100 + process), call(process, "AllReduce", 1, 8, size=4)]
        if process % 2 == 0:
            log += [init(process // 2, 2, comm="0xb", group="0x99", pid=100 + process)]
            log += [call(process, "ReduceScatter", 1, 3, comm="0xb")]
        logs.append(log)
    trace = read(*logs)

    assert [group.ranks for group in trace.groups] == [(0, 1, 2, 3), (3, 1)]
    assert [type(op) for op in trace.programs[0].ops].count(Collective) == 1
    assert [type(op) for op in trace.programs[1].ops].count(Collective) == 2
    assert is_replayable(check(trace))


def test_one_of_several_processes_is_a_job_that_lacks_ranks() -> None:
    trace = read([init(2, 4), call(2, "AllGather", 1, 8, size=4)])

    assert (trace.world_size, sorted(trace.programs)) == (4, [2])
    assert "missing-rank" in {finding.code for finding in check(trace)}


def test_without_init_lines_processes_are_numbered_by_name_and_that_is_said() -> None:
    trace = read(both(call(0, "AllReduce", 1, 8)))

    assert (trace.world_size, "assumed-rank" in codes(trace)) == (2, True)


def test_rccl_says_the_rank_in_each_line() -> None:
    rows = [call(r, "Reduce", 1, 8, root=1, end=f" task 0 globalrank {1 - r}") for r in (0, 1)]
    trace = read(rows)

    assert trace.programs[1].ops[0].origin.source == 0
    assert "assumed-rank" not in codes(trace)
    assert {op.root for p in trace.programs.values() for op in p.ops if isinstance(op, Collective)} == {1}


def test_times_below_a_second_become_compute() -> None:
    stamps = ("[2025-04-01 12:00:00.250000] ", "[2025-04-01 12:00:01.000500] ")
    lines = both(*(call(0, "AllReduce", n, 8, at=at) for n, at in enumerate(stamps)))
    trace = read([init(0, 2), init(1, 2), *lines])

    assert [op.ns for op in trace.programs[0].ops if isinstance(op, Compute)] == [750_500_000]
    assert "assumed-compute" in codes(trace)
    coarse = read([init(0, 2), init(1, 2), *both(call(0, "AllReduce", 1, 8, at="[2025-04-01 12:00:00] "))])
    assert "no-timestamps" in codes(coarse)


def test_a_log_that_a_crash_cut_lacks_its_last_line() -> None:
    lines = [init(0, 1), call(0, "AllReduce", 1, 8, size=1), call(0, "AllReduce", 2, 8, size=1)[:-30]]
    trace = nccl_log.read([Opened("x", "\n".join(lines).encode(), "", True)])

    assert {"cut-line", "alone"} <= codes(trace)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([init(0, 1)], "no call of a communicator"),
        ([call(0, "AllReduce", 1, 8)[:90], ""], "line 1: a call is damaged"),
        ([call(0, "Swap", 1, 8)], "line 1: unknown operation 'Swap'"),
        ([call(0, "AllReduce", 1, 8, dtype="42")], "line 1: no datatype has the number 42"),
        ([call(0, "AllReduce", 1, 8, size=70_000)], "line 1: a communicator of 70000 ranks"),
        ([init(0, 4), call(0, "AllReduce", 1, 8)], "line 2: nranks is 2 here, 4 at Init"),
        ([call(0, "AllReduce", 1, 8, size=4)], "which 4 processes are in this communicator"),
        ([init(5, 4)], "line 1: rank 5 of 4"),
        ([init(0, 2), init(0, 2, pid=7)], "line 2: rank 0 of communicator 0x77 is another process"),
        ([init(0, 2), call(0, "Send", 1, 8, root=2)], "line 2: root 2 of a communicator of 2"),
        ([call(0, "AllReduce", 1, 8, size=1, at="[2025-14-01 12:00:00.5] ")], "is no time"),
    ],
)
def test_what_is_wrong_is_named(lines: list[str], said: str) -> None:
    with pytest.raises(TraceError) as caught:
        read(lines)
    assert said in str(caught.value)


def test_a_folder_of_logs_is_one_job(tmp_path: Path) -> None:
    for rank in (0, 1):
        text = "\n".join([init(rank, 2), call(rank, "AllReduce", 1, 8), ""])
        (tmp_path / f"nccl.node.{rank}.log").write_text(text)

    trace = import_files([tmp_path])
    assert (trace.world_size, [source.format for source in trace.sources]) == (2, ["nccl-log", "nccl-log"])


def test_content_shows_the_format() -> None:
    known = choose(("NCCL version 2.21\n" + init(0, 2)).encode())

    assert known is not None
    assert known.name == "nccl-log"
