"""Pairwise exchange: in step k a rank sends to the k-th after it and receives from the k-th before it.

Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19(1),
2005, sections 4.4 and 4.7 (long messages, any number of ranks).
"""

from __future__ import annotations

from itertools import accumulate

from replay.collectives.registry import algorithm
from replay.collectives.schedule import Call, Copy, Recv, Schedule, Send, Task
from replay.collectives.steps import Steps, slots
from traces.program import CollectiveKind


@algorithm(CollectiveKind.ALL_TO_ALL, "pairwise", default=True)
def all_to_all(call: Call) -> Schedule:
    """Buffer: what is sent, by receiver, then what is received, by sender. N-1 steps; each block travels once.

    A step starts when the exchange of the step before has ended, so no rank has two senders at a time. Wins for large blocks.
    """
    return _exchanges(call, ordered=True)


@algorithm(CollectiveKind.ALL_TO_ALL, "direct")
def direct(call: Call) -> Schedule:
    """Buffer: as for `pairwise`. One step: each block travels once, all at the same time, as MPICH's scattered sends and gloo's
    all-to-all (gloo/alltoall.cc) have it. Saves the N-2 delays; many senders meet at each receiver.
    """
    return _exchanges(call, ordered=False)


@algorithm(CollectiveKind.REDUCE_SCATTER, "pairwise")
def reduce_scatter(call: Call) -> Schedule:
    """Buffer: N slots of `count`, input in all, output in slot `me`. A rank sends each other its slot, N-1 slots, and reduces
    what it gets; all are ready at the start, so there is one step. As much as a ring; what is sent is never waited for.
    """
    steps = Steps(call)
    for distance in range(1, call.size):
        target, source = (call.me + distance) % call.size, (call.me - distance) % call.size
        steps.send(target, slots(call)[target])
        steps.recv(source, slots(call)[call.me], reduce=True)
    return steps.schedule(call.size * call.count)


def _exchanges(call: Call, *, ordered: bool) -> Schedule:
    send_at = [0, *accumulate(call.send_splits)]
    recv_at = [send_at[-1] + offset for offset in (0, *accumulate(call.recv_splits))]
    me, size = call.me, call.size
    tasks: list[Task] = []
    if call.send_splits[me]:
        tasks.append(Copy(send_at[me], recv_at[me], call.send_splits[me]))
    before: tuple[int, ...] = ()
    for step in range(1, size):
        target, source = (me + step) % size, (me - step) % size
        exchange: list[int] = []
        if call.send_splits[target]:
            exchange.append(len(tasks))
            tasks.append(Send(target, send_at[target], call.send_splits[target], before))
        if call.recv_splits[source]:
            exchange.append(len(tasks))
            tasks.append(Recv(source, recv_at[source], call.recv_splits[source]))
        if ordered:
            before = tuple(exchange) or before
    return Schedule(tuple(tasks), recv_at[-1])
