"""Any number of times at which something is to be done, on a timer that holds one. No I/O."""

from __future__ import annotations

import heapq
from collections.abc import Callable

Act = Callable[[int], None]
"""What is to be done; it is told what time it is."""


class Alarms:
    """`set_timer` has `ring` called at the time that it was told last, in ns."""

    def __init__(self, set_timer: Callable[[int], None]) -> None:
        self._set_timer = set_timer
        self._due: list[tuple[int, int, Act]] = []
        self._made = 0
        self._ringing = False

    def add(self, at_ns: int, act: Act) -> None:
        """Have `act` done at `at_ns`; what is due at one time is done in the order in which it was added."""
        earliest = not self._due or at_ns < self._due[0][0]
        self._made += 1
        heapq.heappush(self._due, (at_ns, self._made, act))
        if earliest and not self._ringing:
            self._set_timer(at_ns)

    def ring(self, now: int) -> None:
        """Do all that is due by `now`."""
        self._ringing = True
        while self._due and self._due[0][0] <= now:
            heapq.heappop(self._due)[2](now)
        self._ringing = False
        if self._due:
            self._set_timer(self._due[0][0])
