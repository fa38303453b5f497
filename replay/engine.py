"""Runs one rank's plan, sans I/O: takes completions and the time, gives what is to be done. Deterministic.

Whoever drives it calls `start` once and then `sent`, `received` or `timer` for what has happened, and does the actions
that each returns. Times are nanoseconds of the driver's clock.

Operations of a lane run one at a time, in the order in which they were started; lanes overlap, and so does
point-to-point and what is in no lane (UNORDERED), whose messages keep their order because a stream does. Where the plan
says how to choose what is sent (`RankPlan.sending`), collectives run all together, and their messages are held back until
they may go.

Compute ends at an absolute time, counted from when it could begin and not from when the driver got round to it, so a late
timer does not add up.
"""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from replay.collectives.schedule import Copy, Recv, Schedule, Send
from replay.plan import MESSAGE_BITS, RankPlan, Stream, Transfer
from replay.sending import Outbox
from traces.program import Compute, StepMark

NEVER = -1


class Payload(Protocol):
    """The memory of operations that have begun, by the op's index in the plan. `task` is an index into its schedule."""

    def begin(self, op: int, transfer: Transfer) -> None: ...

    def outgoing(self, op: int, task: Send) -> memoryview | None:
        """The bytes to send; None where only their number matters."""

    def incoming(self, op: int, task: Recv) -> memoryview | None:
        """Where to put the bytes that come; None where they are dropped."""

    def arrived(self, op: int, task: Recv, data: memoryview | None) -> None:
        """`data`, which `incoming` gave, has been filled: reduce it if the task says so."""

    def copy(self, op: int, task: Copy) -> None: ...

    def end(self, op: int) -> None: ...


class Pretend:
    """Payload of which only the size is real."""

    def begin(self, op: int, transfer: Transfer) -> None:
        return

    def outgoing(self, op: int, task: Send) -> None:
        return

    def incoming(self, op: int, task: Recv) -> None:
        return

    def arrived(self, op: int, task: Recv, data: memoryview | None) -> None:
        return

    def copy(self, op: int, task: Copy) -> None:
        return

    def end(self, op: int) -> None:
        return


@dataclass(frozen=True, slots=True)
class StartSend:
    """Queue a message of `nbytes` on `stream`; then call `sent`, when the last byte has left this process, or, if it is to be
    `held` and is large, when the other end has it."""

    stream: Stream
    key: int
    nbytes: int
    data: memoryview | None
    held: bool = False


@dataclass(frozen=True, slots=True)
class PostRecv:
    """Take message `key` of `stream` when it comes (not before this is posted); then call `received`."""

    stream: Stream
    key: int
    nbytes: int
    data: memoryview | None


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Call `timer` at `at_ns`. There is one timer; it is never set while it is running."""

    at_ns: int


@dataclass(frozen=True, slots=True)
class StepDone:
    """This rank passed the mark of `step` at `at_ns`; `exposed_ns` of the step it was stopped in a Wait."""

    step: int
    at_ns: int
    exposed_ns: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The program is at its end and every operation has ended."""


Action = StartSend | PostRecv | SetTimer | StepDone | Finished


@dataclass(frozen=True, slots=True)
class Records:
    """Times of each op of the plan, by its index, in ns; `NEVER` where the run did not get there.

    Transfer: started by the program, begun (its lane was free), ended (all its messages sent and received).
    Wait: reached, reached, released. Compute: begun, begun, ended. StepMark: three times when it was passed.

    `messages` holds three numbers for each message that was sent or received, in the order in which that was done: the op,
    the task of its schedule, and when.
    """

    issued: array[int]
    began: array[int]
    ended: array[int]
    messages: array[int]


class _Running:
    """A transfer that has been started: what its tasks still wait for."""

    __slots__ = ("data", "index", "missing", "open", "schedule", "transfer")

    def __init__(self, index: int, transfer: Transfer) -> None:
        self.index = index
        self.transfer = transfer
        self.schedule: Schedule = transfer.schedule
        self.missing = [len(task.after) for task in self.schedule.tasks]
        self.open = set(range(len(self.schedule.tasks)))
        self.data: dict[int, memoryview | None] = {}


