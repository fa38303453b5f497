"""Everything in one step: gather and scatter between the root and each other rank, and point-to-point.

Gloo's gather and scatter work this way (gloo/gather.cc, scatter.cc), NCCL's users write it as grouped sends and
receives.
"""

from __future__ import annotations

from replay.collectives.registry import algorithm
from replay.collectives.schedule import Call, Recv, Schedule, Send
from traces.program import CollectiveKind

SEND_RECV = "send_recv"
"""The kind of a point-to-point call: a group of two, index 0 sends to index 1."""


@algorithm(CollectiveKind.GATHER, "flat", default=True)
def gather(call: Call) -> Schedule:
    """Buffer: N slots of `count`, input in slot `me`, output in all at the root, which receives N-1 messages at once."""
    others = [index for index in range(call.size) if index != call.root and call.count]
    if call.me == call.root:
        tasks = tuple(Recv(index, index * call.count, call.count) for index in others)
        return Schedule(tasks, call.size * call.count)
    own = tuple(Send(call.root, index * call.count, call.count) for index in others if index == call.me)
    return Schedule(own, call.size * call.count)


@algorithm(CollectiveKind.SCATTER, "flat", default=True)
def scatter(call: Call) -> Schedule:
    """Buffer: N slots of `count`, input in all at the root, output in slot `me`. The root sends N-1 messages at once."""
    others = [index for index in range(call.size) if index != call.root and call.count]
    if call.me == call.root:
        tasks = tuple(Send(index, index * call.count, call.count) for index in others)
        return Schedule(tasks, call.size * call.count)
    own = tuple(Recv(call.root, index * call.count, call.count) for index in others if index == call.me)
    return Schedule(own, call.size * call.count)


@algorithm(SEND_RECV, "direct", default=True)
def send_recv(call: Call) -> Schedule:
    """Buffer: the tensor. One message, also where it is empty: a receive of nothing still waits for its sender."""
    task = Send(1, 0, call.count) if call.me == 0 else Recv(0, 0, call.count)
    return Schedule((task,), call.count)
