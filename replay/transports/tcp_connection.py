"""What is under way on one TCP connection."""

from __future__ import annotations

import select
import socket
import struct
from collections import deque
from dataclasses import dataclass

from replay.costs import Copying
from replay.plan import Stream

HEADER = struct.Struct("<QQ")
"""Ahead of each part of a message: the message's key and the part's size in bytes."""
_LARGE = 64 << 10
"""Bytes left of a message from which on it pays to set SO_RCVLOWAT (socket(7)) for it."""
_PART = 16 << 10
"""The least that SO_RCVLOWAT is set to, about ten packets."""
_ALL = 1 << 62
"""More bytes than are ever sent."""


@dataclass(slots=True)
class Whole:
    """A message, of which `parts` are still to come or go."""

    parts: int

    def is_last(self) -> bool:
        """One more is done: whether it was the last."""
        self.parts -= 1
        return not self.parts


@dataclass(slots=True)
class Outgoing:
    """A part of a message that goes out; `done` counts its header too, `held`: it is sent when the other end has it."""

    whole: Whole
    key: int
    header: bytes
    nbytes: int
    data: memoryview | None
    held: bool = False
    done: int = 0

    @property
    def left(self) -> int:
        return HEADER.size + self.nbytes - self.done


@dataclass(slots=True)
class Incoming:
    """A part of a message that comes in, its header aside."""

    whole: Whole
    key: int
    nbytes: int
    data: memoryview | None
    done: int = 0

    @property
    def left(self) -> int:
        return self.nbytes - self.done


class Connection:
    """One of a stream's sockets and what is under way on it.

    `copied`: bytes of the message that goes out which the kernel may have. `copying`: the next ones are being copied.
    `written`: bytes that the kernel has taken in all, `acknowledged`: of those the other end has, as far as that was asked for
    messages, which then are in `unacknowledged`, each with the number of bytes up to its end.
    `taken_at`: when the last bytes that were read will have been copied; `paused`: none are read before.
    """

    def __init__(self, stream: Stream, number: int, sock: socket.socket, lanes: tuple[Copying, Copying] | None) -> None:
        self.stream = stream
        self.number = number
        self.socket = sock
        self.out: Copying | None
        self.into: Copying | None
        self.out, self.into = lanes or (None, None)
        self.copied = 0 if self.out else _ALL
        self.copying = self.paused = False
        self.taken_at = 0
        self.mask = select.EPOLLIN | select.EPOLLRDHUP
        self.outgoing: deque[Outgoing] = deque()
        self.written = self.acknowledged = 0
        self.unacknowledged: deque[tuple[int, Outgoing]] = deque()
        self.posted: dict[int, Incoming] = {}
        self.early: dict[int, Incoming] = {}
        self.header = bytearray()
        self.coming: Incoming | None = None
        self.low = 1

    def wake_at(self, left: int) -> None:
        """While much is left of a message, has epoll report a part of the receive buffer at a time, not each packet.

        The window that the sender sees shrinks by what lies unread. So the part is small, and nothing is asked for
        before the buffer has grown: with an eighth from the start, a cold connection took longer to find its rate.
        """
        low = self.low
        if low == 1 and left >= _LARGE:
            part = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 32
            low = part if part >= _PART else 1
        low = max(1, min(low, left))
        if low != self.low:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low)
            self.low = low
