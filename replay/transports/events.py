"""What a transport tells the process that waits for it."""

from __future__ import annotations

from dataclasses import dataclass

from replay.plan import Stream


@dataclass(frozen=True, slots=True)
class Sent:
    """The kernel has taken the last byte of a message; or the other end has, if it was to be held."""

    stream: Stream
    key: int


@dataclass(frozen=True, slots=True)
class Received:
    """A posted message has come, whole."""

    stream: Stream
    key: int


@dataclass(frozen=True, slots=True)
class TimerExpired:
    """The time that was set has come."""


@dataclass(frozen=True, slots=True)
class ControlReady:
    """The watched socket has something to read."""


Event = Sent | Received | TimerExpired | ControlReady
