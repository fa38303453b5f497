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
"""Ahead of each message: its key and its size in bytes."""
_ALL = 1 << 62
"""More bytes than are ever sent."""


@dataclass(slots=True)
class Outgoing:
    """A message that goes out; `done` counts its header too."""

    key: int
    header: bytes
    nbytes: int
    data: memoryview | None
    done: int = 0

    @property
    def left(self) -> int:
        return HEADER.size + self.nbytes - self.done


@dataclass(slots=True)
class Incoming:
    """A message that comes in, its header aside."""

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
        self.posted: dict[int, Incoming] = {}
        self.early: dict[int, Incoming] = {}
        self.header = bytearray()
        self.coming: Incoming | None = None
        self.low = 1
