"""When a job talks and when it is silent: the gap that tells, the phases between such gaps, and the period in which they return."""

from __future__ import annotations

from collections import Counter
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
_MOST_PARTS = 64
_MOST_KINDS = 64  # that a phase is held against, so that the time for many stays in proportion

Traffic = dict[tuple[int, int], int]
"""Bytes by (source, target)."""


@dataclass(frozen=True, slots=True)
class Phase:
    """What was sent between two silences: `rows` of the pieces."""

    rows: Ints
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
    return [_phase(pieces, np.arange(first, last), ranks) for first, last in pairwise(bounds)]


def repaired(pieces: Pieces, found: Sequence[Phase], ranks: int) -> list[Phase]:
    """The phases, with those that are like no other parted by bytes, where together they are whole multiples of one that returns.

    A flow that lost its last packets stalls while others go on to what comes next, or while all are silent.
    """
    kinds = _kinds(found)
    counts = Counter(kinds.tolist())
    returning = [found[kind] for kind, count in counts.most_common(_MOST_KINDS) if count > 1]
    repaired, odd = list[Phase](), list[Phase]()
    for phase, kind in [*zip(found, kinds.tolist(), strict=True), (None, None)]:
        if phase is not None and counts[kind] == 1:
            odd.append(phase)
            continue
        repaired += _by_bytes(pieces, odd, returning, ranks) if odd else []
        repaired += [phase] if phase is not None else []
        odd = []
    return repaired


def period(found: Sequence[Phase]) -> tuple[int, int, int] | None:
    """How many phases a step has, how many go ahead of the first whole step, and how many whole steps there are; None where the
    phases don't return for more than half of the capture.

    Two phases are alike if the same pairs talk, those with under 1 % of the bytes aside, and their bytes are within 5 %.
    """
    kinds = _kinds(found)
    for length in range(1, min(len(kinds) // 2, _LONGEST_PERIOD) + 1):
        differ = np.flatnonzero(np.append(kinds[length:] != kinds[:-length], True))
        begins = np.append(0, differ[:-1] + 1)
        longest = int((differ - begins).argmax())
        steps = (int(differ[longest] - begins[longest]) + length) // length
        if steps >= 2 and steps * length * 2 > len(kinds):
            return length, int(begins[longest]), steps
    return None


def _phase(pieces: Pieces, rows: Ints, ranks: int) -> Phase:
    pairs, which = np.unique(pieces.source[rows] * ranks + pieces.target[rows], return_inverse=True)
    sums = np.bincount(which, weights=pieces.nbytes[rows]).astype(np.int64)
    return Phase(rows, {divmod(p, ranks): nbytes for p, nbytes in zip(pairs.tolist(), sums.tolist(), strict=True)})


def _by_bytes(pieces: Pieces, odd: list[Phase], returning: Sequence[Phase], ranks: int) -> list[Phase]:
    """The odd phases as so many of one of those that return, or as they are."""
    together = _phase(pieces, np.concatenate([phase.rows for phase in odd]), ranks)
    total = sum(together.traffic.values())
    for like in returning:
        times = round(total / sum(like.traffic.values()))
        if (
            0 < times <= _MOST_PARTS
            and (times > 1 or len(odd) > 1)
            and _is_multiple(together.traffic, like.traffic, times)
        ):
            number = np.zeros(len(together.rows), np.int64)
            for (source, target), nbytes in together.traffic.items():
                own = (pieces.source[together.rows] == source) & (pieces.target[together.rows] == target)
                middle = np.cumsum(pieces.nbytes[together.rows][own]) - pieces.nbytes[together.rows][own] / 2
                number[own] = np.minimum(middle * times / nbytes, times - 1)
            return [_phase(pieces, together.rows[number == part], ranks) for part in range(times)]
    return odd


def _is_multiple(traffic: Traffic, like: Traffic, times: int) -> bool:
    return traffic.keys() == like.keys() and all(
        abs(traffic[pair] - times * nbytes) <= _SHARE * nbytes for pair, nbytes in like.items()
    )


def _silences(pieces: Pieces) -> Ints:
    return pieces.first_ns[1:] - np.maximum.accumulate(pieces.last_ns)[:-1]


def _kinds(found: Sequence[Phase]) -> Ints:
    known: dict[frozenset[tuple[int, int]], list[tuple[int, int]]] = {}
    kinds: list[int] = []
    for phase in found:
        total = sum(phase.traffic.values())
        pairs = frozenset(pair for pair, nbytes in phase.traffic.items() if nbytes >= _SHARE * total)
        like = known.setdefault(pairs, [])
        kind = next((number for nbytes, number in like[-_MOST_KINDS:] if abs(nbytes - total) <= _ALIKE * nbytes), None)
        if kind is None:
            kind = len(kinds)  # of its own: no other phase has this number
            like.append((total, kind))
        kinds.append(kind)
    return np.array(kinds, np.int64)
