"""Changes a program at places that are named before anything moves: starts, waits and compute put in, moved and left out."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from traces.program import Communication, Compute, Op, Program, Trace, Wait


class Place(NamedTuple):
    """In front of the operation at index `before`, or, where that is a Compute, when `ns` of it are done. Places are ordered as
    the program is."""

    before: int
    ns: int = 0


class Edit:
    """One program and what is to change in it. Nothing changes before `done`.

    Operations are known by keys: those that were there by their index, new ones by what `start` gave. What is put in at one
    place comes in the order in which it was said.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self._removed: set[int] = set()
        self._new: defaultdict[Place, list[tuple[int, Op]]] = defaultdict(list)
        self._last_key = 0

    @cached_property
    def done_ns(self) -> list[int]:
        """Compute in ns that is done before each operation, and at the end."""
        return list(accumulate((op.ns if isinstance(op, Compute) else 0 for op in self.program.ops), initial=0))

    def place(self, at_ns: int, low: int, high: int) -> Place:
        """Where `at_ns` of the program's compute is done; the first such place, but from `low` on and up to `high`."""
        index = bisect_left(self.done_ns, at_ns, low, high)
        if self.done_ns[index] > at_ns and index > low:
            return Place(index - 1, at_ns - self.done_ns[index - 1])
        return Place(index)

    def remove(self, index: int) -> None:
        """Leaves operation `index` out."""
        self._removed.add(index)

    def start(self, at: Place, op: Communication) -> int:
        """Starts a new operation; its key."""
        self._last_key -= 1
        self._new[at].append((self._last_key, op))
        return self._last_key

    def wait(self, at: Place, key: int) -> None:
        """Waits for the operation of this key, new or old."""
        self._new[at].append((0, Wait(key)))

    def compute(self, at: Place, ns: int, name: str) -> None:
        """Works for `ns`."""
        if ns:
            self._new[at].append((0, Compute(ns, name)))

    def done(self) -> Program:
        """The changed program."""
        cuts: defaultdict[int, list[int]] = defaultdict(list)
        for index, ns in sorted(self._new):
            cuts[index].append(ns)
        ops: list[Op] = []
        index_of: dict[int, int] = {}
        for index, op in enumerate([*self.program.ops, None]):
            before = 0
            for ns in cuts.get(index, ()):
                if ns:
                    assert isinstance(op, Compute)
                    ops.append(replace(op, ns=ns - before))
                    before = ns
                for key, new in self._new[Place(index, ns)]:
                    index_of[key] = len(ops)
                    ops.append(replace(new, op=index_of[new.op]) if isinstance(new, Wait) else new)
            if op is None or index in self._removed:
                continue
            if isinstance(op, Wait):
                op = replace(op, op=index_of[op.op])
            elif before:
                assert isinstance(op, Compute)
                op = replace(op, ns=op.ns - before)
            index_of[index] = len(ops)
            ops.append(op)
        return replace(self.program, ops=tuple(ops))


def edits_of(trace: Trace) -> dict[int, Edit]:
    """One for each rank's program."""
    return {rank: Edit(program) for rank, program in trace.programs.items()}


def edited(trace: Trace, edits: Mapping[int, Edit]) -> Trace:
    """The trace with every program changed."""
    return replace(trace, programs={rank: edit.done() for rank, edit in edits.items()})
