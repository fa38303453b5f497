"""A run as a graph of moments: when each came, what it had to wait for, and what took the time from there. Pure.

The moments are those of the engines: a rank's program passes an operation, a transfer begins and ends, a message has been
taken by the kernel or has come. A moment comes when the last of those before it has, and then what it is about has taken its
time: computing, or a message on its way. A message waits for its operation, for the messages that its schedule puts before it
at either end, to be posted, and for the one before it on its connection, for a stream keeps order.

With nothing changed, `retimed` gives back exactly what was measured.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from replay.collectives.schedule import Copy, Recv, Send
from replay.control import Result
from replay.plan import Plan, RankPlan, Stream, Transfer
from traces.program import Compute, StepMark, Wait


@dataclass(frozen=True, slots=True)
class Work:
    """A rank's own time: it computes, or (not `compute`) its process took longer than what it waited for."""

    rank: int
    compute: bool


@dataclass(frozen=True, slots=True)
class Message:
    """Bytes of an operation on their way from rank to rank until `ended`; `began`: sent, and first on its connection; in ns.

    `arrives`: this is of their coming; else of the sender's waiting until its kernel had taken them.
    """

    transfer: Transfer
    source: int
    target: int
    nbytes: int
    began: int
    ended: int
    arrives: bool


Cause = Work | Message


@dataclass(frozen=True, slots=True)
class Moments:
    """All moments of a run; each stands behind those in its `after`. Times in ns after the start.

    `took[i]` is the time from the last of `after[i]` to `at[i]`, and `cause[i]` what took it. `marks`: for each step, the
    moments in which its ranks had passed it.
    """

    at: Sequence[int]
    after: Sequence[tuple[int, ...]]
    took: Sequence[int]
    cause: Sequence[Cause]
    marks: Mapping[int, tuple[int, ...]]

    def retimed(self, took: Sequence[int]) -> list[int]:
        """When each moment would have come, had these times been taken; who goes first stays as it was."""
        at = [0] * len(took)
        for index, (after, time) in enumerate(zip(self.after, took, strict=True)):
            at[index] = max([at[earlier] for earlier in after]) + time if after else time
        return at

    def step_ns(self, at: Sequence[int]) -> tuple[int, ...]:
        """How long each step takes where moments come at `at`: from the last rank's mark to the last rank's mark."""
        ends = [max(at[moment] for moment in self.marks[step]) for step in sorted(self.marks)]
        return tuple(after - before for before, after in pairwise([0, *ends]))


def moments(plan: Plan, results: Mapping[int, Result]) -> Moments:
    """The moments of a run that came to its end. Cost: one for each operation and message of every rank."""
    ranks = {rank: _Rank(plan.ranks[rank], result) for rank, result in sorted(results.items())}
    building = _Building()
    for rank in ranks.values():
        building.program(rank)
    for rank in ranks.values():
        building.messages(rank)
    return building.done()


_End = tuple[int, int, int, int, bool]
"""One end of a message: operation, sender, receiver, number between the two; whether it is the receiver's end."""


class _Rank:
    """One rank's measured times, and the moments that stand for its operations and messages."""

    def __init__(self, plan: RankPlan, result: Result) -> None:
        self.rank, self.ops = plan.rank, plan.ops
        self.began, self.ended = (array("q", times) for times in (result.began, result.ended))
        log = array("q", result.messages)
        done = zip(log[0::3], log[1::3], log[2::3], strict=True)
        self.log = [(op, task, at) for op, task, at in done if self._is_message(op, task)]
        self.serial = self._serial_lanes()
        self.begin: dict[int, int] = {}
        self.end: dict[int, int] = {}
        self.tasks: dict[tuple[int, int], int] = {}

    def transfer(self, op: int) -> Transfer:
        planned = self.ops[op]
        assert isinstance(planned, Transfer)
        return planned

    def _is_message(self, op: int, task: int) -> bool:
        return isinstance(self.transfer(op).schedule.tasks[task], Send | Recv)

    def _serial_lanes(self) -> set[int]:
        """The lanes whose operations did run one at a time: a plan may send by priority, and then they overlap."""
        lanes: dict[int, list[int]] = defaultdict(list)
        for index, op in enumerate(self.ops):
            if isinstance(op, Transfer) and not op.p2p:
                lanes[op.lane].append(index)
        in_turn = (lane for lane, ops in lanes.items() if all(self.ended[a] <= self.began[b] for a, b in pairwise(ops)))
        return set(in_turn)

    def message(self, op: int, task: int) -> tuple[Send | Recv, _End]:
        """What a task is to do, and which end of which message that is."""
        transfer = self.transfer(op)
        asked, number = transfer.schedule.tasks[task], transfer.schedule.numbers[task]
        assert not isinstance(asked, Copy)
        peer = transfer.ranks[asked.peer]
        if isinstance(asked, Recv):
            return asked, (transfer.number, peer, self.rank, number, True)
        return asked, (transfer.number, self.rank, peer, number, False)

    def before(self, op: int, task: int) -> list[int]:
        """The moments of this rank after which a task starts. Of what is no message, what that waits for counts."""
        tasks = self.transfer(op).schedule.tasks
        found: list[int] = []
        todo = [task]
        while todo:
            after = tasks[todo.pop()].after
            if not after:
                found.append(self.begin[op])
            for earlier in after:
                if isinstance(tasks[earlier], Send | Recv):
                    found.append(self.tasks[op, earlier])
                else:
                    todo.append(earlier)
        return found


