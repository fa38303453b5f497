"""Where the packets of a capture lie: pcap (draft-ietf-opsawg-pcap) and pcapng (draft-ietf-opsawg-pcapng), both byte orders."""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traces.errors import TraceError

Ints = npt.NDArray[np.int64]

MAX_KEPT = 1 << 24
"""Bytes of one packet; libpcap itself takes no more than 262,144, BIG TCP's super-packets have some more."""

_PCAP = {b"\xd4\xc3\xb2\xa1": ("<", 1000), b"\xa1\xb2\xc3\xd4": (">", 1000),
         b"\x4d\x3c\xb2\xa1": ("<", 1), b"\xa1\xb2\x3c\x4d": (">", 1)}  # fmt: skip
_PCAPNG = b"\x0a\x0d\x0d\x0a"
_ORDERS = {b"\x4d\x3c\x2b\x1a": "<", b"\x1a\x2b\x3c\x4d": ">"}
_INTERFACE, _SIMPLE, _ENHANCED = 1, 3, 6
_TSRESOL = 9


@dataclass(frozen=True, slots=True)
class Records:
    """A file's packets: byte `at` which each begins, bytes `kept`, bytes `length` on the wire, its time and link type.

    `is_cut` says that the file ends inside a packet.
    """

    at: Ints
    kept: Ints
    length: Ints
    at_ns: Ints
    link: Ints
    is_cut: bool


def sniff(head: bytes) -> bool:
    """Whether a file that starts with `head` is a capture."""
    return head[:4] in _PCAP or (head[:4] == _PCAPNG and head[8:12] in _ORDERS)


def read(data: bytes, file: str) -> Records:
    """Where the packets are. Raises TraceError naming the packet or block that can't be one."""
    if data[:4] in _PCAP:
        return _pcap(data, file, *_PCAP[data[:4]])
    if data[:4] == _PCAPNG:
        return _pcapng(data, file)
    raise TraceError("not a capture", file=file, mend="expected pcap or pcapng")


def words(data: bytes, at: Ints, width: int, order: str = ">") -> Ints:
    """The unsigned integers of `width` bytes that begin at each of `at`; those beyond the end of the file are any."""
    if len(data) < width:
        return np.zeros(len(at), np.int64)
    everywhere = np.ndarray((len(data) - width + 1,), f"{order}u{width}", data, 0, (1,))
    return everywhere[np.minimum(at, len(data) - width)].astype(np.int64)


def _pcap(data: bytes, file: str, order: str, tick_ns: int) -> Records:
    if len(data) < 24:
        raise TraceError("the file ends inside its header", file=file, mend="copy the file again")
    read_kept = struct.Struct(f"{order}I").unpack_from
    heads, at, end = array("q"), 24, len(data)
    while at + 16 <= end:
        (kept,) = read_kept(data, at + 8)
        if kept > MAX_KEPT:
            raise TraceError(f"says it has {kept} bytes", file=file, place=f"packet {len(heads)} at byte {at}")
        heads.append(at)
        at += 16 + kept
    if at > end and heads:
        heads.pop()
    head = np.array(heads, np.int64)
    at_ns = words(data, head, 4, order) * 10**9 + words(data, head + 4, 4, order) * tick_ns
    link = np.full(len(head), struct.unpack_from(f"{order}I", data, 20)[0] & 0xFFFF)
    return Records(head + 16, words(data, head + 8, 4, order), words(data, head + 12, 4, order), at_ns, link, at != end)


@dataclass(slots=True)
class _Interface:
    """What a pcapng section says of an interface. Ticks are 10^-exponent s, or 2^-exponent where `is_binary`."""

    link: int
    snaplen: int
    exponent: int = 6
    is_binary: bool = False

    def ns(self, ticks: int) -> int:
        return ticks * 10**9 >> self.exponent if self.is_binary else ticks * 10**9 // 10**self.exponent


def _pcapng(data: bytes, file: str) -> Records:
    columns = [array("q") for _ in range(5)]  # at, kept, length, at_ns, link
    order, at, interfaces = "<", 0, list[_Interface]()
    while at + 12 <= len(data):
        place = f"block at byte {at}"
        if data[at : at + 4] == _PCAPNG:
            if data[at + 8 : at + 12] not in _ORDERS:
                raise TraceError("has no byte order", file=file, place=place)
            order, interfaces = _ORDERS[data[at + 8 : at + 12]], []
        kind, size = struct.unpack_from(f"{order}II", data, at)
        if size < 12 or size % 4:
            raise TraceError(f"says it has {size} bytes", file=file, place=place, mend="at least 12, in fours")
        if at + size > len(data):
            break
        if kind == _INTERFACE and size >= 20:
            interfaces.append(_interface(data, at, size, order))
        elif (kind == _ENHANCED and size >= 32) or (kind == _SIMPLE and size >= 16):
            number, high, low, kept, length = (
                struct.unpack_from(f"{order}IIIII", data, at + 8)
                if kind == _ENHANCED
                else (0, 0, 0, 0, struct.unpack_from(f"{order}I", data, at + 8)[0])
            )
            if number >= len(interfaces):
                raise TraceError(f"is of interface {number}, which is not described", file=file, place=place)
            own, body = interfaces[number], 28 if kind == _ENHANCED else 12
            kept = kept if kind == _ENHANCED else min(length, own.snaplen or length, size - 16)
            at_ns = own.ns(high << 32 | low)
            if kept > size - body - 4 or at_ns >= 1 << 62:
                raise TraceError(f"holds {kept} bytes of {size}, at {at_ns} ns", file=file, place=place)
            for column, value in zip(columns, (at + body, kept, length, at_ns, own.link), strict=True):
                column.append(value)
        at += size
    starts, kepts, lengths, times, links = (np.array(column, np.int64) for column in columns)
    return Records(starts, kepts, lengths, times, links, at != len(data))


def _interface(data: bytes, at: int, size: int, order: str) -> _Interface:
    link, _, snaplen = struct.unpack_from(f"{order}HHI", data, at + 8)
    found = _Interface(link, snaplen)
    option, end = at + 16, at + size - 4
    while option + 4 <= end:
        code, length = struct.unpack_from(f"{order}HH", data, option)
        if code == 0:
            break
        if code == _TSRESOL and length == 1 and option + 4 < end:
            found.exponent, found.is_binary = data[option + 4] & 0x7F, data[option + 4] >= 0x80
        option += 4 + (length + 3) // 4 * 4
    return found
