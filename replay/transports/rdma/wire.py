"""One connection's UDP socket: trains out, what came in."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from contextlib import suppress

_SOL_UDP, _UDP_SEGMENT, _UDP_GRO = 17, 103, 104  # linux/udp.h
_SNDBUFFORCE, _RCVBUFFORCE = 32, 33  # asm-generic/socket.h
_IP_MTU, _IP_RECVTOS, _IPV6_MTU, _IPV6_RECVTCLASS = 14, 13, 24, 66  # linux/in.h, linux/in6.h
_ECT, _CE = 2, 3  # RFC 3168
_ANCILLARY = socket.CMSG_SPACE(4) * 4
_WHOLE = 1 << 16


class UdpWire:
    """A socket at `host`, port `port` or any; MTU found on the path once it is connected. `room`: bytes for its buffers,
    where the kernel allows it. OSError where the address can't be had.
    """

    def __init__(self, host: str, port: int, room: int, *, trains: bool) -> None:
        self._six = ":" in host
        self.socket = socket.socket(socket.AF_INET6 if self._six else socket.AF_INET, socket.SOCK_DGRAM)
        try:
            for force, plain in ((_SNDBUFFORCE, socket.SO_SNDBUF), (_RCVBUFFORCE, socket.SO_RCVBUF)):
                try:
                    self.socket.setsockopt(socket.SOL_SOCKET, force, room)
                except PermissionError:
                    self.socket.setsockopt(socket.SOL_SOCKET, plain, room)
            level = socket.IPPROTO_IPV6 if self._six else socket.IPPROTO_IP
            self.socket.setsockopt(level, socket.IPV6_TCLASS if self._six else socket.IP_TOS, _ECT)
            self.socket.setsockopt(level, _IPV6_RECVTCLASS if self._six else _IP_RECVTOS, 1)
            if trains:
                self.socket.setsockopt(_SOL_UDP, _UDP_GRO, 1)
            self.socket.bind((host, port))
        except OSError:
            self.socket.close()
            raise
        self._buffer = bytearray(_WHOLE)
        self._view = memoryview(self._buffer)

    def fileno(self) -> int:
        return self.socket.fileno()

    def mtu(self) -> int:
        """Bytes of the largest IP packet to the other end."""
        if self._six:
            return self.socket.getsockopt(socket.IPPROTO_IPV6, _IPV6_MTU)
        return self.socket.getsockopt(socket.IPPROTO_IP, _IP_MTU)

    def send(self, parts: Sequence[bytes | memoryview], segment: int, count: int) -> None:
        """Sends packets of `segment` bytes each (the last may be shorter), one after the other. Waits for room."""
        ancillary = [(_SOL_UDP, _UDP_SEGMENT, struct.pack("=H", segment))] if count > 1 else []
        self.socket.sendmsg(parts, ancillary)

    def receive(self) -> tuple[memoryview, int, bool]:
        """What came: its bytes (until the next call), the size of the packets in it, and whether a queue marked them. Nothing
        where it was only announced."""
        size = 0
        ancillary: list[tuple[int, int, bytes]] = []
        with suppress(BlockingIOError):
            size, ancillary, _, _ = self.socket.recvmsg_into([self._buffer], _ANCILLARY, socket.MSG_DONTWAIT)
        segment, marked = size, False
        for level, kind, data in ancillary:
            if level == _SOL_UDP and kind == _UDP_GRO:
                segment = int.from_bytes(data[:4], "little")
            elif kind in (socket.IP_TOS, socket.IPV6_TCLASS):
                marked = data[0] & _CE == _CE
        return self._view[:size], segment, marked

    def close(self) -> None:
        self.socket.close()
