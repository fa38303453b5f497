"""The step times of a plan on a network that takes no time at all: what compute alone, and waiting for each other, costs.

It is the bound that no network can beat, and it needs no kernel: the ranks' engines run against each other in model time,
every message arriving in the instant in which it is both sent and awaited.
"""

from __future__ import annotations

import heapq
from collections import deque
from itertools import pairwise

from emulator.errors import BedError
from replay.engine import Action, Engine, PostRecv, SetTimer, StartSend, StepDone
from replay.plan import Plan, Stream

_Message = tuple[int, Stream, int]
"""The receiving rank, its stream to the sender, the key."""


def ideal_step_ns(plan: Plan) -> tuple[int, ...]:
    """Each step's time in ns: from the last rank passing the mark before to the last rank passing its own.

    Raises:
        BedError: the ranks wait for each other for ever; with what each waits for.
    """
    return step_times(_Instant(plan).run())


def step_times(ends: dict[int, int]) -> tuple[int, ...]:
    """From when the last rank passed each step's mark, ns after the start, to how long each step took."""
    moments = [0, *(ends[step] for step in sorted(ends))]
    return tuple(after - before for before, after in pairwise(moments))


class _Instant:
    """All ranks of a plan on that network."""

    def __init__(self, plan: Plan) -> None:
        self._engines = {rank: Engine(own) for rank, own in plan.ranks.items()}
        self._timers: list[tuple[int, int]] = []
        self._sent: set[_Message] = set()
        self._awaited: set[_Message] = set()
        self._todo: deque[tuple[int, Action]] = deque()
        self._ends: dict[int, int] = {}

    def run(self) -> dict[int, int]:
        for rank, engine in self._engines.items():
            self._todo.extend((rank, action) for action in engine.start(0))
        self._settle(0)
        while self._timers:
            now, rank = heapq.heappop(self._timers)
            self._todo.extend((rank, action) for action in self._engines[rank].timer(now))
            self._settle(now)
        if stuck := [engine.blocked() for engine in self._engines.values() if not engine.finished]:
            raise BedError(f"the ranks wait for each other for ever: {'; '.join(stuck)}")
        return self._ends

    def _settle(self, now: int) -> None:
        """Do everything that can be done without time passing."""
        while self._todo:
            rank, action = self._todo.popleft()
            if isinstance(action, SetTimer):
                heapq.heappush(self._timers, (action.at_ns, rank))
            elif isinstance(action, StepDone):
                self._ends[action.step] = max(self._ends.get(action.step, 0), action.at_ns)
            elif isinstance(action, StartSend):
                there = action.stream._replace(peer=rank)
                self._sent.add((action.stream.peer, there, action.key))
                self._more(rank, self._engines[rank].sent(action.stream, action.key, now))
                self._match((action.stream.peer, there, action.key), now)
            elif isinstance(action, PostRecv):
                self._awaited.add((rank, action.stream, action.key))
                self._match((rank, action.stream, action.key), now)

    def _match(self, message: _Message, now: int) -> None:
        if message in self._sent and message in self._awaited:
            self._sent.remove(message)
            self._awaited.remove(message)
            rank, stream, key = message
            self._more(rank, self._engines[rank].received(stream, key, now))

    def _more(self, rank: int, actions: list[Action]) -> None:
        self._todo.extend((rank, action) for action in actions)
