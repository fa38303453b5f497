"""The recording of one rank: numbers its operations, keeps to the steps that are asked for, says what could not be recorded."""

from __future__ import annotations

import itertools
import time
from typing import Any

from tracebed_record import steps
from tracebed_record.stream import Stream


class Session:
    """`is_on` in the steps whose operations are asked for; `spent_ns` was spent recording."""

    def __init__(self, folder: str, about: dict[str, Any]) -> None:
        self._window = steps.window("TRACEBED_RECORD_STEPS")
        self._file = Stream(folder, about)
        self._steps = self._operations = 0
        self._numbers = itertools.count()
        self._said: set[str] = set()
        self.is_on = self._window[0] == 0
        self.spent_ns = 0
        steps.listen(self._step)

    def number(self) -> int:
        """The number of the next operation."""
        number = next(self._numbers)
        self._operations = number + 1
        return number

    def write(self, event: list[Any]) -> None:
        """Append an event, whichever step it is: what was started in one that is asked for may end in another."""
        self._file.write(event)

    def say(self, text: str) -> None:
        """Say once that something is not recorded, or not as it was."""
        if text not in self._said:
            self._said.add(text)
            self._file.write(["!", text[:200]])

    def _step(self, kind: str) -> None:
        self._file.write(["s", kind, time.monotonic_ns(), self._operations, self.spent_ns])
        self._steps += 1
        self.is_on = self._window[0] <= self._steps < self._window[1]
