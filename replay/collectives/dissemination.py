"""Barrier by dissemination: in round k a rank tells the 2^k-th after it that all it has heard of have come.

Source: Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", Int. J. of Parallel Programming 17(1),
1988.
"""

from __future__ import annotations

from replay.collectives.registry import algorithm
from replay.collectives.schedule import Call, Recv, Schedule, Send, Task
from traces.program import CollectiveKind


@algorithm(CollectiveKind.BARRIER, "dissemination", default=True)
def barrier(call: Call) -> Schedule:
    """Buffer: empty. ceil(log2 N) rounds of one empty message; a round waits for all that were received before it."""
    tasks: list[Task] = []
    heard: tuple[int, ...] = ()
    for round_ in range((call.size - 1).bit_length()):
        distance = 1 << round_
        tasks.append(Send((call.me + distance) % call.size, 0, 0, heard))
        heard = (*heard, len(tasks))
        tasks.append(Recv((call.me - distance) % call.size, 0, 0))
    return Schedule(tuple(tasks), 0)
