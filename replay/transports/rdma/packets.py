"""The packets of the RDMA-like transport, as UDP carries them.

A data packet has 16 bytes in front of its payload, as many as RoCEv2 has behind UDP (BTH of 12, ICRC of 4; IBTA annex A17):
with IP and UDP that is 44 bytes. Acknowledgements (ACK), refusals (NAK) and congestion notifications (CNP) are such headers
without payload; an ACK under selective repeat that knows of holes has 20 bytes more, which say what came last and which of the
packets before it (IRN, SIGCOMM 2018, section 3.1, whose ACK says one at a time).

Packet sequence numbers (PSN) have 24 bits and wrap. Inside, packets are counted on without end; `unwrap` finds the count.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

DATA, ACK, NAK, CNP = 0x04, 0x11, 0x12, 0x81
FIRST, ASKS = 1, 2
"""Flags of a data packet: it begins a message; it wants to be acknowledged (AckReq)."""
PSN_BITS = 24
HEADER_BYTES = 16
IP_UDP_BYTES = 28
SACK_SPAN = 128
"""Packets whose fate an ACK can tell besides the cumulative one."""

_HEADER = struct.Struct("!BBHIII")
_SACK = struct.Struct("!I16s")
_PSN_MASK = (1 << PSN_BITS) - 1
_HALF = 1 << (PSN_BITS - 1)


@dataclass(frozen=True, slots=True)
class Reply:
    """What a receiver tells its sender. `expected`: count of the first packet it has not got. `newest`: what came last
    behind a hole, and `held`: bit i is set where it has the packet i before that; 0 where it has no hole.
    """

    opcode: int
    expected: int
    newest: int = 0
    held: int = 0


def unwrap(psn: int, near: int) -> int:
    """The count nearest to `near` that has this PSN."""
    return near + ((psn - near + _HALF) & _PSN_MASK) - _HALF


def data_header(queue_pair: int, count: int, flags: int) -> bytes:
    """The 16 bytes in front of a payload. `queue_pair`: the receiver's number for the connection."""
    return _HEADER.pack(DATA, flags, 0, queue_pair, count & _PSN_MASK, 0)


def read_header(packet: memoryview) -> tuple[int, int, int, int]:
    """(opcode, flags, queue pair, PSN) of a packet of at least 16 bytes."""
    opcode, flags, _, queue_pair, psn, _ = _HEADER.unpack_from(packet)
    return opcode, flags, queue_pair, psn


def encode_reply(queue_pair: int, reply: Reply) -> bytes:
    """The packet that says `reply`."""
    header = _HEADER.pack(reply.opcode, 0, 0, queue_pair, reply.expected & _PSN_MASK, 0)
    if not reply.held:
        return header
    return header + _SACK.pack(reply.newest & _PSN_MASK, reply.held.to_bytes(16, "big"))


def decode_reply(packet: memoryview, near: int) -> Reply:
    """The reply in a packet; `near`: a count within 2^23 of those that it may speak of."""
    opcode, _, _, psn = read_header(packet)
    expected = unwrap(psn, near)
    if len(packet) < HEADER_BYTES + _SACK.size:
        return Reply(opcode, expected)
    newest, held = _SACK.unpack_from(packet, HEADER_BYTES)
    return Reply(opcode, expected, unwrap(newest, expected), int.from_bytes(held, "big"))
