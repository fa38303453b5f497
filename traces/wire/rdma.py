"""RoCEv2 packets: what those of sends and writes carry, by packet number and queue pair.

Headers and opcodes: InfiniBand Architecture Specification, volume 1, 9.2 to 9.3 and annex A17.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traces.wire.records import Ints, words

PORT = 4791
HEADERS = 8 + 12
"""Bytes that must be there to tell: UDP's header and the base transport header."""
_CHECKSUM = 4
_IMMEDIATE, _WRITE = (
    4,
    16,
)  # bytes of the headers behind the base: immediate data or a key to invalidate; where to write
_AHEAD = {0: 0, 1: 0, 5: 4}
"""By transport, a header in front of those: reliable and unreliable connections, extended reliable connections."""
_BEHIND = {0: 0, 1: 0, 2: 0, 3: _IMMEDIATE, 4: 0, 5: _IMMEDIATE, 22: _IMMEDIATE, 23: _IMMEDIATE,
           6: _WRITE, 7: 0, 8: 0, 9: _IMMEDIATE, 10: _WRITE, 11: _WRITE + _IMMEDIATE}  # fmt: skip
"""By operation, first sends, then writes."""
_READS = (12, 13, 14, 15, 16, 18, 19, 20)
_HEADERS = np.full(256, -1)
_IS_READ = np.zeros(256, np.bool_)
for _transport, _ahead in _AHEAD.items():
    for _operation, _behind in _BEHIND.items():
        _HEADERS[_transport << 5 | _operation] = _ahead + _behind
    _IS_READ[[_transport << 5 | operation for operation in _READS]] = True


@dataclass(frozen=True, slots=True)
class Data:
    """Of each packet: the queue pair it is for, its number, the bytes it carries, and whether it is of a send or a write.

    `reads` counts those of reads and atomic operations.
    """

    queue: Ints
    number: Ints
    size: Ints
    counts: npt.NDArray[np.bool_]
    reads: int


def packets(data: bytes, udp: Ints) -> Data:
    """The packets whose UDP headers begin at each of `udp`."""
    base = udp + 8
    opcode = words(data, base, 1)
    padding = words(data, base + 1, 1) >> 4 & 3
    headers = _HEADERS[opcode]
    size = words(data, udp + 4, 2) - HEADERS - headers - padding - _CHECKSUM
    queue, number = (words(data, base + at, 4) & 0xFFFFFF for at in (4, 8))
    return Data(queue, number, size, (headers >= 0) & (size >= 0), int(_IS_READ[opcode].sum()))
