"""Lowering: a Trace becomes a Plan, in which every collective is messages between ranks. No sockets, no clock.

A rank's plan keeps the program's order and indices, so a `Wait` still names its operation and a result leads back to
the trace. What is done to each operation: it is given a number that all its ranks share, and the call from which its
schedule is made when it is needed (`schedule_of`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from replay.collectives.central import CENTRAL
from replay.collectives.flat import SEND_RECV
from replay.collectives.registry import choose, schedule_of
from replay.collectives.schedule import Call, Schedule
from replay.sending import Sending
from traces.errors import TraceError
from traces.program import (
    ROOTED,
    UNORDERED,
    Collective,
    CollectiveKind,
    Communication,
    Compute,
    Group,
    Program,
    Send,
    StepMark,
    Trace,
    Wait,
)

DEFAULT_SEGMENT = 1 << 20
"""Bytes of a pipelined message: gloo's kMaxSegmentSize (gloo/allreduce.h). Smaller ones only cost more system calls."""

MESSAGE_BITS = 24
"""A message's key is its operation's number, shifted by this, and its own number between the two ranks."""


MOST_MESSAGES = 1 << 20
"""Pipelined messages of one operation at one rank: 1 TiB in messages of DEFAULT_SEGMENT. More is no size that was recorded."""


class Stream(NamedTuple):
    """One connection of a rank: to `peer`, for the collectives of a lane or (`p2p`) for the point-to-point of its
    groups.

    Point-to-point has a stream of its own, so that it never queues behind a collective that it does not depend on.
    """

    peer: int
    lane: int
    p2p: bool


@dataclass(frozen=True, slots=True)
class Transfer:
    """A collective, send or receive of one rank. `number` is the same at all `ranks` that take part, and in no other
    operation.
    """

    number: int
    op: Communication
    call: Call
    ranks: tuple[int, ...]
    lane: int

    @property
    def p2p(self) -> bool:
        return not isinstance(self.op, Collective)

    @property
    def ordered(self) -> bool:
        """Whether it waits for what its lane began before it."""
        return not self.p2p and self.lane != UNORDERED

    @property
    def schedule(self) -> Schedule:
        return schedule_of(self.call)

    @property
    def label(self) -> str:
        """How the operation is called in messages to people: `all_reduce 'bucket 3'`."""
        what = self.op.kind.value if isinstance(self.op, Collective) else type(self.op).__name__.lower()
        return f"{what} {self.op.name!r}" if self.op.name else f"{what} (operation {self.number})"

    def stream(self, peer: int) -> Stream:
        """The connection to the group's `peer`-th rank."""
        return Stream(self.ranks[peer], self.lane, self.p2p)


PlannedOp = Compute | Transfer | Wait | StepMark


