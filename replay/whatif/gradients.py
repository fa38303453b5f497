"""Which operations of a job are its gradients, step by step, and of which tensors they are made.

Gradients are the all-reduces of groups that join replicas (`traces/replicas.py`). In a group of which some are waited for
later, those that are waited for at once are none: a loss, statistics of batch norm.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from replay.whatif.edit import Edit, Place
from replay.whatif.options import Options
from traces.errors import TraceError
from traces.program import Collective, CollectiveKind, Program, StepMark, Trace, Wait, op_bytes
from traces.replicas import replicas


@dataclass(frozen=True, slots=True)
class Started:
    """A gradient all-reduce at one rank: the index of its start and of its wait, -1 for none."""

    start: int
    wait: int


@dataclass(frozen=True, slots=True)
class Round:
    """The gradients of one group and step, in the order in which they are started: `ops`, and where by rank. `begin` is the
    index of the step's first operation at each rank, `end` that of its mark."""

    group: int
    step: int
    ops: tuple[Collective, ...]
    started: Mapping[int, tuple[Started, ...]]
    begin: Mapping[int, int]
    end: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a round that can't be cut: a tensor where tensors are known, else an operation as it was recorded. `op` is
    what would reduce it alone; `ready` and `needed` say by rank where it is there and where it is waited for, if it is."""

    op: Collective
    ready: Mapping[int, Place]
    needed: Mapping[int, Place | None]

    @property
    def nbytes(self) -> int:
        return op_bytes(self.op)


def shared_groups(trace: Trace, options: Options) -> frozenset[int]:
    """The ids of groups that join replicas; `along` of the options names one where that is not plain. Raises TraceError."""
    try:
        return replicas(trace, options.said.get("along")).shared
    except TraceError as error:
        raise options.error(str(error), "along=GROUP names a group that joins replicas") from None


def rounds(trace: Trace, options: Options) -> list[Round]:
    """Every round of the trace. Raises TraceError where there is none, or ranks differ."""
    shared = shared_groups(trace, options)
    found: dict[tuple[int, int], dict[int, list[Started]]] = defaultdict(dict)
    steps = {rank: _steps(program) for rank, program in trace.programs.items()}
    for rank, program in trace.programs.items():
        for one, step in _started(program, shared):
            op = program.ops[one.start]
            assert isinstance(op, Collective)
            found[op.group, step].setdefault(rank, []).append(one)
    if not found:
        text = "no all_reduce in a step joins replicas"
        mend = "sharded gradients (ZeRO) can't be changed, nor what compress= gathers: let that come last"
        raise options.error(text, mend)
    made = []
    for (group, step), by_rank in sorted(found.items()):
        shapes = {rank: [_shape(trace.programs[rank], one) for one in started] for rank, started in by_rank.items()}
        first = min(shapes)
        if any(shape != shapes[first] for shape in shapes.values()):
            text = f"step {step}: ranks do not reduce the same, or not at the same place of the step"
            raise options.error(text, "`tracebed check` shows where; --steps leaves a step out")
        made.append(
            Round(
                group=group,
                step=step,
                ops=tuple(_op(trace.programs[first], one) for one in by_rank[first]),
                started={rank: tuple(started) for rank, started in by_rank.items()},
                begin={rank: steps[rank][step][0] for rank in by_rank},
                end={rank: steps[rank][step][1] for rank in by_rank},
            )
        )
    return made


def pieces(one: Round, edits: Mapping[int, Edit]) -> list[Piece]:
    """The round's operations as they were recorded, each whole."""
    return [
        Piece(
            op,
            {rank: Place(started[number].start) for rank, started in one.started.items()},
            {rank: _needed(started[number]) for rank, started in one.started.items()},
        )
        for number, op in enumerate(one.ops)
    ]


def _needed(started: Started) -> Place | None:
    return Place(started.wait) if started.wait >= 0 else None


def _op(program: Program, one: Started) -> Collective:
    op = program.ops[one.start]
    assert isinstance(op, Collective)
    return op


def _shape(program: Program, one: Started) -> tuple[int, str, bool]:
    op = _op(program, one)
    return op.count, op.dtype, one.wait >= 0


def _steps(program: Program) -> list[tuple[int, int]]:
    """First operation and mark of each step."""
    marks = [index for index, op in enumerate(program.ops) if isinstance(op, StepMark)]
    return list(zip([0, *(mark + 1 for mark in marks)], marks, strict=False))


def _started(program: Program, shared: frozenset[int]) -> list[tuple[Started, int]]:
    """The gradients of one rank, each with its step."""
    waits = {op.op: index for index, op in enumerate(program.ops) if isinstance(op, Wait)}
    steps = _steps(program)
    found: dict[int, list[tuple[Started, int]]] = defaultdict(list)
    for step, (begin, end) in enumerate(steps):
        for index in range(begin, end):
            op = program.ops[index]
            if isinstance(op, Collective) and op.kind is CollectiveKind.ALL_REDUCE and op.group in shared:
                found[op.group].append((Started(index, waits.get(index, -1)), step))
    kept: list[tuple[Started, int]] = []
    for group in found.values():
        later = [(one, step) for one, step in group if one.wait != one.start + 1]
        kept += later or group
    return kept


@dataclass(frozen=True, slots=True)
class Part:
    """Pieces, by number in their round, that are reduced together, as `name`, when a multiple of `cycle_ns` of the step's compute
    is done."""

    pieces: Sequence[int]
    name: str
    cycle_ns: int = 0


def regroup(
    one: Round, edits: Mapping[int, Edit], of: Sequence[Piece], parts: Sequence[Part], options: Options
) -> None:
    """Puts `parts` in the place of the round's operations.

    A part starts where its last piece is ready and is waited for where its first one is needed. TraceError where a rank computes
    between that and the start. A rank that has nothing left
    to compute before it first waits idles to the multiple.
    """
    for rank, started in one.started.items():
        edit = edits[rank]
        for old in started:
            edit.remove(old.start)
            if old.wait >= 0:
                edit.remove(old.wait)
        waits: list[tuple[Place, int]] = []
        first = min([place for piece in of if (place := piece.needed[rank]) is not None], default=Place(one.end[rank]))
        last = min(first, Place(one.end[rank]))
        idled = 0
        for part in parts:
            members = [of[number] for number in part.pieces]
            places = [place for member in members if (place := member.needed[rank]) is not None]
            needed = min(places, default=None)
            at = max(member.ready[rank] for member in members)
            if part.cycle_ns:
                begin = edit.done_ns[one.begin[rank]]
                due = begin - (begin - edit.done_ns[at.before] - at.ns) // part.cycle_ns * part.cycle_ns
                at = max(at, edit.place(due, at.before, max(at.before, last.before)))
                if at >= last:
                    idle = max(0, due - edit.done_ns[at.before] - idled)
                    edit.compute(at, idle, "idle")
                    idled += idle
            whole = replace(members[0].op, count=sum(member.op.count for member in members), name=part.name)
            key = edit.start(at, whole)
            if needed is not None:
                if needed < at and edit.done_ns[needed.before] < edit.done_ns[at.before] + at.ns:
                    text = f"{whole.name!r} would hold what is waited for before all of it is ready"
                    raise options.error(text, "put --what-if overlap=off in front of it")
                waits.append((max(needed, at), key))
        for place, key in waits:
            edit.wait(place, key)
