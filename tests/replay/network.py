"""A network in model time for engine tests: each rank has one egress of a given rate, each message one delay. No
sockets.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence

from replay.engine import Action, Engine, Finished, PostRecv, SetTimer, StartSend, StepDone
from replay.payload import Verified
from replay.plan import Plan, Stream, lower
from traces.program import Collective, Group, Op, Program, StepMark, Trace, Wait


class StuckError(Exception):
    """Nothing is under way and not every rank has finished."""


class Network:
    """Runs the plan of every rank to its end. Rate in bytes per ns; a message may wait for its receiver for ever."""

    def __init__(self, plan: Plan, *, ns_per_byte: int = 1, delay: int = 0, verify: bool = False) -> None:
        self.payloads = {rank: Verified(own) for rank, own in plan.ranks.items()} if verify else {}
        self.engines = {rank: Engine(own, self.payloads.get(rank)) for rank, own in plan.ranks.items()}
        self.steps: list[tuple[int, StepDone]] = []
        self.sent_bytes = dict.fromkeys(plan.ranks, 0)
        self.now = 0
        self._ns_per_byte, self._delay = ns_per_byte, delay
        self._free = dict.fromkeys(plan.ranks, 0)
        self._events: list[tuple[int, int, str, int, tuple[Stream, int, bytes | None]]] = []
        self._order = 0
        self._posted: dict[tuple[int, Stream, int], PostRecv] = {}
        self._waiting: dict[tuple[int, Stream, int], bytes | None] = {}

    def run(self) -> Network:
        for rank, engine in self.engines.items():
            self._do(rank, engine.start(0))
        while self._events:
            self.now, _, what, rank, (stream, key, data) = heapq.heappop(self._events)
            engine = self.engines[rank]
            if what == "timer":
                self._do(rank, engine.timer(self.now))
            elif what == "sent":
                self._do(rank, engine.sent(stream, key, self.now))
            else:
                self._waiting[rank, stream, key] = data
                self._match(rank, stream, key)
        if not all(engine.finished for engine in self.engines.values()):
            raise StuckError("; ".join(engine.blocked() for engine in self.engines.values()))
        return self

    def _do(self, rank: int, actions: Sequence[Action]) -> None:
        todo = deque(actions)
        while todo:
            action = todo.popleft()
            if isinstance(action, StartSend):
                self._free[rank] = max(self._free[rank], self.now) + action.nbytes * self._ns_per_byte
                self.sent_bytes[rank] += action.nbytes
                data = bytes(action.data) if action.data is not None else None
                assert data is None or len(data) == action.nbytes
                there = action.stream._replace(peer=rank)
                self._push(self._free[rank], "sent", rank, (action.stream, action.key, None))
                self._push(self._free[rank] + self._delay, "arrived", action.stream.peer, (there, action.key, data))
            elif isinstance(action, PostRecv):
                self._posted[rank, action.stream, action.key] = action
                self._match(rank, action.stream, action.key)
            elif isinstance(action, SetTimer):
                self._push(action.at_ns, "timer", rank, (Stream(rank, 0, False), 0, None))
            elif isinstance(action, StepDone):
                self.steps.append((rank, action))
            else:
                assert isinstance(action, Finished)

    def _match(self, rank: int, stream: Stream, key: int) -> None:
        if (rank, stream, key) not in self._posted or (rank, stream, key) not in self._waiting:
            return
        post = self._posted.pop((rank, stream, key))
        data = self._waiting.pop((rank, stream, key))
        if post.data is not None and data is not None:
            post.data[:] = data
        self._do(rank, self.engines[rank].received(stream, key, self.now))

    def _push(self, at: int, what: str, rank: int, message: tuple[Stream, int, bytes | None]) -> None:
        self._order += 1
        heapq.heappush(self._events, (at, self._order, what, rank, message))


def trace_of(programs: Mapping[int, Sequence[Op]], groups: Sequence[Group] = (), steps: int = 0) -> Trace:
    """A trace of hand-written programs; without `groups`, group 0 holds every rank."""
    everyone = Group(0, "world", tuple(sorted(programs)), 0)
    return Trace(
        world_size=len(programs),
        groups=tuple(groups) or (everyone,),
        programs={rank: Program(rank, tuple(ops)) for rank, ops in programs.items()},
        step_count=steps,
    )


def everywhere(op: Collective, ranks: int) -> Trace:
    """`op`, waited for, as the one step of every rank."""
    return trace_of({rank: (op, Wait(0), StepMark(0)) for rank in range(ranks)}, steps=1)


def run(trace: Trace, *, segment: int = 1 << 20, ns_per_byte: int = 1, delay: int = 0, verify: bool = False) -> Network:
    return Network(lower(trace, segment=segment), ns_per_byte=ns_per_byte, delay=delay, verify=verify).run()