@dataclass(frozen=True, slots=True)
class RankPlan:
    """What one rank does, at the indices of its program. Without `sending` the collectives of a lane run one at a time."""

    rank: int
    ops: tuple[PlannedOp, ...]
    sending: Sending | None = None

    def streams(self) -> list[Stream]:
        """The connections it needs, sorted. Makes every schedule, so that none has to be made while time is measured."""
        used = {
            transfer.stream(peer)
            for transfer in self.ops
            if isinstance(transfer, Transfer)
            for peer in transfer.schedule.peers
        }
        return sorted(used)


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole job, by rank."""

    ranks: Mapping[int, RankPlan]


def lower(trace: Trace, *, segment: int = DEFAULT_SEGMENT) -> Plan:
    """Lowers every rank of `trace`, each collective by its kind's default algorithm (`replay.choosing` has others).

    `segment` is in bytes. TraceError where ranks do not agree on what they do together: a rank that was not recorded,
    another kind or size in the same place, a send without its receive. And for an operation of more than MOST_MESSAGES.
    """
    lowering = _Lowering(trace, segment)
    ranks = {rank: lowering.rank(program) for rank, program in sorted(trace.programs.items())}
    lowering.check()
    return Plan(ranks)


@dataclass(slots=True)
class _Meeting:
    """One operation, as the ranks that have been lowered so far take part in it. `parts` is by rank, with the op's
    index.
    """

    number: int
    ranks: tuple[int, ...]
    parts: dict[int, tuple[int, Communication]] = field(default_factory=dict)


class _Lowering:
    """Numbers the operations: the n-th collective of a group, and the n-th message of (group, tag, sender, receiver)."""

    def __init__(self, trace: Trace, segment: int) -> None:
        self._programs = trace.programs
        self._groups = {group.id: group for group in trace.groups}
        self._segment = segment
        self._meetings: dict[tuple[object, ...], _Meeting] = {}

    def rank(self, program: Program) -> RankPlan:
        seen: dict[tuple[object, ...], int] = {}
        ops: list[PlannedOp] = []
        for index, op in enumerate(program.ops):
            if isinstance(op, Communication):
                ops.append(self._transfer(program.rank, index, op, seen))
            else:
                ops.append(op)
        return RankPlan(program.rank, tuple(ops))

    def check(self) -> None:
        """That each operation was found at all its ranks, and is the same at each."""
        for meeting in self._meetings.values():
            first, (index, op) = next(iter(meeting.parts.items()))
            for rank in meeting.ranks:
                if rank not in meeting.parts:
                    known = "has no operation to match it" if rank in self._programs else "was not recorded"
                    mend = "`tracebed check` lists what is missing"
                    raise TraceError(f"rank {rank} {known}", place=_place(first, index, op), mend=mend)
            for rank, (other_index, other) in meeting.parts.items():
                if _shape(op) != _shape(other):
                    raise TraceError(
                        f"expected {_words(other)} as at {_place(rank, other_index, other)}, found {_words(op)}",
                        place=_place(first, index, op),
                    )
            if isinstance(op, Collective) and op.kind is CollectiveKind.ALL_TO_ALL:
                self._check_splits(meeting)

    def _check_splits(self, meeting: _Meeting) -> None:
        size = len(meeting.ranks)
        sides = []
        for rank in meeting.ranks:
            index, op = meeting.parts[rank]
            assert isinstance(op, Collective)
            sides.append(_splits(op, size, _place(rank, index, op)))
        for sender, receiver in ((s, r) for s in range(size) for r in range(size)):
            sent, received = sides[sender][0][receiver], sides[receiver][1][sender]
            if sent != received:
                rank = meeting.ranks[receiver]
                index, op = meeting.parts[rank]
                raise TraceError(
                    f"expects {received} elements from rank {meeting.ranks[sender]}, which sends {sent}",
                    place=_place(rank, index, op),
                )

    def _transfer(self, rank: int, index: int, op: Communication, seen: dict[tuple[object, ...], int]) -> Transfer:
        place = _place(rank, index, op)
        group = self._groups.get(op.group)
        if group is None:
            raise TraceError(f"group {op.group} is not in the trace", place=place)
        ranks: tuple[int, ...]
        kind: tuple[object, ...]
        if isinstance(op, Collective):
            ranks, kind = group.ranks, (group.id,)
            if rank not in ranks:
                raise TraceError(f"rank {rank} is not in group {group.name!r}", place=place)
            call = self._call(rank, group, op, place)
        else:
            if op.peer == rank:
                raise TraceError("a rank can't send to itself", place=place)
            ranks = (rank, op.peer) if isinstance(op, Send) else (op.peer, rank)
            kind = (group.id, op.tag, *ranks)
            me = ranks.index(rank)
            call = Call(SEND_RECV, choose(SEND_RECV, None), 2, me, op.count, op.dtype.itemsize, self._segment)
        _check_size(call, place)
        seen[kind] = seen.get(kind, 0) + 1
        meeting = self._meetings.setdefault((*kind, seen[kind]), _Meeting(len(self._meetings), ranks))
        meeting.parts[rank] = (index, op)
        return Transfer(meeting.number, op, call, ranks, group.lane)

    def _call(self, rank: int, group: Group, op: Collective, place: str) -> Call:
        size = len(group.ranks)
        send, recv = _splits(op, size, place) if op.kind is CollectiveKind.ALL_TO_ALL else ((), ())
        if op.kind in ROOTED and op.root not in group.ranks:
            raise TraceError(f"root {op.root} is not in group {group.name!r}", place=place)
        served = group.served
        return Call(
            kind=op.kind,
            algorithm=choose(op.kind, CENTRAL if served else None),
            size=size,
            me=group.ranks.index(rank),
            count=op.count,
            itemsize=op.dtype.itemsize,
            segment=served.partition if served else self._segment,
            root=group.ranks.index(op.root) if op.kind in ROOTED else -1,
            send_splits=send,
            recv_splits=recv,
            window=served.window if served else 0,
        )


def _check_size(call: Call, place: str) -> None:
    """That its schedule fits into memory."""
    nbytes = max(call.nbytes, call.count * call.itemsize)
    if nbytes > MOST_MESSAGES * call.segment:
        text = f"{call.kind} of {nbytes} bytes is more than {MOST_MESSAGES} messages of {call.segment} bytes"
        raise TraceError(text, place=place, mend="`tracebed info` shows what sizes the trace has")


def _splits(op: Collective, size: int, place: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What an all-to-all sends to and receives from each rank, in elements; without splits it is even."""
    if not op.send_splits and not op.recv_splits:
        each, rest = divmod(op.count, size)
        if rest:
            raise TraceError(f"{op.count} elements can't be split evenly over {size} ranks", place=place)
        return (each,) * size, (each,) * size
    for splits in (op.send_splits, op.recv_splits):
        if len(splits) != size:
            raise TraceError(f"expected {size} splits, found {len(splits)}", place=place)
    return op.send_splits, op.recv_splits


def _shape(op: Communication) -> tuple[object, ...]:
    """What must be equal at all ranks of an operation."""
    if isinstance(op, Collective):
        counted = op.kind is not CollectiveKind.ALL_TO_ALL
        return op.kind, op.count if counted else None, op.dtype.itemsize, op.root, op.reduce_op
    return op.count * op.dtype.itemsize, SEND_RECV


def _words(op: Communication) -> str:
    what = f"{op.kind} ({op.reduce_op}, root {op.root})" if isinstance(op, Collective) else type(op).__name__.lower()
    return f"{what} of {op.count} {op.dtype}"


def _place(rank: int, index: int, op: Communication) -> str:
    return f"rank {rank}, op {index}" + (f" {op.name!r}" if op.name else "")
