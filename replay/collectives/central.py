"""Everything through one rank, the group's last: it reduces what the others send, and tells them what came of it.

This is how a parameter server works, one shard of it, and an aggregator in the network. What is reduced goes back piece by
piece, each as soon as all have sent it, so both directions of a wire are busy at once.

Wins where it is near: 2 messages of delay, whatever N is, against the ring's 2(N-1). Loses at the centre's wire, which
carries (N-1) times the tensor each way.

Source: Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014; for the window Sapio et al.,
"Scaling distributed machine learning with in-network aggregation", NSDI 2021, where a slot is used again when its sum is
back.
"""

from __future__ import annotations

from replay.collectives.registry import algorithm
from replay.collectives.schedule import Call, Recv, Schedule, Send, Task, segments
from traces.program import CollectiveKind

CENTRAL = "central"


@algorithm(CollectiveKind.ALL_REDUCE, CENTRAL)
def all_reduce(call: Call) -> Schedule:
    """Buffer: the tensor, input and output. 2 steps; the last rank sends the tensor N-1 times, each other once.

    With a window, a piece waits for the sum of the one that many bytes before it.
    """
    centre = call.size - 1
    tasks: list[Task] = []
    if call.me == centre:
        for offset, count in segments(call, 0, call.count):
            here = tuple(range(len(tasks), len(tasks) + centre))
            tasks += [Recv(peer, offset, count, reduce=True) for peer in range(centre)]
            tasks += [Send(peer, offset, count, here) for peer in range(centre)]
        return Schedule(tuple(tasks), call.count)
    slots = max(1, call.window // call.segment)
    for number, (offset, count) in enumerate(segments(call, 0, call.count)):
        freed = (2 * (number - slots) + 1,) if call.window and number >= slots else ()
        tasks += [Send(centre, offset, count, freed), Recv(centre, offset, count)]
    return Schedule(tuple(tasks), call.count)


@algorithm(CollectiveKind.BARRIER, CENTRAL)
def barrier(call: Call) -> Schedule:
    """Buffer: empty. 2 steps of empty messages: to the last rank, and back when all have come."""
    centre = call.size - 1
    if call.me != centre:
        return Schedule((Send(centre, 0, 0), Recv(centre, 0, 0)), 0)
    everyone = tuple(range(centre))
    return Schedule((*(Recv(peer, 0, 0) for peer in everyone), *(Send(peer, 0, 0, everyone) for peer in everyone)), 0)
