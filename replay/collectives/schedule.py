"""What an algorithm produces: a small task graph per rank, in elements of one work buffer. No sockets, no clock.

A peer is an index into the group, so that every group of one size shares its schedules. Between two ranks the n-th send
of the one is the n-th receive of the other, both in task order: that number is the message's name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from replay.collectives.wires import Wires
from traces.program import CollectiveKind

_SLOTTED = {CollectiveKind.ALL_GATHER, CollectiveKind.GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.SCATTER}
"""Of which `count` is what one rank gives or gets, and the operation is about as much for each."""


@dataclass(frozen=True, slots=True)
class Call:
    """What is asked of an algorithm, for one rank. Equal calls share one Schedule.

    `size` and `me`: ranks in the group, and this rank's index; `root` is an index, -1 where there is none. `count` and
    the splits are in elements, as `traces.program.Collective` defines them; `itemsize` in bytes; `segment` is the most
    bytes a pipelined message may hold. `islands`: which island each rank of the group is on, numbered from 0 in their
    order; empty where they share one, or each has its own. `wires`: what lies between them, for algorithms that ask for it.
    `window` is the most bytes that a served rank has under way, 0 for no limit.
    """

    kind: str
    algorithm: str
    size: int
    me: int
    count: int
    itemsize: int
    segment: int
    root: int = -1
    send_splits: tuple[int, ...] = ()
    recv_splits: tuple[int, ...] = ()
    islands: tuple[int, ...] = ()
    wires: Wires | None = None
    window: int = 0

    @property
    def slots(self) -> int:
        """How many times `count` elements the operation is about: once, or once for each rank."""
        return self.size if self.kind in _SLOTTED else 1

    @property
    def nbytes(self) -> int:
        """Bytes of the operation, as this rank sees it: the tensor's, of all slots, or of what an all-to-all sends or brings."""
        if self.kind == CollectiveKind.ALL_TO_ALL:
            return max(sum(self.send_splits), sum(self.recv_splits)) * self.itemsize
        return self.count * self.slots * self.itemsize


@dataclass(frozen=True, slots=True)
class Send:
    """Sends `count` elements at `offset` to `peer` once the tasks `after` are done; `held`: it is done when the peer has them,
    where that is a large message's, and not when they have left.
    """

    peer: int
    offset: int
    count: int
    after: tuple[int, ...] = ()
    held: bool = False


@dataclass(frozen=True, slots=True)
class Recv:
    """Receives `count` elements from `peer` to `offset`; `reduce`: combines them with what is there instead of
    replacing it.
    """

    peer: int
    offset: int
    count: int
    after: tuple[int, ...] = ()
    reduce: bool = False


@dataclass(frozen=True, slots=True)
class Copy:
    """Copies `count` elements from `offset` to `target` inside the work buffer."""

    offset: int
    target: int
    count: int
    after: tuple[int, ...] = ()


Task = Send | Recv | Copy


@dataclass(frozen=True, slots=True)
class Schedule:
    """The tasks of one rank for one operation; `elements` is the length of its work buffer.

    `numbers[i]` is the number of task i among the messages of its direction and peer (-1 for a Copy), `dependents[i]`
    the tasks that wait for task i.
    """

    tasks: tuple[Task, ...]
    elements: int
    numbers: tuple[int, ...] = field(init=False)
    dependents: tuple[tuple[int, ...], ...] = field(init=False)

    def __post_init__(self) -> None:
        seen: Counter[tuple[type[Task], int]] = Counter()
        numbers: list[int] = []
        dependents: list[list[int]] = [[] for _ in self.tasks]
        for index, task in enumerate(self.tasks):
            if isinstance(task, Copy):
                numbers.append(-1)
            else:
                numbers.append(seen[type(task), task.peer])
                seen[type(task), task.peer] += 1
            for earlier in task.after:
                dependents[earlier].append(index)
        object.__setattr__(self, "numbers", tuple(numbers))
        object.__setattr__(self, "dependents", tuple(tuple(later) for later in dependents))

    @property
    def peers(self) -> frozenset[int]:
        """Group indices that this rank exchanges messages with."""
        return frozenset(task.peer for task in self.tasks if not isinstance(task, Copy))


def part(count: int, parts: int, index: int) -> tuple[int, int]:
    """(offset, count) of part `index` of `count` elements cut into `parts` that differ by one element at most."""
    small, larger = divmod(count, parts)
    return index * small + min(index, larger), small + (index < larger)


def segments(call: Call, offset: int, count: int) -> Iterator[tuple[int, int]]:
    """(offset, count) of the messages that carry `count` elements at `offset`: the fewest that fit `call.segment`, none
    for 0.
    """
    elements = max(1, call.segment // call.itemsize)
    pieces = -(-count // elements)
    for index in range(pieces):
        start, length = part(count, pieces, index)
        yield offset + start, length
