"""Bytes of each flow by TCP's sequence numbers, or by RDMA's packets: each counts once, in whatever order it was seen how often.

A segment that was seen twice is either a copy (both ends of a path were captured) or was sent again; IPv4's identification
tells them apart. The first sight of a byte is nearest to its sender, the last nearest to its receiver.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traces.errors import TraceError
from traces.wire.packets import RDMA, Segments
from traces.wire.records import Ints

_NOTHING = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Pieces:
    """Pieces of flows, by the time of their first sight: between which addresses, when first and last seen, how many bytes.

    `last_ns` is never before that of the bytes ahead in the flow, for a receiver gets bytes in order. `resent` are segments
    that were sent again, `missing` the bytes that were sent but that no packet of the capture has,
    `gaps` the numbers between those of RDMA packets that no packet with data has.
    """

    source: Ints
    target: Ints
    first_ns: Ints
    last_ns: Ints
    nbytes: Ints
    resent: int
    missing: int
    gaps: int


def pieces(segments: Segments) -> Pieces:
    """The bytes that went over the wire. Raises TraceError where there are more addresses than a job has ranks."""
    count = len(segments.addresses)
    if count >= 1 << 14:
        raise TraceError(f"{count} addresses talk", mend="capture the hosts of the job only")
    pairs = segments.source * count + segments.target
    keys = pairs << 33 | segments.ports
    order = np.lexsort((segments.at_ns, keys))
    keys = keys[order]
    bounds = np.flatnonzero(np.diff(keys)) + 1
    columns: list[tuple[Ints, ...]] = []
    resent = missing = gaps = 0
    for rows in np.split(order, bounds) if len(order) else ():
        is_rdma = bool(segments.ports[rows[0]] & RDMA)
        for part in [rows] if is_rdma else _connections(segments, rows):
            start, unseen = _by_packets(segments, part) if is_rdma else (_by_bytes(segments, part), 0)
            found, again, hole = _union(segments, part, start)
            if len(found[0]):
                pair = pairs[part[0]]
                columns.append((np.full(len(found[0]), pair // count), np.full(len(found[0]), pair % count), *found))
            resent, missing, gaps = resent + again, missing + hole, gaps + unseen
    if not columns:
        columns.append((_NOTHING,) * 5)
    joined = [np.concatenate(column) for column in zip(*columns, strict=True)]
    by_time = np.argsort(joined[2], kind="stable")
    source, target, first_ns, last_ns, nbytes = (column[by_time] for column in joined)
    return Pieces(source, target, first_ns, last_ns, nbytes, resent, missing, gaps)


def _connections(segments: Segments, rows: Ints) -> list[Ints]:
    """A flow's rows, parted where its ports were used again: at a SYN with another number than the one before."""
    opened = np.flatnonzero(segments.syn[rows])
    numbers = segments.seq[rows[opened]]
    return np.split(rows, opened[1:][np.diff(numbers) != 0]) if len(opened) > 1 else [rows]


def _by_bytes(segments: Segments, rows: Ints) -> Ints:
    """Where each segment begins in its flow."""
    return _unrolled(segments.seq[rows], 32) + segments.syn[rows]


def _by_packets(segments: Segments, rows: Ints) -> tuple[Ints, int]:
    """Where each RDMA packet begins in its flow, by the bytes of those before; and how many numbers between no packet has."""
    number = _unrolled(segments.seq[rows], 24)
    numbers, which = np.unique(number, return_inverse=True)
    sizes = np.zeros(len(numbers), np.int64)
    np.maximum.at(sizes, which, segments.size[rows])
    return (np.cumsum(sizes) - sizes)[which], int(numbers[-1] - numbers[0]) + 1 - len(numbers)


def _unrolled(seq: Ints, bits: int) -> Ints:
    """Numbers that are on a circle of 2^bits, along a line: from each to the next the shorter way."""
    half = 1 << bits - 1
    return np.concatenate([[0], np.cumsum((np.diff(seq) + half) % (2 * half) - half)])


def _union(segments: Segments, rows: Ints, start: Ints) -> tuple[tuple[Ints, Ints, Ints], int, int]:
    """First and last sight and bytes of each piece, in the flow's order; how many were sent again; bytes that are missing."""
    full = np.flatnonzero(segments.size[rows] > 0)
    rows, start = rows[full], start[full]
    if not len(rows):
        return (_NOTHING, _NOTHING, _NOTHING), 0, 0
    order = np.lexsort((segments.at_ns[rows], -segments.size[rows], start))
    rows, start = rows[order], start[order]
    at_ns, size, ident = segments.at_ns[rows], segments.size[rows], segments.ident[rows]
    covered = np.maximum.accumulate(start + size)
    before = np.concatenate([start[:1], covered[:-1]])
    hole = np.maximum(start - before, 0)
    new = covered - before  # with the hole in front, whose packets the capture missed
    begins = np.flatnonzero(new > 0)
    last_ns = np.maximum.accumulate(np.maximum.reduceat(at_ns, begins))
    first_ns = np.minimum.reduceat(at_ns, begins)
    same = (np.diff(start) == 0) & (np.diff(size) == 0)
    by_ident = np.lexsort((ident, size, start))
    start, size, ident = start[by_ident], size[by_ident], ident[by_ident]
    copies = (np.diff(start) == 0) & (np.diff(size) == 0) & (np.diff(ident) == 0)
    return (first_ns, last_ns, new[begins]), int(same.sum() - copies.sum()), int(hole.sum())
