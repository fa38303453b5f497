"""What leaves a network device, as an AF_PACKET socket sees it after the device's qdisc (packet(7)).

Packets are copied to a ring in memory (TPACKET_V2, Documentation/networking/packet_mmap.rst) at once. So nothing holds on to
a packet while it is on its way, and in virtual time a run is the same to the nanosecond with a tap and without.
"""

from __future__ import annotations

import ctypes
import mmap
import socket
import struct
from collections.abc import Iterator
from types import TracebackType
from typing import NamedTuple, Self

from emulator.pcap import SNAPLEN

_ETH_P_ALL = 0x0003
_SOL_PACKET, _RX_RING, _STATISTICS, _VERSION = 263, 5, 6, 10  # linux/if_packet.h
_SO_ATTACH_FILTER = 26
_V2, _OF_USER = 1, 1
_BLOCK, _BLOCKS, _FRAME = 1 << 20, 32, 256
_FRAMES = _BLOCK * _BLOCKS // _FRAME
_HEADER = struct.Struct(
    "=3I2H2I"
)  # status, length, kept, offsets of the packet and of its IP header, seconds, nanoseconds
_STATUS = struct.Struct("=I")
_OUTGOING_ONLY = b"".join(
    struct.pack("=HBBI", *instruction)
    for instruction in (
        (0x30, 0, 0, 0xFFFFF004),  # A = the packet's type (SKF_AD_OFF + SKF_AD_PKTTYPE)
        (0x15, 0, 1, 4),  # if it is PACKET_OUTGOING
        (0x06, 0, 0, SNAPLEN),  # keep so much of it
        (0x06, 0, 0, 0),  # else nothing
    )
)


class Frame(NamedTuple):
    """A packet: when it left (CLOCK_REALTIME, ns), its bytes, and the first of them."""

    at_ns: int
    length: int
    kept: bytes


class Tap:
    """On a device of this thread's namespace. Its ring holds 131072 packets; `lost` counts those for which it was full."""

    def __init__(self, device: str) -> None:
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        program = ctypes.create_string_buffer(_OUTGOING_ONLY)
        self._socket.setsockopt(
            socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", len(_OUTGOING_ONLY) // 8, ctypes.addressof(program))
        )
        self._socket.setsockopt(_SOL_PACKET, _VERSION, _V2)
        self._socket.setsockopt(_SOL_PACKET, _RX_RING, struct.pack("=4I", _BLOCK, _BLOCKS, _FRAME, _FRAMES))
        self._ring = mmap.mmap(self._socket.fileno(), _BLOCK * _BLOCKS)
        self._next = 0
        self._socket.bind((device, _ETH_P_ALL))

    def fileno(self) -> int:
        """Readable where a packet has come."""
        return self._socket.fileno()

    def frames(self) -> Iterator[Frame]:
        """The packets that have come since the last time, in order."""
        while True:
            place = self._next * _FRAME
            status, length, kept, offset, _, seconds, nanoseconds = _HEADER.unpack_from(self._ring, place)
            if not status & _OF_USER:
                return
            start = place + offset
            yield Frame(seconds * 10**9 + nanoseconds, length, self._ring[start : start + kept])
            _STATUS.pack_into(self._ring, place, 0)
            self._next = (self._next + 1) % _FRAMES

    def lost(self) -> int:
        """How many packets the ring had no room for, since the last time."""
        _, drops = struct.unpack("=II", self._socket.getsockopt(_SOL_PACKET, _STATISTICS, 8))
        return int(drops)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ring.close()
        self._socket.close()