class _Building:
    """The graph as it grows, in any order; `done` puts it in one in which each moment stands behind those before it."""

    def __init__(self) -> None:
        self._at: list[int] = []
        self._after: list[list[int]] = []
        self._cause: list[Cause] = []
        self._marks: dict[int, list[int]] = defaultdict(list)
        self._ends: dict[_End, tuple[_Rank, int, int]] = {}

    def program(self, rank: _Rank) -> None:
        """The moments of a rank's program and operations; and of its messages, but not what is before those."""
        idle, computing = (Work(rank.rank, compute) for compute in (False, True))
        here = self._add(0, idle)
        lanes: dict[int, int] = {}
        for index, op in enumerate(rank.ops):
            if isinstance(op, Compute):
                here = self._add(rank.ended[index], computing, here)
            elif isinstance(op, Wait):
                here = self._add(rank.ended[index], idle, here, rank.end[op.op])
            elif isinstance(op, StepMark):
                self._marks[op.step].append(here)
            else:
                earlier = [lanes[op.lane]] if not op.p2p and op.lane in lanes else []
                rank.begin[index] = self._add(rank.began[index], idle, here, *earlier)
                rank.end[index] = self._add(rank.ended[index], idle, rank.begin[index])
                if op.lane in rank.serial:
                    lanes[op.lane] = rank.end[index]
        for op_, task, at in rank.log:
            rank.tasks[op_, task] = moment = self._add(at, idle)
            self._after[rank.end[op_]].append(moment)
            self._ends[rank.message(op_, task)[1]] = rank, op_, task

    def messages(self, rank: _Rank) -> None:
        """What is before a rank's messages, and what takes their time."""
        last: dict[tuple[Stream, bool], int] = {}
        for op, task, at in rank.log:
            transfer, moment = rank.transfer(op), rank.tasks[op, task]
            asked, (number, source, target, nth, arrives) = rank.message(op, task)
            stream = transfer.stream(asked.peer), arrives
            queue = [last[stream]] if stream in last else []
            last[stream] = moment
            other, its_op, its_task = self._ends[number, source, target, nth, not arrives]
            here, there = rank.before(op, task), other.before(its_op, its_task)
            began = max(self._at[earlier] for earlier in (*(there if arrives else here), *queue))
            if not arrives:  # what the kernel took at once waited for nobody to take it from there
                there = [posted for posted in there if began < at and self._at[posted] < at]
            self._after[moment] = [*here, *there, *queue]
            nbytes = asked.count * transfer.call.itemsize
            self._cause[moment] = Message(transfer, source, target, nbytes, began, at, arrives)

    def done(self) -> Moments:
        order = self._ordered()
        place = {moment: index for index, moment in enumerate(order)}
        at = [self._at[moment] for moment in order]
        after = [tuple(place[earlier] for earlier in self._after[moment]) for moment in order]
        return Moments(
            at=at,
            after=after,
            took=[max(0, at[i] - max((at[j] for j in before), default=0)) for i, before in enumerate(after)],
            cause=[self._cause[moment] for moment in order],
            marks={step: tuple(place[moment] for moment in marks) for step, marks in self._marks.items()},
        )

    def _add(self, at: int, cause: Cause, *after: int) -> int:
        self._at.append(at)
        self._after.append(list(after))
        self._cause.append(cause)
        return len(self._at) - 1

    def _ordered(self) -> list[int]:
        """Kahn, "Topological sorting of large networks", CACM 5(11), 1962.

        Where moments seem to wait for each other in a circle, as clocks that are read late may have it, the earliest of them
        waits for none of the others.
        """
        missing = [len(after) for after in self._after]
        later: list[list[int]] = [[] for _ in self._after]
        for moment, after in enumerate(self._after):
            for earlier in after:
                later[earlier].append(moment)
        order = [moment for moment, count in enumerate(missing) if not count]
        done = 0
        while done < len(missing):
            if done == len(order):
                first = min((moment for moment, count in enumerate(missing) if count), key=self._at.__getitem__)
                placed = set(order)
                self._after[first] = [earlier for earlier in self._after[first] if earlier in placed]
                missing[first] = 0
                order.append(first)
            for next_ in later[order[done]]:
                missing[next_] -= 1
                if not missing[next_]:
                    order.append(next_)
            done += 1
        return order
