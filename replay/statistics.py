"""What a run's steps say: which of them are warm-up, and the mean of the others with what chance may have made of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FEWEST = 6
"""Steps from which on some may be taken for warm-up."""
_RESAMPLES = 2_000
_SEED = 1
_TAILS = (2.5, 97.5)  # percent


@dataclass(frozen=True, slots=True)
class Steps:
    """Step times in ns; all but `warmup`, how many were left out ahead, are of the steps behind those.

    `low_ns` to `high_ns`: the 95 % interval of the mean. p95 lies linearly between the two steps round it.
    """

    warmup: int
    mean_ns: float
    median_ns: float
    p95_ns: float
    low_ns: float
    high_ns: float


def describe(step_ns: Sequence[int]) -> Steps:
    """The statistics of a run that ended one step at least; the same steps give the same numbers.

    The interval is that of percentiles of the means of 2,000 samples, drawn with a fixed seed from the steps and as many as
    they are (Efron, "Bootstrap methods", Annals of Statistics 7(1), 1979). Of few steps it is too narrow, of one it is a point.
    """
    first = warmup(step_ns)
    kept = np.array(step_ns[first:], np.float64)
    means = np.random.default_rng(_SEED).choice(kept, (_RESAMPLES, len(kept))).mean(axis=1)
    low, high = np.percentile(means, _TAILS)
    return Steps(
        first,
        float(kept.mean()),
        float(np.median(kept)),
        float(np.percentile(kept, 95)),
        float(low),
        float(high),
    )


def warmup(step_ns: Sequence[int]) -> int:
    """How many steps ahead are unlike the rest, as the first is, in which TCP finds its rate.

    Of the ways to cut ahead of which every step took longer, or every step less, than all behind: the one that makes the mean
    of those surest, by the least variance over the number of steps that are left (MSER; White, "An effective truncation
    heuristic for bias reduction in simulation output", Simulation 69(6), 1997). Half the steps at most, and none of fewer than
    FEWEST: chance makes some first step the odd one.
    """
    if len(step_ns) < FEWEST:
        return 0
    times = np.array(step_ns, np.float64)
    cuts = [
        cut
        for cut in range(len(times) // 2 + 1)
        if all(times[:cut] > times[cut:].max()) or all(times[:cut] < times[cut:].min())
    ]
    return min(cuts, key=lambda cut: float(times[cut:].var()) / (len(times) - cut))
