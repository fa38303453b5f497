"""pfifo and bfifo: first come, first served, up to a limit (net/sched/sch_fifo.c)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar, Self

from emulator.units import Size


@dataclass(frozen=True, slots=True)
class PacketFifo:
    """Holds `limit` packets."""

    kind: ClassVar[str] = "pfifo"
    kernel_chooses: ClassVar[frozenset[str]] = frozenset()

    limit: int

    def encode(self) -> bytes:
        """The payload of TCA_OPTIONS."""
        return struct.pack("=I", self.limit)

    @classmethod
    def decode(cls, options: bytes) -> Self:
        return cls(*struct.unpack("=I", options))


@dataclass(frozen=True, slots=True)
class ByteFifo:
    """Holds `limit` bytes."""

    kind: ClassVar[str] = "bfifo"
    kernel_chooses: ClassVar[frozenset[str]] = frozenset()

    limit: Size

    def encode(self) -> bytes:
        """The payload of TCA_OPTIONS."""
        return struct.pack("=I", self.limit)

    @classmethod
    def decode(cls, options: bytes) -> Self:
        return cls(Size(struct.unpack("=I", options)[0]))
