"""How much of what was sent on a TCP connection the other end has, as the kernel tells it.

SO_TIMESTAMPING with SOF_TIMESTAMPING_TX_ACK (Linux, Documentation/networking/timestamping.rst): when the last byte of a call
that sent is acknowledged, the socket's error queue says which byte that was, and epoll reports EPOLLERR.
"""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

_SO_TIMESTAMPING = 37  # asm-generic/socket.h
_SOFTWARE, _OPT_ID, _TX_ACK, _OPT_TSONLY = 1 << 4, 1 << 7, 1 << 9, 1 << 11  # linux/net_tstamp.h
_NUMBERED = _SOFTWARE | _OPT_ID | _OPT_TSONLY
_IP_RECVERR = 11
_EXTENDED_ERROR = struct.Struct(
    "=IBBBBII"
)  # struct sock_extended_err (linux/errqueue.h); its last is the byte's number
_NUMBERS = 1 << 32


def number_bytes(sock: socket.socket) -> None:
    """From now on the bytes are numbered, from 0 on; to be called before the first is sent. Doing so again changes nothing."""
    sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPING, _NUMBERED)


def want(sock: socket.socket, wanted: bool) -> None:
    """Whether the acknowledgements of what is sent from now on are told."""
    sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPING, _NUMBERED | (_TX_ACK if wanted else 0))


def acknowledged(sock: socket.socket, before: int) -> int:
    """How many bytes are acknowledged by what has been told since `before` was."""
    with suppress(BlockingIOError):
        while True:
            _, told, _, _ = sock.recvmsg(0, 256, socket.MSG_ERRQUEUE)
            for level, kind, data in told:
                if (level, kind) == (socket.IPPROTO_IP, _IP_RECVERR):
                    *_, number = _EXTENDED_ERROR.unpack_from(data)
                    before += (number + 1 - before) % _NUMBERS
    return before
