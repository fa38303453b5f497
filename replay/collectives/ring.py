"""Ring all-reduce, reduce-scatter and all-gather, and reduce by a ring.

Each rank sends to the next and receives from the one before it, one chunk a step. A chunk travels as segments, and each
goes on as soon as it has arrived (and been reduced), so the wire stays busy from one step to the next. It sends the least
that can be sent, so it wins for large tensors; its steps grow with N, so it loses for small ones.

Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69(2), 2009.
"""

from __future__ import annotations

from collections.abc import Sequence

from replay.collectives.registry import algorithm
from replay.collectives.schedule import Call, Schedule, part
from replay.collectives.steps import Span, Steps, slots
from traces.program import CollectiveKind

Chunk = Sequence[Span]


@algorithm(CollectiveKind.ALL_REDUCE, "ring", default=True)
def all_reduce(call: Call) -> Schedule:
    """Buffer: the tensor, input and output. 2(N-1) steps; a rank sends 2(N-1)/N of the tensor."""
    steps = Steps(call)
    ring_all_reduce(steps, range(call.size), (0, call.count))
    return steps.schedule(call.count)


@algorithm(CollectiveKind.ALL_REDUCE, "two-rings")
def two_rings(call: Call) -> Schedule:
    """Buffer: the tensor, input and output. A half goes round as in `ring`, the other against it: 2(N-1) steps, a rank sends
    (N-1)/N of the tensor each way, 2(N-1)/N in all.

    Wins where a host can send faster than the link to either neighbour (a ring or torus of links, as NCCL's channels on
    NVLink meshes); behind one port it is as fast as `ring`. Source: NCCL's rings of several channels, src/graph/rings.cc.
    """
    steps = Steps(call)
    for order, half in ((range(call.size), 0), (range(call.size - 1, -1, -1), 1)):
        ring_all_reduce(steps, order, part(call.count, 2, half))
    return steps.schedule(call.count)


@algorithm(CollectiveKind.REDUCE_SCATTER, "ring", default=True)
def reduce_scatter(call: Call) -> Schedule:
    """Buffer: N slots of `count`, input in all, output in slot `me`. N-1 steps; a rank sends N-1 slots."""
    steps = Steps(call)
    ring_reduce_scatter(steps, range(call.size), [(slot,) for slot in slots(call)])
    return steps.schedule(call.size * call.count)


@algorithm(CollectiveKind.ALL_GATHER, "ring", default=True)
def all_gather(call: Call) -> Schedule:
    """Buffer: N slots of `count`, input in slot `me`, output in all. N-1 steps; a rank sends N-1 slots."""
    steps = Steps(call)
    ring_all_gather(steps, range(call.size), [(slot,) for slot in slots(call)])
    return steps.schedule(call.size * call.count)


@algorithm(CollectiveKind.REDUCE, "ring")
def reduce(call: Call) -> Schedule:
    """Buffer: the tensor, input everywhere, output at the root. A ring's reduce-scatter, then each rank but the root sends it
    its part: N-1 steps and one; each sends (N-1)/N of the tensor, all but the root 1/N more.

    What gloo does (gloo/reduce.cc). As much over each port as `chain`, in fewer bytes at a time; needs no pipelining.
    """
    steps = Steps(call)
    chunks = [part(call.count, call.size, index) for index in range(call.size)]
    ring_reduce_scatter(steps, range(call.size), [(chunk,) for chunk in chunks])
    if call.me != call.root:
        steps.send(call.root, chunks[call.me])
    else:
        for peer in range(call.size):
            if peer != call.root:
                steps.recv(peer, chunks[peer])
    return steps.schedule(call.count)


def ring_all_reduce(steps: Steps, members: Sequence[int], span: Span) -> None:
    """An all-reduce of `span` among `members` (indices into the group, this rank one of them) in the order of the ring."""
    offset, count = span
    cut = [part(count, len(members), index) for index in range(len(members))]
    chunks = [((offset + start, length),) for start, length in cut]
    hops = len(members) - 1
    _ring(steps, members, chunks, first=members.index(steps.call.me), reducing=hops, passing=hops)


def ring_reduce_scatter(steps: Steps, members: Sequence[int], chunks: Sequence[Chunk]) -> None:
    """Each member ends with its own of `chunks`, reduced."""
    _ring(steps, members, chunks, first=members.index(steps.call.me) - 1, reducing=len(members) - 1, passing=0)


def ring_all_gather(steps: Steps, members: Sequence[int], chunks: Sequence[Chunk]) -> None:
    """Each member ends with all `chunks`, of which it has its own."""
    _ring(steps, members, chunks, first=members.index(steps.call.me), reducing=0, passing=len(members) - 1)


def _ring(
    steps: Steps, members: Sequence[int], chunks: Sequence[Chunk], *, first: int, reducing: int, passing: int
) -> None:
    """Step s sends chunk `first - s` and receives the one before it; the first `reducing` steps reduce what they receive.

    A received segment never overwrites one whose send is still queued: what arrives the second time has been through
    that send.
    """
    size, me = len(members), members.index(steps.call.me)
    right, left = members[(me + 1) % size], members[(me - 1) % size]
    for step in range(reducing + passing):
        steps.send(right, *chunks[(first - step) % size])
        steps.recv(left, *chunks[(first - step - 1) % size], reduce=step < reducing)
