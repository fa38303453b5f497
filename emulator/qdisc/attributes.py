"""Netlink attributes as bytes: a length and a type of 16 bits each, the payload, padding to 4
(include/uapi/linux/netlink.h)."""

from __future__ import annotations

import struct

TYPE_MASK = 0x3FFF  # NLA_TYPE_MASK: the two top bits are flags


def pack(kind: int, payload: bytes) -> bytes:
    """One attribute of type `kind`, padded."""
    return struct.pack("=HH", 4 + len(payload), kind) + payload + b"\0" * (-len(payload) % 4)


def unpack(data: bytes) -> dict[int, bytes]:
    """The payload of each attribute in `data`, by type; the last of a type wins, as in the kernel's nla_parse()."""
    found = {}
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        if not 4 <= length <= len(data):
            raise ValueError(f"attribute {kind} says {length} bytes, {len(data)} are left")
        found[kind & TYPE_MASK] = data[4:length]
        data = data[length + -length % 4 :]
    return found