class Engine:
    """One rank. `records` fills as the run goes on; `finished` says whether `Finished` was given."""

    def __init__(self, plan: RankPlan, payload: Payload | None = None) -> None:
        self.rank = plan.rank
        self.finished = False
        size = len(plan.ops)
        issued, began, ended = (array("q", [NEVER]) * size for _ in range(3))
        self.records = Records(issued, began, ended, messages=array("q"))
        self._ops = plan.ops
        self._payload: Payload = Pretend() if payload is None else payload
        self._lanes: dict[int, deque[_Running]] = {}
        self._sends: dict[tuple[Stream, int], tuple[_Running, int]] = {}
        self._recvs: dict[tuple[Stream, int], tuple[_Running, int]] = {}
        self._unfinished: dict[int, _Running] = {}
        self._outbox: Outbox[StartSend] | None = None
        if plan.sending is not None:
            self._outbox = Outbox(plan.sending.credit)
            self._urgency = plan.sending.urgency(plan.ops)
        self._next = 0
        self._logical = 0
        self._exposed = 0
        self._actions: list[Action] = []

    def start(self, now: int) -> list[Action]:
        """Begins the program; `now` is where its time counts from, even if the driver is late."""
        self._logical = now
        return self._advance(now)

    def timer(self, now: int) -> list[Action]:
        """The time of the last SetTimer has come."""
        return self._advance(now)

    def sent(self, stream: Stream, key: int, now: int) -> list[Action]:
        """The message of a StartSend has left."""
        running, index = self._sends.pop((stream, key))
        if self._outbox is not None and not stream.p2p:
            self._outbox.gone(_nbytes(running, index))
        self._done(running, index, now)
        return self._advance(now)

    def received(self, stream: Stream, key: int, now: int) -> list[Action]:
        """The message of a PostRecv has come, and is in its memory."""
        running, index = self._recvs.pop((stream, key))
        task = running.schedule.tasks[index]
        assert isinstance(task, Recv)
        self._payload.arrived(running.index, task, running.data.pop(index))
        self._done(running, index, now)
        return self._advance(now)

    def added(self, stream: Stream, key: int) -> int:
        """How many bytes of a message that was posted are to be added to what is there."""
        running, index = self._recvs[stream, key]
        task = running.schedule.tasks[index]
        return _nbytes(running, index) if isinstance(task, Recv) and task.reduce else 0

    def blocked(self) -> str:
        """What this rank is waiting for, for people."""
        if self.finished:
            return f"rank {self.rank} has finished"
        if self._next < len(self._ops):
            op = self._ops[self._next]
            if isinstance(op, Compute):
                return f"rank {self.rank} computes"
            if isinstance(op, Transfer | StepMark):
                return f"rank {self.rank} has not started"
            wanted = self._unfinished[op.op]
        else:
            wanted = next(iter(self._unfinished.values()))
        lane = self._lanes.get(wanted.transfer.lane)
        running = lane[0] if lane and wanted in lane else wanted
        text = f"rank {self.rank} waits for {_message(running)}"
        return text if running is wanted else f"{text}, before {wanted.transfer.label}"

    def _advance(self, now: int) -> list[Action]:
        """Runs the program up to where it has to stop."""
        while self._next < len(self._ops) and self._pass(self._next, now):
            self._next += 1
        if self._next == len(self._ops) and not self._unfinished and not self.finished:
            self.finished = True
            self._actions.append(Finished())
        if self._outbox is not None:
            self._actions += self._outbox.release()
        actions, self._actions = self._actions, []
        return actions

    def _pass(self, index: int, now: int) -> bool:
        """Whether the op at `index` is over by `now`; records it, and starts what it starts."""
        issued, began, ended = self.records.issued, self.records.began, self.records.ended
        op = self._ops[index]
        first = issued[index] == NEVER
        if first:
            issued[index] = began[index] = self._logical
        if isinstance(op, Compute):
            if first:
                ended[index] = self._logical + op.ns
                if ended[index] > now:
                    self._actions.append(SetTimer(ended[index]))
            if ended[index] > now:
                return False
            self._logical = ended[index]
        elif isinstance(op, Transfer):
            began[index] = NEVER
            self._start(_Running(index, op), now)
        elif isinstance(op, StepMark):
            ended[index] = self._logical
            self._actions.append(StepDone(op.step, self._logical, self._exposed))
            self._exposed = 0
        else:
            if ended[op.op] == NEVER:
                return False
            ended[index] = max(self._logical, ended[op.op])
            self._exposed += ended[index] - self._logical
            self._logical = ended[index]
        return True

    def _start(self, running: _Running, now: int) -> None:
        self._unfinished[running.index] = running
        if not running.transfer.ordered or self._outbox is not None:
            self._begin(running, self._logical)
            return
        lane = self._lanes.setdefault(running.transfer.lane, deque())
        lane.append(running)
        if lane[0] is running:
            self._begin(running, self._logical)
            self._follow(lane, now)

    def _follow(self, lane: deque[_Running], now: int) -> None:
        """Takes what has ended off the lane, and begins what comes next, which may end at once."""
        while lane and not lane[0].open:
            lane.popleft()
            if lane:
                self._begin(lane[0], now)

    def _begin(self, running: _Running, at: int) -> None:
        self.records.began[running.index] = at
        self._payload.begin(running.index, running.transfer)
        ready = [task for task, missing in enumerate(running.missing) if not missing]
        self._do(running, ready)
        if not running.open:
            self._end(running, at)

    def _do(self, running: _Running, ready: list[int]) -> None:
        """Starts tasks; a Copy is over at once, and what waits for it follows."""
        transfer, schedule, op = running.transfer, running.schedule, running.index
        while ready:
            later: list[int] = []
            for index in ready:
                task = schedule.tasks[index]
                if isinstance(task, Copy):
                    self._payload.copy(op, task)
                    later += self._close(running, index)
                    continue
                stream = transfer.stream(task.peer)
                key = transfer.number << MESSAGE_BITS | schedule.numbers[index]
                nbytes = _nbytes(running, index)
                if isinstance(task, Send):
                    self._sends[stream, key] = running, index
                    send = StartSend(stream, key, nbytes, self._payload.outgoing(op, task), task.held)
                    if self._outbox is None or transfer.p2p:
                        self._actions.append(send)
                    else:
                        self._outbox.hold(self._urgency[op], nbytes, send)
                else:
                    self._recvs[stream, key] = running, index
                    data = running.data[index] = self._payload.incoming(op, task)
                    self._actions.append(PostRecv(stream, key, nbytes, data))
            ready = later

    def _close(self, running: _Running, task: int) -> list[int]:
        """Marks `task` as done; gives the tasks that nothing keeps any more."""
        running.open.remove(task)
        free = []
        for dependent in running.schedule.dependents[task]:
            running.missing[dependent] -= 1
            if not running.missing[dependent]:
                free.append(dependent)
        return free

    def _done(self, running: _Running, task: int, now: int) -> None:
        self.records.messages.extend((running.index, task, now))
        self._do(running, self._close(running, task))
        if not running.open:
            self._end(running, now)
            if running.transfer.ordered and self._outbox is None:
                self._follow(self._lanes[running.transfer.lane], now)

    def _end(self, running: _Running, at: int) -> None:
        self.records.ended[running.index] = at
        self._payload.end(running.index)
        del self._unfinished[running.index]


def _nbytes(running: _Running, index: int) -> int:
    """The size of the message of task `index`, which is no Copy."""
    task = running.schedule.tasks[index]
    assert not isinstance(task, Copy)
    return task.count * running.transfer.call.itemsize


def _message(running: _Running) -> str:
    """The first message that `running` lacks: one to receive if there is any, for a send is held back by its receiver."""
    transfer, tasks, numbers = running.transfer, running.schedule.tasks, running.schedule.numbers
    waiting = sorted(task for task in running.open if not isinstance(tasks[task], Copy))
    for index in waiting:
        task = tasks[index]
        if isinstance(task, Recv):
            return f"message {numbers[index]} of {transfer.label} from rank {transfer.ranks[task.peer]}"
    task = tasks[waiting[0]]
    assert isinstance(task, Send)
    return f"room to send message {numbers[waiting[0]]} of {transfer.label} to rank {transfer.ranks[task.peer]}"
