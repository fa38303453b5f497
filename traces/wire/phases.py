"""When a job talks and when it is silent: the gap that tells, the phases between such gaps, and the period in which they return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from traces.wire.flows import Pieces
from traces.wire.records import Ints

SILENCE_NS = 10_000
"""Silences below are not looked at: hosts take packets that come within 8 us or so as one (interrupt moderation)."""
_CLEAR = 4
"""How many times the shortest silence that counts must be the longest that doesn't."""
_LONGEST_PERIOD = 256
_ALIKE = 0.05
_SHARE = 0.01

Traffic = dict[tuple[int, int], int]
"""Bytes by (source, target)."""


@dataclass(frozen=True, slots=True)
class Phase:
    """What was sent between two silences: rows `first` up to but not including `last` of the pieces."""

    first: int
    last: int
    traffic: Traffic


def silence_ns(pieces: Pieces) -> int | None:
    """The silence of all ranks that parts phases: where sorted silences jump most; None where they don't jump clearly."""
    silences = np.unique(_silences(pieces))
    silences = np.concatenate([[SILENCE_NS], silences[silences > SILENCE_NS]])
    ratios = silences[1:] / silences[:-1]
    if not len(ratios) or ratios.max() < _CLEAR:
        return None
    most = int(ratios.argmax())
    return int((silences[most] * silences[most + 1].astype(float)) ** 0.5)


def phases(pieces: Pieces, gap_ns: int | None, ranks: int) -> list[Phase]:
    """The pieces in phases that a silence of more than `gap_ns` parts."""
    cuts = np.flatnonzero(_silences(pieces) > gap_ns) + 1 if gap_ns is not None else np.zeros(0, np.int64)
    bounds = [0, *cuts.tolist(), len(pieces.nbytes)]
    found = []
    for first, last in pairwise(bounds):
        pairs, which = np.unique(pieces.source[first:last] * ranks + pieces.target[first:last], return_inverse=True)
        sums = np.bincount(which, weights=pieces.nbytes[first:last]).astype(np.int64)
        traffic = {divmod(pair, ranks): nbytes for pair, nbytes in zip(pairs.tolist(), sums.tolist(), strict=True)}
        found.append(Phase(first, last, traffic))
    return found


def period(found: Sequence[Phase]) -> tuple[int, int] | None:
    """How many phases a step has, and how many go ahead of the first whole step; None where they don't return.

    Two phases are alike if the same pairs talk, those with under 1 % of the bytes aside, and their bytes are within 5 %.
    """
    kinds = _kinds(found)
    for length in range(1, min(len(kinds) // 2, _LONGEST_PERIOD) + 1):
        differ = np.flatnonzero(kinds[length:] != kinds[:-length])
        ahead = int(differ[-1]) + 1 if len(differ) else 0
        steps = (len(kinds) - ahead) // length
        if steps >= 2 and steps * length * 2 > len(kinds):
            return length, len(kinds) - steps * length
    return None


def _silences(pieces: Pieces) -> Ints:
    return pieces.first_ns[1:] - np.maximum.accumulate(pieces.last_ns)[:-1]


def _kinds(found: Sequence[Phase]) -> Ints:
    known: dict[frozenset[tuple[int, int]], list[tuple[int, int]]] = {}
    kinds: list[int] = []
    for phase in found:
        total = sum(phase.traffic.values())
        pairs = frozenset(pair for pair, nbytes in phase.traffic.items() if nbytes >= _SHARE * total)
        like = known.setdefault(pairs, [])
        kind = next((number for nbytes, number in like if abs(nbytes - total) <= _ALIKE * nbytes), None)
        if kind is None:
            kind = len(kinds)  # of its own: no other phase has this number
            like.append((total, kind))
        kinds.append(kind)
    return np.array(kinds, np.int64)
