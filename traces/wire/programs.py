"""From what went over the wire to what each rank did: it computed from when it had all it waited for until it next sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from traces.program import Collective, CollectiveKind, Compute, Group, Op, Origin, Program, Recv, Send, StepMark, Wait
from traces.wire.flows import Pieces
from traces.wire.messages import Message
from traces.wire.patterns import Match
from traces.wire.phases import Phase


class Writer:
    """The programs of a job, written phase by phase."""

    def __init__(self, ranks: int, begin_ns: int) -> None:
        self._ops: list[list[Op]] = [[] for _ in range(ranks)]
        self._free_ns = [begin_ns] * ranks  # when a rank last had all that it had waited for
        self._begin_ns = begin_ns
        everyone = tuple(range(ranks))
        self._groups = {everyone: Group(0, "0", everyone, 0, "default_pg")}
        self.steps = 0

    def collective(self, pieces: Pieces, phase: Phase, match: Match) -> None:
        """What all of the match's ranks did in this phase."""
        count = len(self._groups)
        group = self._groups.setdefault(match.ranks, Group(count, str(count), match.ranks, count))
        rows = phase.rows
        for rank in match.ranks:
            sends, receives = pieces.source[rows] == rank, pieces.target[rows] == rank
            begin = int(pieces.first_ns[rows][sends].min())
            end = int(max(pieces.first_ns[rows][sends].max(), pieces.last_ns[rows][receives].max()))
            self._compute(rank, begin)
            op = _collective(match, phase, rank, group.id)
            self._start(rank, op, begin, end)
            self._wait(rank, len(self._ops[rank]) - 1, end)

    def messages(self, found: Sequence[Message]) -> None:
        """Messages as they were sent. Receives are started at once, and waited for in front of what was sent after them."""
        of_rank: dict[int, tuple[list[Message], list[Message]]] = {}
        for message in found:
            of_rank.setdefault(message.source, ([], []))[0].append(message)
            of_rank.setdefault(message.target, ([], []))[1].append(message)
        for rank, (sends, receives) in of_rank.items():
            self._exchange(rank, sends, receives)

    def step(self) -> None:
        """A step ends."""
        for ops, free_ns in zip(self._ops, self._free_ns, strict=True):
            ops.append(StepMark(self.steps, self._origin(free_ns, free_ns)))
        self.steps += 1

    def programs(self) -> dict[int, Program]:
        """What each rank did."""
        return {rank: Program(rank, tuple(ops)) for rank, ops in enumerate(self._ops)}

    def groups(self) -> tuple[Group, ...]:
        """All ranks, and those that did something among themselves."""
        return tuple(self._groups.values())

    def _exchange(self, rank: int, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        ops, waits = self._ops[rank], list[tuple[int, int]]()
        for message in receives:
            self._start(rank, Recv(message.source, message.nbytes), message.begin_ns, message.end_ns)
            waits.append((message.end_ns, len(ops) - 1))
        waits.sort(reverse=True)
        sent = []
        for message in sends:
            while waits and waits[-1][0] <= message.begin_ns:
                end_ns, op = waits.pop()
                self._wait(rank, op, end_ns)
            self._compute(rank, message.begin_ns)
            self._start(rank, Send(message.target, message.nbytes), message.begin_ns, message.sent_ns)
            sent.append((message.sent_ns, len(ops) - 1))
            self._free_ns[rank] = max(self._free_ns[rank], message.sent_ns)
        for end_ns, op in sorted([*waits, *sent]):
            self._wait(rank, op, end_ns)

    def _compute(self, rank: int, until_ns: int) -> None:
        if until_ns > self._free_ns[rank]:
            origin = self._origin(self._free_ns[rank], until_ns)
            self._ops[rank].append(Compute(until_ns - self._free_ns[rank], origin=origin))

    def _start(self, rank: int, op: Collective | Send | Recv, begin_ns: int, end_ns: int) -> None:
        self._ops[rank].append(replace(op, origin=self._origin(begin_ns, end_ns)))

    def _wait(self, rank: int, op: int, end_ns: int) -> None:
        self._free_ns[rank] = max(self._free_ns[rank], end_ns)
        self._ops[rank].append(Wait(op, self._origin(end_ns, end_ns)))

    def _origin(self, start_ns: int, end_ns: int) -> Origin:
        return Origin(start_ns=start_ns - self._begin_ns, end_ns=end_ns - self._begin_ns)


def all_reduce_bytes(match: Match) -> int:
    """Bytes that a ring all-reduces, of which each rank sends 2(n-1)/n (Patarasuk and Yuan 2009)."""
    ranks = len(match.ranks)
    return round(match.nbytes * ranks / (2 * (ranks - 1)))


def _collective(match: Match, phase: Phase, rank: int, group: int) -> Collective:
    if match.pattern == "ring":
        return Collective(CollectiveKind.ALL_REDUCE, group, all_reduce_bytes(match))
    sends = tuple(phase.traffic.get((rank, other), 0) for other in match.ranks)
    receives = tuple(phase.traffic.get((other, rank), 0) for other in match.ranks)
    return Collective(CollectiveKind.ALL_TO_ALL, group, sum(sends), send_splits=sends, recv_splits=receives)


def together(pieces: Pieces, phase: Phase, match: Match) -> bool:
    """Whether the ring's pairs talk at the same time, for more than half of the time that any does: not one after another."""
    rows = phase.rows
    following = dict(zip(match.ranks, (*match.ranks[1:], match.ranks[0]), strict=True))
    spans = []
    for source, target in following.items():
        own = (pieces.source[rows] == source) & (pieces.target[rows] == target)
        spans.append((int(pieces.first_ns[rows][own].min()), int(pieces.last_ns[rows][own].max())))
    begins, ends = np.array(spans).T
    return bool(2 * (ends.min() - begins.max()) >= ends.max() - begins.min())
