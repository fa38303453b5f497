"""How long an operation takes by the alpha-beta model: every message waits its turn on each link of its way, passes it at the
link's rate, and arrives after the delays. No packets, no headers, no TCP, no time in hosts.

The head of a message goes on to the next link while its tail is still on this one.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from replay.collectives.schedule import Copy, Schedule, Send
from replay.collectives.wires import Wires

_Message = tuple[int, int, int]
"""Sender, receiver, number."""


def duration_ns(schedules: Sequence[Schedule], wires: Wires, itemsize: int) -> float:
    """From when all ranks start to when the last has ended."""
    return _Model(schedules, wires, itemsize).run()


class _Model:
    def __init__(self, schedules: Sequence[Schedule], wires: Wires, itemsize: int) -> None:
        self._schedules, self._wires, self._itemsize = schedules, wires, itemsize
        self._missing = [[len(task.after) for task in schedule.tasks] for schedule in schedules]
        self._free = [0.0] * len(wires.delays)
        self._arrived: dict[_Message, float] = {}
        self._posted: dict[_Message, int] = {}
        self._ends: list[tuple[float, int, int]] = []

    def run(self) -> float:
        for rank, missing in enumerate(self._missing):
            for task, lacks in enumerate(missing):
                if not lacks:
                    self._start(rank, task, 0.0)
        now = 0.0
        while self._ends:
            now, rank, task = heapq.heappop(self._ends)
            for later in self._schedules[rank].dependents[task]:
                self._missing[rank][later] -= 1
                if not self._missing[rank][later]:
                    self._start(rank, later, now)
        return now

    def _start(self, rank: int, index: int, now: float) -> None:
        schedule = self._schedules[rank]
        task = schedule.tasks[index]
        if isinstance(task, Copy):
            heapq.heappush(self._ends, (now, rank, index))
        elif isinstance(task, Send):
            left, arrives = self._pass(rank, task.peer, task.count * self._itemsize, now)
            heapq.heappush(self._ends, (left, rank, index))
            message = rank, task.peer, schedule.numbers[index]
            if message in self._posted:
                heapq.heappush(self._ends, (arrives, task.peer, self._posted.pop(message)))
            else:
                self._arrived[message] = arrives
        else:
            message = task.peer, rank, schedule.numbers[index]
            if message in self._arrived:
                heapq.heappush(self._ends, (max(now, self._arrived.pop(message)), rank, index))
            else:
                self._posted[message] = index

    def _pass(self, source: int, target: int, nbytes: int, now: float) -> tuple[float, float]:
        """When a message has left its sender, and when it has arrived."""
        head = tail = now
        left = None
        for way in self._wires.ways[source][target]:
            begins = max(head, self._free[way])
            ends = self._free[way] = begins + nbytes * self._wires.ns_per_byte[way]
            left = ends if left is None else left
            head = begins + self._wires.delays[way]
            tail = max(tail, ends) + self._wires.delays[way]
        return now if left is None else left, tail
