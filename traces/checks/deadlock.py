"""Ranks that wait for each other for ever, found by running the programs without time and without bytes.

Two models of what an operation needs to end bound what any library does. *Unbuffered*: all that take part have begun it, as
where a sender waits for its receiver. *Buffered*: only those that it can't do without; a send needs nobody, a broadcast its
root, a reduce's root all. Programs that end unbuffered end always; those that are stuck though buffered are stuck always. MPI
calls what lies between unsafe (MPI 4.0, section 3.5).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from traces.checks.said import error, name, ranges
from traces.program import Collective, CollectiveKind, Communication, Finding, Op, Recv, Send, Trace, Wait

_FROM_ROOT = {CollectiveKind.BROADCAST, CollectiveKind.SCATTER}
_TO_ROOT = {CollectiveKind.REDUCE, CollectiveKind.GATHER}
_Key = tuple[object, ...]


def deadlock(trace: Trace) -> Iterator[Finding]:
    """Each cycle of ranks that wait for each other, and each operation that some rank never starts though others wait."""
    if len(trace.programs) < trace.world_size:
        return  # whoever waits for a rank that was not recorded would be stuck
    unbuffered = _Run(trace, buffered=False).stuck()
    buffered = _Run(trace, buffered=True).stuck() if unbuffered else []
    for knot in buffered:
        if knot.is_cycle:
            yield error("deadlock", f"ranks wait for each other for ever: {knot.text}", rank=knot.rank, op=knot.op)
        else:
            yield error("never-ends", knot.text, rank=knot.rank, op=knot.op)
    for knot in unbuffered:
        if knot.is_cycle and not buffered:
            text = f"ranks wait for each other for ever where sends end only when they are received: {knot.text}"
            yield Finding("deadlock-unbuffered", text, "warning", knot.rank, knot.op)


@dataclass(slots=True)
class _Meeting:
    """One operation at all that take part. `waiting` has the parts that need a rank which has not begun it, by that rank."""

    key: _Key
    number: int
    ranks: tuple[int, ...]
    begun: set[int] = field(default_factory=set)
    waiting: dict[int, list[_Part]] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Part:
    """One rank's part of an operation; `needs` is a rank without which it can't end."""

    rank: int
    index: int
    op: Communication
    meeting: _Meeting
    needs: int = -1  # -1 is also the peer of a receive from any rank


@dataclass(slots=True)
class _Rank:
    """Where a rank is: its next operation, what it has started that has not ended, and the queues of its lanes."""

    ops: Sequence[Op]
    next: int = 0
    open: dict[int, _Part] = field(default_factory=dict)
    lanes: dict[int, deque[_Part]] = field(default_factory=dict)
    started: Counter[_Key] = field(default_factory=Counter)

    def held_by(self) -> _Part:
        """What keeps a stuck rank: what it waits for, or the operation that this one queues behind."""
        op = self.ops[self.next] if self.next < len(self.ops) else None
        wanted = self.open[op.op] if isinstance(op, Wait) else next(iter(self.open.values()))
        return next((lane[0] for lane in self.lanes.values() if wanted in lane), wanted)


@dataclass(frozen=True, slots=True)
class _Knot:
    """Why ranks are stuck: a cycle, or an operation that one of its ranks never starts. `rank`, `op`: the first in it."""

    is_cycle: bool
    text: str
    rank: int
    op: int


class _Run:
    """All ranks, run as far as they come."""

    def __init__(self, trace: Trace, *, buffered: bool) -> None:
        self._groups = {group.id: group for group in trace.groups}
        self._buffered = buffered
        self._meetings: dict[tuple[_Key, int], _Meeting] = {}
        self._ranks = {rank: _Rank(program.ops) for rank, program in trace.programs.items()}
        self._ready = deque(self._ranks)
        while self._ready:
            self._advance(self._ready.popleft())

    def stuck(self) -> list[_Knot]:
        """Why ranks have not come to their end, each cause once."""
        knots: dict[tuple[int, int], _Knot] = {}
        held: dict[tuple[int, int], list[int]] = {}
        for rank, state in self._ranks.items():
            if state.open:
                knot = self._knot(state.held_by())
                knots[knot.rank, knot.op] = knot
                held.setdefault((knot.rank, knot.op), []).append(rank)
        return [replace(knot, text=f"{knot.text}; stuck: rank {ranges(held[cause])}") for cause, knot in knots.items()]

    def _knot(self, part: _Part) -> _Knot:
        """What keeps `part`, what keeps that, and so on, to where it goes round or to a rank that never takes part."""
        chain: dict[int, _Part] = {}
        while id(part) not in chain:
            chain[id(part)] = part
            behind = self._behind(part)
            if behind is None:
                where = f"at rank {part.needs}" if part.needs in self._ranks else "at any rank"
                return _Knot(False, f"{_label(part)} never ends: nothing {where} is for it", part.rank, part.index)
            part = behind
        parts = list(chain.values())
        cycle = parts[parts.index(part) :]
        first = cycle.index(min(cycle, key=lambda each: (each.rank, each.index)))
        cycle = cycle[first:] + cycle[:first]
        text = ", ".join(f"{_label(each)} waits for rank {each.needs}" for each in cycle)
        return _Knot(True, text, cycle[0].rank, cycle[0].index)

    def _behind(self, part: _Part) -> _Part | None:
        """What the rank that `part` needs has to end before it can begin its own part. None where it has no such part."""
        if part.needs not in self._ranks or part.needs not in part.meeting.ranks:
            return None
        state = self._ranks[part.needs]
        for lane in state.lanes.values():
            if any(queued.meeting is part.meeting for queued in lane):
                return lane[0]
        key = part.meeting.key
        has_part = sum(_key(part.needs, op) == key for op in state.ops) >= part.meeting.number
        return state.held_by() if has_part else None

    def _advance(self, rank: int) -> None:
        """Runs `rank` to its end, or to a wait for what has not ended."""
        state = self._ranks[rank]
        while state.next < len(state.ops):
            op = state.ops[state.next]
            if isinstance(op, Wait) and op.op in state.open:
                return
            if isinstance(op, Communication):
                self._start(rank, op)
            state.next += 1

    def _start(self, rank: int, op: Communication) -> None:
        state, group = self._ranks[rank], self._groups.get(op.group)
        if group is None or (isinstance(op, Collective) and rank not in group.ranks):
            return  # said elsewhere
        key = _key(rank, op)
        state.started[key] += 1
        number = state.started[key]
        ranks = group.ranks if isinstance(op, Collective) else (rank, op.peer)
        meeting = self._meetings.get((key, number))
        if meeting is None:
            meeting = self._meetings[key, number] = _Meeting(key, number, ranks)
        part = state.open[state.next] = _Part(rank, state.next, op, meeting)
        if isinstance(op, Collective):
            lane = state.lanes.setdefault(group.lane, deque())
            lane.append(part)
            if lane[0] is not part:
                return
        self._begin(part)

    def _begin(self, part: _Part) -> None:
        """Begins `part`, ends what waited for nothing else, and begins what was queued behind that."""
        begun = [part]
        while begun:
            part = begun.pop()
            part.meeting.begun.add(part.rank)
            for other in [*part.meeting.waiting.pop(part.rank, []), part]:
                needed = self._needed(other)
                if needed is not None:
                    other.needs = needed
                    part.meeting.waiting.setdefault(needed, []).append(other)
                elif (behind := self._end(other)) is not None:
                    begun.append(behind)

    def _needed(self, part: _Part) -> int | None:
        """A rank that has to begin before `part` can end; the last of them, as ranks are run in their order."""
        op, meeting = part.op, part.meeting
        if len(meeting.begun) == len(meeting.ranks):
            return None
        ranks = meeting.ranks
        if isinstance(op, Recv):
            ranks = (op.peer,)
        elif self._buffered and isinstance(op, Send):
            ranks = ()
        elif self._buffered and isinstance(op, Collective) and op.kind in _FROM_ROOT:
            ranks = (op.root,)
        elif self._buffered and isinstance(op, Collective) and op.kind in _TO_ROOT and op.root != part.rank:
            ranks = ()
        for rank in reversed(ranks):
            if rank not in meeting.begun:
                return rank
        return None

    def _end(self, part: _Part) -> _Part | None:
        """Ends `part`; gives what its lane begins next."""
        state = self._ranks[part.rank]
        del state.open[part.index]
        if state.next < len(state.ops) and _waits_for(state.ops[state.next], part.index):
            self._ready.append(part.rank)
        if not isinstance(part.op, Collective):
            return None
        lane = state.lanes[self._groups[part.op.group].lane]
        lane.popleft()
        return lane[0] if lane else None


def _key(rank: int, op: Op) -> _Key:
    """What an operation and its counterparts at other ranks have in common; () for what has none."""
    if isinstance(op, Collective):
        return op.group, op.kind
    if isinstance(op, Send):
        return op.group, op.tag, rank, op.peer
    return (op.group, op.tag, op.peer, rank) if isinstance(op, Recv) else ()


def _waits_for(op: Op, index: int) -> bool:
    return isinstance(op, Wait) and op.op == index


def _label(part: _Part) -> str:
    return f"{name(part.op)} (op {part.index}) at rank {part.rank}"
