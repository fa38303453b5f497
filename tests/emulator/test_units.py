from __future__ import annotations

import json
import random
from fractions import Fraction

import pytest

from emulator.errors import NetworkError
from emulator.units import Duration, Probability, Rate, Size


@pytest.mark.parametrize(
    ("quantity", "text", "value"),
    [
        (Rate, "25 gbit", 25 * 10**9),
        (Rate, "2.5Gbit", 2_500_000_000),
        (Rate, "0.8 tbit", 800 * 10**9),
        (Rate, "7 bit", 7),
        (Duration, "1.5us", 1500),
        (Duration, "0.001 ms", 1000),
        (Duration, "2 min", 120 * 10**9),
        (Duration, "1e3 ns", 1000),
        (Duration, "0", 0),
        (Size, "64 KiB", 65536),
        (Size, "64 kb", 64000),
        (Size, "0.5 MiB", 524288),
        # A float would make 4611686018427387904 of it.
        (Size, "4611686018427387903 B", 2**62 - 1),
        (Probability, "100%", 2**32 - 1),
        (Probability, "0", 0),
        (Probability, "50 %", 2**31),
    ],
)
def test_parse(quantity: type[Rate | Duration | Size | Probability], text: str, value: int) -> None:
    assert quantity.parse(text) == value
    assert type(quantity.parse(text)) is quantity


@pytest.mark.parametrize(
    ("quantity", "text", "message"),
    [
        (Duration, "0.3ns", "finer than 1 ns"),
        (Rate, "0.0001 kbit", "finer than 1 bit"),
        (Size, "0.1 KiB", "finer than 1 B"),
        (Rate, "10", "one of bit, kbit, mbit, gbit, tbit"),
        (Rate, "10 Gbps", "one of bit, kbit, mbit, gbit, tbit"),
        (Duration, "5 sec", "one of ns, us, ms, s, min"),
        (Duration, "ms", "one of ns, us, ms, s, min"),
        (Duration, "nan s", "one of ns, us, ms, s, min"),
        (Duration, "-5us", "negative"),
        (Duration, "1.0000000000000000000000000001 s", "finer than 1 ns"),
        (Rate, "1e99 gbit", "expected 0 to"),
        (Size, "1" * 5000, "one of B, kB, KiB, MB, MiB, GB, GiB"),
        (Size, "1e999 B", "one of B, kB, KiB, MB, MiB, GB, GiB"),
        (Probability, "0.1", "percentage"),
        (Probability, "100.1%", "more than 100%"),
        (Probability, "-1%", "negative"),
        (Probability, "1e-9%", "too fine"),
        (Probability, "99.9999999999%", "too fine"),
    ],
)
def test_parse_refuses(quantity: type[Rate | Duration | Size | Probability], text: str, message: str) -> None:
    with pytest.raises(NetworkError, match=message):
        quantity.parse(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Rate(10**10), "10 gbit"),
        (Rate(2_500_000_000), "2.5 gbit"),
        (Rate(0), "0 bit"),
        (Rate(1_234_567), "1234.567 kbit"),
        (Duration(1500), "1.5 us"),
        (Duration(18_175_000), "18.175 ms"),
        (Duration(90 * 10**9), "1.5 min"),
        (Size(65536), "64 KiB"),
        (Size(9216), "9 KiB"),
        (Size(10**6), "1 MB"),
        (Probability.parse("0.0046%"), "0.0046%"),
        (Probability.parse("100%"), "100%"),
    ],
)
def test_str_is_exact_in_the_largest_unit(value: Rate, text: str) -> None:
    assert str(value) == f"{value}" == text


def test_str_parses_back() -> None:
    draw = random.Random(1)
    for _ in range(2000):
        for quantity in (Rate, Duration, Size):
            value = quantity(draw.randrange(10 ** draw.randrange(1, 19)))
            assert quantity.parse(str(value)) == value
        probability = Probability(draw.randrange(1, Probability.ALWAYS))
        assert Probability.parse(str(probability)) == probability


@pytest.mark.parametrize("quantity", [Rate, Duration, Size, Probability])
def test_negative_is_refused(quantity: type[Rate | Duration | Size | Probability]) -> None:
    with pytest.raises(NetworkError):
        quantity(-1)


def test_probability_rounds_to_the_nearest_step() -> None:
    assert Probability.nearest(Fraction("0.5") / Probability.ALWAYS) == 0
    assert Probability.nearest(Fraction("0.6") / Probability.ALWAYS) == 1
    with pytest.raises(NetworkError):
        Probability(2**32)


def test_a_quantity_is_its_integer() -> None:
    assert json.dumps({"rate": Rate(5)}) == '{"rate": 5}'
    assert type(Duration(1) + Duration(2)) is int
    assert repr(Size(3)) == "Size(3)"
