"""Bruck's all-gather and all-to-all: ceil(log2 N) rounds for any N, for small messages.

Source: Bruck et al., "Efficient algorithms for all-to-all communications in multiport message-passing systems", IEEE TPDS
8(11), 1997; as MPICH has them (Thakur et al., IJHPCA 19(1), 2005, sections 4.1 and 4.7).
"""

from __future__ import annotations

from replay.collectives.registry import Need, algorithm
from replay.collectives.schedule import Call, Schedule
from replay.collectives.steps import Span, Steps, joined, slots
from traces.program import CollectiveKind


@algorithm(CollectiveKind.ALL_GATHER, "bruck")
def all_gather(call: Call) -> Schedule:
    """Buffer: N slots of `count`, input in slot `me`, output in all. In round k a rank has the 2^k slots from its own on, sends
    them (at most what the other lacks) to the 2^k-th before it, and gets the next 2^k from the 2^k-th after it: N-1 slots sent.

    Wins over a ring for small slots, and over `recursive-doubling` where N is no power of two. Slots that go round the end of
    the buffer are two messages. A round waits for the one before, or its own slot would go out early and take its port.
    """
    steps, have = Steps(call), 1
    while have < call.size:
        count = min(have, call.size - have)
        steps.send((call.me - have) % call.size, *_round(call, call.me, count))
        steps.recv((call.me + have) % call.size, *_round(call, call.me + have, count))
        steps.next_round()
        have += count
    return steps.schedule(call.size * call.count)


@algorithm(CollectiveKind.ALL_TO_ALL, "bruck", needs=Need.EVEN)
def all_to_all(call: Call) -> Schedule:
    """Buffer: what is sent, by receiver, then what is received, by sender; behind it, for each round, what is packed to be sent
    and what has come. In round k a rank sends all blocks whose way (receiver less sender) has bit k to the 2^k-th after it:
    about half of what it has, ceil(log2 N) times.

    Wins for small blocks, as a round is one message where the other algorithms have N-1. Blocks go by way of other ranks, so
    all must be of one size.
    """
    size, me, block = call.size, call.me, call.send_splits[0]
    received, steps = size * block, Steps(call)
    at = {way: (me + way) % size * block for way in range(size)}
    end = 2 * size * block
    distance = 1
    while distance < size:
        moved = [way for way in range(size) if way & distance]
        for index, way in enumerate(moved):
            steps.copy((at[way], block), end + index * block)
        room = len(moved) * block
        steps.send((me + distance) % size, (end, room))
        steps.recv((me - distance) % size, (end + room, room))
        at |= {way: end + room + index * block for index, way in enumerate(moved)}
        end += 2 * room
        distance *= 2
    for way, offset in at.items():
        steps.copy((offset, block), received + (me - way) % size * block)
    return steps.schedule(end)


def _round(call: Call, first: int, count: int) -> tuple[Span, ...]:
    """`count` slots from `first` on, round the end."""
    return joined(slots(call)[(first + index) % call.size] for index in range(count))
