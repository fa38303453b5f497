"""Runs one rank's program with the calls of a communication library, which picks its own algorithms and messages.

A `Library` starts each operation and gives what blocks until it has ended, as MPI's requests and PyTorch's works do. Times are
nanoseconds of the caller's clock. As in `replay.engine`, compute ends at an absolute time, counted from when it could begin.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from replay.engine import NEVER, Records, StepDone
from replay.plan import Plan, RankPlan, Transfer
from traces.program import Collective, Compute, StepMark

End = Callable[[], object]
"""Blocks until an operation has ended at this rank."""


class Library(Protocol):
    """A communication library in one rank's process. RuntimeError where it fails, PeerLostError where another rank is gone."""

    def connect(self) -> None:
        """Find the other ranks, and make every group. All ranks are there by now."""
        ...

    def start(self, transfer: Transfer) -> End: ...


@dataclass(frozen=True, slots=True)
class World:
    """What all ranks have to agree on: who they are, the members of each group in group order, and a number for each pair of
    group and tag that messages between two ranks have."""

    ranks: tuple[int, ...]
    groups: Mapping[int, tuple[int, ...]]
    tags: Mapping[tuple[int, int], int]

    @property
    def places(self) -> dict[int, int]:
        """Which of the ranks each is, from 0 on, as libraries number them."""
        return {rank: place for place, rank in enumerate(self.ranks)}

    @classmethod
    def of(cls, plan: Plan) -> World:
        """The plan's."""
        transfers = [op for own in plan.ranks.values() for op in own.ops if isinstance(op, Transfer)]
        groups = {transfer.op.group: transfer.ranks for transfer in transfers if not transfer.p2p}
        pairs = {(op.group, op.tag) for op in (each.op for each in transfers) if not isinstance(op, Collective)}
        return cls(
            ranks=tuple(sorted(plan.ranks)),
            groups=dict(sorted(groups.items())),
            tags={pair: number for number, pair in enumerate(sorted(pairs))},
        )


Make = Callable[[RankPlan, Mapping[int, tuple[str, int]]], Library]
"""Makes the library of one rank, in its process and on its host, from the addresses at which all ranks may listen."""


def most_bytes(plan: RankPlan) -> int:
    """What an operation of the rank reads or writes at most, of either."""
    return max((op.call.nbytes for op in plan.ops if isinstance(op, Transfer)), default=0)


class Runner:
    """One rank. `sleep_until` blocks until a time of `clock`; `passed` is told of step marks.

    `times`: of what a program can see of its library. Transfer: started; not known, so NEVER; seen to have ended, by the first
    Wait for it or at the program's end. No messages.
    """

    def __init__(
        self,
        plan: RankPlan,
        library: Library,
        clock: Callable[[], int],
        sleep_until: Callable[[int], None],
        passed: Callable[[StepDone], None],
    ) -> None:
        issued, began, ended = (array("q", [NEVER]) * len(plan.ops) for _ in range(3))
        self.times = Records(issued, began, ended, messages=array("q"))
        self.late_ns = 0
        self.computing = True  # until it may begin
        self.finished = False
        self._plan = plan
        self._library = library
        self._clock = clock
        self._sleep_until = sleep_until
        self._passed = passed
        self._open: dict[int, End] = {}
        self._waiting = -1
        self._now = 0

    def run(self, begin: int) -> None:
        """From `begin` until every operation has ended."""
        self._compute(begin)
        exposed = 0
        issued, began, ended = self.times.issued, self.times.began, self.times.ended
        for index, op in enumerate(self._plan.ops):
            issued[index] = self._now
            if isinstance(op, Transfer):
                self._open[index] = self._library.start(op)
                self._now = max(self._now, self._clock())
                continue
            began[index] = self._now
            if isinstance(op, Compute):
                self._compute(self._now + op.ns)
            elif isinstance(op, StepMark):
                self._passed(StepDone(op.step, self._now, exposed))
                exposed = 0
            else:
                self._wait(op.op)
                exposed += self._now - began[index]
            ended[index] = self._now
        for index in list(self._open):
            self._wait(index)
        self.finished = True

    def blocked(self) -> str:
        """What this rank is waiting for, for people."""
        rank = self._plan.rank
        if self.finished:
            return f"rank {rank} has finished"
        if self._waiting == -1:
            return f"rank {rank} computes" if self.computing else f"rank {rank} starts an operation"
        transfer = self._plan.ops[self._waiting]
        assert isinstance(transfer, Transfer)
        return f"rank {rank} waits for {transfer.label}"

    def _compute(self, until: int) -> None:
        self.computing = True
        self._sleep_until(until)
        self.computing = False
        self.late_ns += max(0, self._clock() - until)
        self._now = until

    def _wait(self, index: int) -> None:
        if index in self._open:
            self._waiting = index
            self._open.pop(index)()
            self._waiting = -1
            self._now = max(self._now, self._clock())
            self.times.ended[index] = self._now
