"""The pcap file format with nanosecond stamps (draft-ietf-opsawg-pcap; magic number a1b23c4d), little-endian, for Ethernet."""

from __future__ import annotations

import struct

_FILE = struct.Struct("<IHHiIII")
_RECORD = struct.Struct("<IIII")
_MAGIC, _VERSION, _ETHERNET = 0xA1B23C4D, (2, 4), 1
SNAPLEN = 128
"""Bytes kept of a packet: the headers of Ethernet, IP and TCP with all their options, and the first bytes of what they carry."""


def header() -> bytes:
    """What the file begins with."""
    return _FILE.pack(_MAGIC, *_VERSION, 0, 0, SNAPLEN, _ETHERNET)


def record(at_ns: int, length: int, kept: bytes) -> bytes:
    """One packet of `length` bytes, `at_ns` after the file's 0; `kept` are its first bytes."""
    return _RECORD.pack(*divmod(at_ns, 10**9), len(kept), length) + kept
