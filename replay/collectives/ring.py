"""Ring all-reduce, reduce-scatter and all-gather.

Each rank sends to the next and receives from the one before it, one chunk a step. A chunk travels as segments, and each
goes on as soon as it has arrived (and been reduced), so the wire stays busy from one step to the next.

Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69(2), 2009.
"""

from __future__ import annotations

from replay.collectives.registry import algorithm
from replay.collectives.schedule import Call, Recv, Schedule, Send, Task, part, segments
from traces.program import CollectiveKind


@algorithm(CollectiveKind.ALL_REDUCE, "ring", default=True)
def all_reduce(call: Call) -> Schedule:
    """Buffer: the tensor, input and output. 2(N-1) steps; a rank sends 2(N-1)/N of the tensor."""
    chunks = [part(call.count, call.size, index) for index in range(call.size)]
    return _ring(call, chunks, first=call.me, reducing=call.size - 1, passing=call.size - 1)


@algorithm(CollectiveKind.REDUCE_SCATTER, "ring", default=True)
def reduce_scatter(call: Call) -> Schedule:
    """Buffer: N slots of `count`, input in all, output in slot `me`. N-1 steps; a rank sends N-1 slots."""
    return _ring(call, _slots(call), first=call.me - 1, reducing=call.size - 1, passing=0)


@algorithm(CollectiveKind.ALL_GATHER, "ring", default=True)
def all_gather(call: Call) -> Schedule:
    """Buffer: N slots of `count`, input in slot `me`, output in all. N-1 steps; a rank sends N-1 slots."""
    return _ring(call, _slots(call), first=call.me, reducing=0, passing=call.size - 1)


def _slots(call: Call) -> list[tuple[int, int]]:
    return [(index * call.count, call.count) for index in range(call.size)]


def _ring(call: Call, chunks: list[tuple[int, int]], *, first: int, reducing: int, passing: int) -> Schedule:
    """Step s sends chunk `first - s` and receives the one before it; the first `reducing` steps reduce what they
    receive.

    A received segment never overwrites one whose send is still queued: what arrives the second time has been through
    that send.
    """
    right, left = (call.me + 1) % call.size, (call.me - 1) % call.size
    tasks: list[Task] = []
    arrival: dict[int, int] = {}
    for step in range(reducing + passing):
        for offset, count in segments(call, *chunks[(first - step) % call.size]):
            tasks.append(Send(right, offset, count, (arrival[offset],) if step else ()))
        for offset, count in segments(call, *chunks[(first - step - 1) % call.size]):
            arrival[offset] = len(tasks)
            tasks.append(Recv(left, offset, count, reduce=step < reducing))
    return Schedule(tuple(tasks), sum(count for _, count in chunks))
