"""Builds a rank's tasks from the order in which an algorithm does them; what each waits for follows from what it touches.

A send waits for all that wrote what it sends, a copy too, and for what is still sent from where it writes; a receive for
copies out of where it writes, which are over in an instant. A receive does not wait for sends from there: whoever sends
something back has received it, which each algorithm must see to (tests/replay/test_algorithms.py looks at all).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from replay.collectives.schedule import Call, Copy, Recv, Schedule, Send, Task, segments

Span = tuple[int, int]
"""(offset, count) of elements of the work buffer."""

_Ids = frozenset[int]
_NOBODY: _Ids = frozenset()


class Steps:
    """The tasks of one rank. Spans of 0 elements send nothing; all are cut into segments, so what follows on a segment need not
    wait for the others."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self._tasks: list[Task] = []
        self._written, self._sent, self._copied = _Users(), _Users(), _Users()
        self._turn, self._round, self._round_began = _NOBODY, _NOBODY, 0

    def send(self, peer: int, *spans: Span, in_turn: bool = False) -> None:
        """Sends; `in_turn`: not before the peer has what was last sent in turn, as a program does whose sends return then: MPI's
        of large messages, which a receiver takes first."""
        for offset, count in self._pieces(spans):
            after = self._written.of(offset, count) | self._round
            if in_turn:
                after, self._turn = after | self._turn, frozenset({len(self._tasks)})
            self._sent.add(offset, count, len(self._tasks))
            self._tasks.append(Send(peer, offset, count, _sorted(after), held=in_turn))

    def next_round(self) -> None:
        """What is sent from here on waits for all that was to be sent and received: for a copy of nothing that does."""
        self._round = frozenset({len(self._tasks)})
        self._tasks.append(Copy(0, 0, 0, tuple(range(self._round_began, len(self._tasks)))))
        self._round_began = len(self._tasks) - 1

    def recv(self, peer: int, *spans: Span, reduce: bool = False) -> None:
        for offset, count in self._pieces(spans):
            after = self._copied.of(offset, count)
            if reduce:
                self._written.add(offset, count, len(self._tasks))
            else:
                self._written.put(offset, count, len(self._tasks))
            self._tasks.append(Recv(peer, offset, count, _sorted(after), reduce))

    def copy(self, span: Span, target: int) -> None:
        for offset, count in self._pieces([span]):
            there = target + offset - span[0]
            after = self._written.of(offset, count) | self._sent.of(there, count) | self._copied.of(there, count)
            self._copied.add(offset, count, len(self._tasks))
            self._written.put(there, count, len(self._tasks))
            self._tasks.append(Copy(offset, there, count, _sorted(after)))

    def schedule(self, elements: int) -> Schedule:
        return Schedule(tuple(self._tasks), elements)

    def _pieces(self, spans: Iterable[Span]) -> Iterable[Span]:
        for offset, count in spans:
            yield from segments(self.call, offset, count)


def joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """The same elements in as few spans as can be, where neighbours follow each other; empty ones left out."""
    found: list[Span] = []
    for offset, count in spans:
        if found and sum(found[-1]) == offset:
            found[-1] = found[-1][0], found[-1][1] + count
        elif count:
            found.append((offset, count))
    return tuple(found)


def slots(call: Call) -> list[Span]:
    """The N slots of `count` of a buffer that has one for each rank."""
    return [(index * call.count, call.count) for index in range(call.size)]


def _sorted(ids: _Ids) -> tuple[int, ...]:
    return tuple(sorted(ids))


class _Users:
    """Which tasks used each element last: those since the last `put`. The buffer in ranges that have the same tasks."""

    def __init__(self) -> None:
        self._starts = [0]
        self._users = [_NOBODY]

    def of(self, offset: int, count: int) -> _Ids:
        first, last = bisect_right(self._starts, offset) - 1, bisect_left(self._starts, offset + count)
        return _NOBODY.union(*self._users[first:last])

    def add(self, offset: int, count: int, task: int) -> None:
        first, last = self._cut(offset), self._cut(offset + count)
        for index in range(first, last):
            self._users[index] |= {task}

    def put(self, offset: int, count: int, task: int) -> None:
        first, last = self._cut(offset), self._cut(offset + count)
        self._starts[first:last] = [offset]
        self._users[first:last] = [frozenset({task})]

    def _cut(self, at: int) -> int:
        """The index of the range that starts at `at`."""
        index = bisect_left(self._starts, at)
        if index == len(self._starts) or self._starts[index] != at:
            self._starts.insert(index, at)
            self._users.insert(index, self._users[index - 1])
        return index
