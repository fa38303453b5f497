"""The tables from which netem draws delays: each entry is a deviation in 1/8192 of the jitter (NETEM_DIST_SCALE).

Entry i is the distribution's quantile at (i + 1/2) / n, so that a uniform draw of i draws from the distribution.
"uniform" reaches from -1 to 1; the others have mean 0 and standard deviation 1, but entries are 16 bits wide, which
cuts tails at 4: that leaves "pareto" a mean of -0.02 and a deviation of 0.74, and "paretonormal" -0.02 and 0.78.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import cache
from statistics import NormalDist

from emulator.links import Distribution

SIZE = 4096  # as the tables of iproute2; NETEM_DIST_MAX is 16384
SCALE = 8192


def _uniform(quantile: float) -> float:
    return 2 * quantile - 1


def _normal(quantile: float) -> float:
    return NormalDist().inv_cdf(quantile)


def _pareto(quantile: float) -> float:
    """Shape 3 (as iproute2's pareto.c), whose mean is 3/2 and variance 3/4."""
    return float(((1 - quantile) ** (-1 / 3) - 1.5) / 0.75**0.5)


def _pareto_normal(quantile: float) -> float:
    return 0.25 * _normal(quantile) + 0.75 * _pareto(quantile)


_QUANTILES: Mapping[Distribution, Callable[[float], float]] = {
    "uniform": _uniform,
    "normal": _normal,
    "pareto": _pareto,
    "paretonormal": _pareto_normal,
}


@cache
def table(name: Distribution) -> bytes:
    """`SIZE` native int16, the payload of TCA_NETEM_DELAY_DIST and TCA_NETEM_SLOT_DIST."""
    quantile = _QUANTILES[name]
    entries = (round(SCALE * quantile((index + 0.5) / SIZE)) for index in range(SIZE))
    return struct.pack(f"={SIZE}h", *(max(-(2**15), min(2**15 - 1, entry)) for entry in entries))
