"""Traces of liballprof: calls as gencode.py prints them, by hand."""

from __future__ import annotations

import pytest

from traces.checks import check, is_replayable
from traces.errors import TraceError
from traces.files import Opened
from traces.formats import choose, pmpi
from traces.program import Collective, CollectiveKind, Compute, Recv, Send, StepMark, Trace, Wait

HEAD = "# htor's PMPI Tracer 1.0 Output File\n# clockdiff: 0.000000 s (relative to rank 0)\n\nMPI_Init:-:0:0:1000\n"
TYPE = "11,8,8"


def comm(rank: int, size: int = 2) -> str:
    return f"7152208,{rank},{size}"


def call(name: str, start: int, end: int, *arguments: object) -> str:
    return ":".join(map(str, [name, start, *arguments, end])) + "\n"


def read(*files: str) -> Trace:
    return pmpi.read([Opened(f"pmpi-{n}.txt", text.encode(), "", True) for n, text in enumerate(files)])


def of(rank: int) -> str:
    """A step in which rank 0 sends to rank 1, and both reduce."""
    lines = HEAD + call("MPI_Comm_rank", 1000, 1000, comm(rank), 140)
    way, at = ("MPI_Isend", 1) if rank == 0 else ("MPI_Irecv", 0)
    lines += call(way, 1200, 1210, 9, 100, TYPE, at, 7, comm(rank), 6400)
    lines += call("MPI_Allreduce", 1500, 1600, 1, 2, 4500, TYPE, 3, comm(rank))
    lines += call("MPI_Waitall", 1650, 1700, 3, 6392, 0)
    return lines + call("MPI_Bcast", 1700, 1750, 5, 10, TYPE, 1, comm(rank)) + "MPI_Finalize:1760:-\n"


def test_calls_with_what_lies_between_them_as_compute() -> None:
    trace = read(of(0), of(1))

    assert (trace.world_size, trace.step_count) == (2, 1)
    ops = trace.programs[0].ops
    told = [op.ns if isinstance(op, Compute) else type(op) for op in ops]
    assert told == [
        *(200_000, Send, 290_000, Collective, Wait, 50_000, Wait),
        *(Collective, Wait, 10_000, StepMark),
    ]
    assert [op.op for op in ops if isinstance(op, Wait)] == [3, 1, 7]
    found = [(op.kind, op.count, op.root) for op in ops if isinstance(op, Collective)]
    assert found == [(CollectiveKind.ALL_REDUCE, 36_000, -1), (CollectiveKind.BROADCAST, 80, 1)]
    message = trace.programs[1].ops[1]
    assert isinstance(message, Recv)
    assert (message.peer, message.count, message.tag) == (0, 800, 7)
    assert is_replayable(check(trace))


def test_a_receive_from_anybody_is_of_the_rank_that_sent() -> None:
    trace = read(of(0), of(1).replace(f":{TYPE}:0:7:", f":{TYPE}:-1:7:"))

    assert [op.peer for op in trace.programs[1].ops if isinstance(op, Recv)] == [0]
    assert "assumed-peer" in {finding.code for finding in trace.findings}


def test_both_ways_at_once_and_nobody() -> None:
    lines = []
    for rank in (0, 1):
        both = call("MPI_Sendrecv", 1100, 1200, 1, 5, TYPE, 1 - rank, 3, 2, 5, TYPE, 1 - rank, 3, comm(rank), 0)
        lines.append(HEAD + both + call("MPI_Send", 1200, 1201, 1, 5, TYPE, -2, 3, comm(rank)))
    trace = read(*lines)

    assert [type(op) for op in trace.programs[0].ops] == [Compute, Send, Recv, Wait, Wait, Compute, StepMark]
    assert is_replayable(check(trace))


def test_handles_of_four_bytes_are_waited_for_too() -> None:
    sends = "".join(call("MPI_Isend", 1100, 1100, 1, 1, TYPE, 1, 0, comm(0), address) for address in (800, 804, 808))
    trace = read(HEAD + sends + call("MPI_Waitall", 1100, 1100, 2, 800, 0) + call("MPI_Barrier", 1100, 1100, comm(0)))

    assert [op.op for op in trace.programs[0].ops if isinstance(op, Wait)] == [1, 2, 6, 3]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEAD, "no call of a communicator"),
        (HEAD + "nonsense\n", "line 5: expected MPI_NAME:START:ARGUMENTS:END"),
        (HEAD + "MPI_Send\n", "line 5: expected MPI_NAME:START:ARGUMENTS:END"),
        (HEAD + call("MPI_Barrier", 1200, 1100, comm(0)), "line 5: ends before it starts"),
        (HEAD + call("MPI_Barrier", 1200, 1300, comm(2)), "line 5: rank 2 of 2"),
        (HEAD + call("MPI_Alltoallv", 1200, 1300, comm(0)), "line 5: MPI_Alltoallv is not read"),
        (HEAD + call("MPI_Bcast", 1200, 1300, 1, 9, TYPE, 2, comm(0)), "line 5: root 2 of 2"),
        (HEAD + call("MPI_Bcast", 1200, 1300, 1, 9, TYPE, "x", comm(0)), "line 5: expected a number as argument 4"),
        (HEAD + call("MPI_Bcast", 1200, 1300, 1, -9, TYPE, 0, comm(0)), "line 5: -72 bytes"),
        (HEAD + call("MPI_Send", 1200, 1300, 1, 9, TYPE, 2, 0, comm(0)), "line 5: rank 2 of 2"),
        (HEAD + call("MPI_Recv", 1200, 1300, 1, 9, TYPE, 1, -1, comm(0), 0), "line 5: tag -1: a receive of any tag"),
        (
            HEAD + call("MPI_Barrier", 1200, 1300, comm(0)) + call("MPI_Barrier", 1300, 1300, comm(0, 4)),
            "line 5: a communicator of 2 of 4 ranks",
        ),
    ],
)
def test_what_is_wrong_is_named(text: str, said: str) -> None:
    with pytest.raises(TraceError) as caught:
        read(text)
    assert said in str(caught.value)


def test_a_rank_is_given_once() -> None:
    with pytest.raises(TraceError, match="rank 0 is given twice"):
        read(of(0), of(0))


def test_content_shows_the_format() -> None:
    known = choose(HEAD.encode())

    assert known is not None
    assert known.name == "pmpi"
