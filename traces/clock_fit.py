"""From differences between two clocks to how one of them has to be set: offset, drift and the steps it was set by. Pure.

A crystal runs at one rate and is off by some tens of ppm; a time daemon may set the clock in between. So the differences are
one slope with jumps. Which of them are real is decided by the Bayesian information criterion (Schwarz, 1978) under Laplace
noise, whose likelihood is that of absolute residuals, so outliers count little.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log

import numpy as np
import numpy.typing as npt

_FLOOR_NS = 1_000.0  # profilers of before 2024 write whole us: closer than that says nothing
_MOST = 400  # differences the slope is found from: all pairs of them are looked at
_ALIKE_NS = 50_000.0  # as close as ends come on one machine, which has one clock: nothing to align
_CLEAR = 4  # how many times the noise a drift or a jump has to be
_JUMPS = 8  # places looked at for a jump, the likeliest first

_Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Clock:
    """How a clock is set right: from each piece's moment on its own clock, so many ns are added, plus the drift.

    `pieces` are (since_ns, offset_ns) in order; the drift counts from `drift_from_ns`. `seen` collectives tell so.
    `bounds_ns` are the least and the most ns that messages leave, where nothing better was recorded.
    """

    pieces: tuple[tuple[int, int], ...] = ((0, 0),)
    drift_ppm: float = 0.0
    drift_from_ns: int = 0
    seen: int = 0
    bounds_ns: tuple[int | None, int | None] | None = None

    @property
    def is_moved(self) -> bool:
        return self.drift_ppm != 0 or any(offset for _, offset in self.pieces)

    @property
    def steps_ns(self) -> tuple[int, ...]:
        """By how much the clock was set while recording: positive forward."""
        return tuple(old - new for (_, old), (_, new) in zip(self.pieces, self.pieces[1:], strict=False))

    def later(self, by_ns: int) -> Clock:
        """The clock that is set right and then moved by `by_ns`."""
        return replace(self, pieces=tuple((since, offset + by_ns) for since, offset in self.pieces))

    def right(self, moment_ns: int) -> int:
        """The moment that this clock shows as `moment_ns`."""
        at = max(bisect_right(self.pieces, moment_ns, key=lambda piece: piece[0]) - 1, 0)
        return moment_ns + self.pieces[at][1] + round((moment_ns - self.drift_from_ns) * self.drift_ppm * 1e-6)


def fit(pairs: Sequence[tuple[int, int]]) -> Clock:
    """The clock behind `pairs` of (a moment it showed, what has to be added there), in order, in ns."""
    origin = pairs[0][0]
    at = np.array([moment - origin for moment, _ in pairs], dtype=np.float64)
    # differences of clocks since 1970 and since boot don't fit a float
    least = min(difference for _, difference in pairs)
    apart = np.array([difference - least for _, difference in pairs], dtype=np.float64)

    cuts: list[int] = []
    rate, cost = _best_rate(at, apart, cuts)
    side = max(5, min(15, len(pairs) // 20))  # more than half of them must not be outliers
    while True:
        tries = []
        for cut in _jumps(apart - rate * at, cuts, side):
            more = sorted([*cuts, cut])
            new_rate, new_cost = _best_rate(at, apart, more)
            level = apart - new_rate * at
            if new_cost < cost and abs(_step(level, cuts, cut)) > _CLEAR * _noise(level, more):
                tries.append((new_cost, new_rate, more))
        if not tries:
            break
        cost, rate, cuts = min(tries)
    if not cuts and not rate and float(np.median(np.abs(apart + least))) <= _ALIKE_NS:
        return Clock(seen=len(pairs))
    starts = [0, *cuts]
    levels = [_centre(part) for part in np.split(apart - rate * at, cuts)]
    pieces = tuple(
        (0 if cut == 0 else pairs[cut][0], least + round(level)) for cut, level in zip(starts, levels, strict=True)
    )
    return Clock(pieces, rate * 1e6, origin, len(pairs))


def _best_rate(at: _Numbers, apart: _Numbers, cuts: Sequence[int]) -> tuple[float, float]:
    """The rate, 0 unless it explains enough, and the criterion's value."""
    still = _cost(at, apart, cuts, 0.0, parameters=1 + 2 * len(cuts))
    if len(at) < 10:
        return 0.0, still
    rate = _slope(at, apart, cuts)
    if abs(rate) * (at[-1] - at[0]) < _CLEAR * _noise(apart - rate * at, cuts):
        return 0.0, still
    moving = _cost(at, apart, cuts, rate, parameters=2 + 2 * len(cuts))
    return (rate, moving) if moving < still else (0.0, still)


def _cost(at: _Numbers, apart: _Numbers, cuts: Sequence[int], rate: float, *, parameters: int) -> float:
    parts = np.split(apart - rate * at, cuts)
    total = sum(float(np.abs(part - np.median(part)).sum()) for part in parts)
    return _criterion(total / len(at), len(at), parameters)


def _noise(level: _Numbers, cuts: Sequence[int]) -> float:
    return float(np.median(np.concatenate([np.abs(part - np.median(part)) for part in np.split(level, cuts)])))


def _criterion(mean_ns: float, number: int, parameters: int) -> float:
    return 2 * number * log(_FLOOR_NS + mean_ns) + parameters * log(number)


def _slope(at: _Numbers, apart: _Numbers, cuts: Sequence[int]) -> float:
    """The median slope of all pairs of differences between which there is no jump (Theil, 1950; Sen, 1968)."""
    every = -(-len(at) // _MOST)
    found = []
    for when, what in zip(np.split(at, cuts), np.split(apart, cuts), strict=True):
        when, what = when[::every], what[::every]
        first, second = np.triu_indices(len(when), 1)
        run = when[second] - when[first]
        found.append((what[second] - what[first])[run > 0] / run[run > 0])
    slopes = np.concatenate(found)
    return float(np.median(slopes)) if len(slopes) else 0.0


def _jumps(level: _Numbers, cuts: Sequence[int], side: int) -> list[int]:
    """Where the next `side` differences lie farthest from those before, none near the ends or another jump."""
    places = np.arange(side, len(level) - side + 1)
    places = places[[all(abs(place - cut) >= side for cut in cuts) for place in places]]
    if not len(places):
        return []
    medians = np.median(np.lib.stride_tricks.sliding_window_view(level, side), axis=1)
    height = np.abs(medians[places] - medians[places - side])
    return [int(place) for place in places[np.argsort(-height, kind="stable")[:_JUMPS]]]


def _step(level: _Numbers, cuts: Sequence[int], place: int) -> float:
    """How far apart what lies before and behind `place` is, each up to the next jump."""
    before = max((cut for cut in cuts if cut < place), default=0)
    behind = min((cut for cut in cuts if cut > place), default=len(level))
    return float(np.median(level[place:behind]) - np.median(level[before:place]))


def _centre(values: _Numbers) -> float:
    """The mean of the shortest half: where most lie, though late ends may all be on one side (Rousseeuw's shorth, 1984)."""
    ordered = np.sort(values)
    half = len(ordered) // 2 + 1
    begin = int(np.argmin(ordered[half - 1 :] - ordered[: len(ordered) - half + 1]))
    return float(ordered[begin : begin + half].mean())
