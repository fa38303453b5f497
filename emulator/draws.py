"""Random numbers of given distributions, drawn by inversion, so that one draw takes one number of the generator."""

from __future__ import annotations

import math
from random import Random
from statistics import NormalDist

_NORMAL = NormalDist()


def exponential(draws: Random, mean: float) -> int:
    """Exponentially distributed, to the nearest whole number of at least 1."""
    return max(1, round(-mean * math.log(1 - draws.random())))


def pareto(draws: Random, shape: float, mean: float) -> int:
    """Pareto distributed with a finite mean (`shape` > 1), to the nearest whole number of at least 1.

    The least value is mean (shape - 1) / shape; P(X > x) = (least / x) ** shape.
    """
    least = mean * (shape - 1) / shape
    return max(1, round(least * math.pow(1 - draws.random(), -1 / shape)))


def lognormal(draws: Random, sigma: float, mean: float) -> int:
    """Lognormally distributed, to the nearest whole number of at least 1; `sigma` is the logarithm's standard deviation.

    The median is mean exp(-sigma ** 2 / 2).
    """
    normal = _NORMAL.inv_cdf((draws.getrandbits(52) + 0.5) / 2**52)  # 0 and 1 have no inverse
    return max(1, round(mean * math.exp(sigma * normal - sigma**2 / 2)))
