"""How TCP's sockets are set (tcp(7), socket(7)); what routes set, the bed does."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from typing import Self

from emulator.errors import MachineError
from emulator.transport import Tcp

_SO_MAX_PACING_RATE = 47  # include/uapi/asm-generic/socket.h


@dataclass(frozen=True, slots=True)
class TcpOptions:
    """Per socket; None leaves it to the kernel. `congestion`: a name as in tcp_available_congestion_control; buffers and
    `mss` in bytes; `pacing`: the most that is sent, in bytes a second; `nodelay`: small segments don't wait for
    acknowledgements (Nagle's algorithm off). `streams`: connections that carry one stream's messages. `unsent`: bytes that are
    taken before they are sent; `ahead`: messages are read before they are posted, so that none holds back what was sent
    after it.
    """

    congestion: str | None = None
    send_buffer: int | None = None
    recv_buffer: int | None = None
    mss: int | None = None
    pacing: int | None = None
    nodelay: bool = True
    streams: int = 1
    unsent: int | None = None
    ahead: bool = False

    @classmethod
    def of(cls, tcp: Tcp) -> Self:
        """What sockets are set to on a network of this TCP. Its buffers are the bed's (tcp_rmem, tcp_wmem)."""
        return cls(
            congestion=tcp.congestion,
            mss=tcp.mss,
            pacing=None if tcp.pacing is None else tcp.pacing // 8,
            nodelay=tcp.nodelay,
            streams=tcp.streams,
        )


def new_socket(host: str, options: TcpOptions) -> socket.socket:
    """A socket that is to listen at, or connect to, an address as `host`. Raises MachineError for what the kernel refuses."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, options.nodelay)
    # Buffers and segments before listen and connect: the handshake agrees on them.
    if options.send_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, options.send_buffer)
    if options.recv_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, options.recv_buffer)
    if options.unsent is not None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, options.unsent)
    if options.mss is not None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, options.mss)
    if options.pacing is not None:
        sock.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, struct.pack("=Q", options.pacing))
    if options.congestion is not None:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, options.congestion.encode())
        except OSError as error:
            sock.close()
            raise MachineError(
                f"congestion control {options.congestion!r} can't be used: {error.strerror}",
                mend="choose one of /proc/sys/net/ipv4/tcp_allowed_congestion_control",
            ) from error
    return sock
