"""Reads the queues of a bed now and then while ranks run, and keeps the most that waited in each."""

from __future__ import annotations

import os

from emulator.beds.bed import Bed
from replay.transports.timer import Timer

_READINGS = 1024
"""Of all directions together, before readings become half as frequent; so a run's length in octaves decides on their number."""
_FEWEST = 8
_PAUSE_NS = 2_000_000
"""From one reading to the next, at first. In real time one takes about 0.1 ms from the ranks."""


class Gauge:
    """Whoever waits calls `act` whenever `fd` is readable, and closes it. In virtual time readings are at the same moments in
    every run, and exact then; what comes and goes between two is not seen.

    `peaks`: bytes, in the order of the bed's counters; `readings`: how many were made.
    """

    def __init__(self, bed: Bed) -> None:
        self._queues = bed.queues()
        self._pause_ns = _PAUSE_NS
        self._next_ns = 0
        self.peaks = self._queues.read()
        self.readings = 0
        self._each = max(_FEWEST, _READINGS // max(1, len(self.peaks)))
        self._timer = Timer()
        self.fd = self._timer.fd

    def start(self, at_ns: int) -> None:
        """The job starts at `at_ns` of CLOCK_MONOTONIC."""
        self._next_ns = at_ns
        self._wind()

    def act(self) -> None:
        """Read, and wait for the next time."""
        os.read(self.fd, 8)
        self.peaks = list(map(max, self.peaks, self._queues.read()))
        self.readings += 1
        if self.readings % self._each == 0:
            self._pause_ns *= 2
        self._wind()

    def _wind(self) -> None:
        self._next_ns += self._pause_ns
        self._timer.set(self._next_ns)

    def close(self) -> None:
        """Give back the timer and what reading takes."""
        self._timer.close()
        self._queues.close()
