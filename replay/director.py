"""Applies a network's events to a bed that is up, each at its time."""

from __future__ import annotations

import os

from emulator.beds.bed import Bed
from emulator.events import WAYS, direction_of, timeline
from emulator.impairments import Event
from emulator.links import Direction
from emulator.units import Probability
from replay.transports.timer import Timer


class Director:
    """The events of a bed's network. Whoever waits calls `act` whenever `fd` is readable, and closes it.

    In virtual time a change happens at its very nanosecond, for the timer ends then and the change takes no time.
    """

    def __init__(self, bed: Bed) -> None:
        """What holds from 0 on is applied at once, before anything starts.

        Raises:
            BedError: the kernel refused a change, as `act` does.
        """
        self._bed = bed
        self._now = {(link.name, way): direction_of(link, way) for link in bed.network.links for way in WAYS}
        self._changes = timeline(bed.network.links, bed.network.events)
        self._next = next(self._changes, None)
        self._start_ns = 0
        self._timer = Timer()
        self.fd = self._timer.fd
        self._apply_until(0)

    def start(self, at_ns: int) -> None:
        """The job starts at `at_ns` of CLOCK_MONOTONIC: from there the events' times count."""
        self._start_ns = at_ns
        self._wind()

    def act(self, now_ns: int) -> None:
        """Apply what is due, and wait for what comes next."""
        os.read(self.fd, 8)
        self._apply_until(now_ns - self._start_ns)
        self._wind()

    def down(self) -> list[str]:
        """The links that lose all of what is sent on them, one way at least."""
        lost = {key[0] for key, direction in self._now.items() if _loses_all(direction)}
        return [link.name for link in self._bed.network.links if link.name in lost]

    def _apply_until(self, at: int) -> None:
        while self._next is not None and self._next.at <= at:
            self._bed.apply(self._next)
            self._now[self._next.link, self._next.way] = self._next.direction
            self._next = next(self._changes, None)

    def _wind(self) -> None:
        if self._next is not None:
            self._timer.set(self._start_ns + self._next.at)

    def close(self) -> None:
        """Give the timer's descriptor back."""
        self._timer.close()


def _loses_all(direction: Direction) -> bool:
    return isinstance(direction.loss, Event) and direction.loss.probability == Probability.ALWAYS
