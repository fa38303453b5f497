"""What all transports are to the process that waits for them, whatever carries their messages."""

from __future__ import annotations

import select
import socket
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from emulator.errors import BedError
from replay.plan import MESSAGE_BITS
from replay.transports.events import Event
from replay.transports.timer import Timer


class PeerLostError(BedError):
    """Another rank's end of a connection is gone: the cause is to be looked for there."""


class Endpoint:
    """The end of one rank: its timer, the socket that it watches, and what has happened. Whoever makes one opens `_timer`,
    `_epoll` and all else in `_opened`.
    """

    _timer: Timer
    _epoll: select.epoll
    _opened: ExitStack

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._events: list[Event] = []
        self._control = -1

    def set_timer(self, at_ns: int) -> None:
        """Asks for TimerExpired at `at_ns` of CLOCK_MONOTONIC; there is one timer."""
        self._timer.set(at_ns)

    def watch(self, control: socket.socket) -> None:
        """Asks for ControlReady whenever `control` can be read."""
        self._control = control.fileno()
        self._epoll.register(self._control, select.EPOLLIN)

    def close(self) -> None:
        """Closes everything; a peer that still runs takes it as this rank's death."""
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _wrong_size(self, peer: int, key: int, nbytes: int, expected: int) -> BedError:
        """Message `key` of `peer` is not what was posted."""
        number, operation = key & (1 << MESSAGE_BITS) - 1, key >> MESSAGE_BITS
        return BedError(
            f"rank {self._rank}: message {number} of operation {operation} from rank {peer} "
            f"has {nbytes} bytes, expected {expected}"
        )
