"""Broadcast and reduce along a chain, pipelined in segments: what NCCL's ring does for both.

The chain starts at the root and follows the group's order. Time is one transfer of the tensor plus a segment and a
delay per hop.

Source: NCCL, src/device/broadcast.h and reduce.h (ring); Barnett et al., "Broadcasting on meshes with wormhole
routing", JPDC 35(2), 1996, for pipelined chains.
"""

from __future__ import annotations

from replay.collectives.registry import algorithm
from replay.collectives.schedule import Call, Recv, Schedule, Send, Task, segments
from traces.program import CollectiveKind


@algorithm(CollectiveKind.BROADCAST, "chain", default=True)
def broadcast(call: Call) -> Schedule:
    """Buffer: the tensor, input at the root, output everywhere. N-1 hops; every rank but the last sends the tensor
    once.
    """
    source, target = (call.me - 1) % call.size, (call.me + 1) % call.size
    return _chain(call, source=source, target=target, start=call.root, reduce=False)


@algorithm(CollectiveKind.REDUCE, "chain", default=True)
def reduce(call: Call) -> Schedule:
    """Buffer: the tensor, input everywhere, output at the root. N-1 hops; every rank but the root sends the tensor
    once.
    """
    source, target = (call.me + 1) % call.size, (call.me - 1) % call.size
    return _chain(call, source=source, target=target, start=(call.root - 1) % call.size, reduce=True)


def _chain(call: Call, *, source: int, target: int, start: int, reduce: bool) -> Schedule:
    """Passes the tensor on from `source` to `target`; `start` has no source, and the rank whose target is `start` no
    target.
    """
    tasks: list[Task] = []
    for offset, count in segments(call, 0, call.count):
        after: tuple[int, ...] = ()
        if call.me != start:
            after = (len(tasks),)
            tasks.append(Recv(source, offset, count, reduce=reduce))
        if target != start:
            tasks.append(Send(target, offset, count, after))
    return Schedule(tuple(tasks), call.count)
