"""What steps say: warm-up is found where there is some and nowhere else, and the interval of the mean holds the mean."""

from __future__ import annotations

import random

import numpy as np
import pytest

from replay.statistics import FEWEST, describe, warmup

STEADY = [100, 103, 99, 101, 98, 102, 100, 97, 104, 100]


@pytest.mark.parametrize("slow", [[190], [400, 180], [90], [300, 250, 150]])
def test_steps_that_are_unlike_the_rest_are_left_out(slow: list[int]) -> None:
    assert warmup([*slow, *STEADY]) == len(slow)
    assert describe([*slow, *STEADY]).mean_ns == np.mean(STEADY)


def test_few_steps_are_all_kept() -> None:
    assert warmup([900, *STEADY[: FEWEST - 2]]) == 0
    assert warmup([900, *STEADY[: FEWEST - 1]]) == 1


def test_steps_that_are_all_alike_are_all_kept() -> None:
    assert warmup([100] * 20) == 0
    assert warmup(STEADY) == 0


def test_an_odd_step_in_the_middle_is_no_warmup() -> None:
    assert warmup([*STEADY[:3], 900, *STEADY[3:]]) == 0


def test_chance_seldom_makes_a_warmup() -> None:
    """Of 20 steps that differ by chance alone the first is the slowest or fastest in one job of ten: no more lose any."""
    chance = random.Random(7)
    cut = sum(warmup([round(chance.gauss(10_000, 300)) for _ in range(20)]) > 0 for _ in range(400))
    assert cut / 400 < 0.13, cut


def test_what_is_said_of_steps() -> None:
    said = describe([100, 300, 200])
    assert (said.warmup, said.mean_ns, said.median_ns) == (0, 200, 200)
    assert said.p95_ns == pytest.approx(200 + 0.9 * 100)
    assert 100 <= said.low_ns < 200 < said.high_ns <= 300
    assert said == describe([100, 300, 200])


def test_one_step_has_no_spread() -> None:
    said = describe([7])
    assert said.mean_ns == said.median_ns == said.p95_ns == said.low_ns == said.high_ns == 7


def test_the_interval_holds_the_mean_about_as_often_as_it_says() -> None:
    """Of 30 steps. Percentile intervals of so few are a little too narrow: 93 % were seen."""
    chance, held = random.Random(3), 0
    for _ in range(300):
        said = describe([round(chance.gauss(1_000_000, 50_000)) for _ in range(30)])
        held += said.low_ns <= 1_000_000 <= said.high_ns
    assert 0.9 <= held / 300 <= 0.98, held / 300
