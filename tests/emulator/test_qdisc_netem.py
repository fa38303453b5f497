"""netem's bytes, against the layouts in the kernel's include/uapi/linux/pkt_sched.h, written out by hand."""

from __future__ import annotations

import itertools
import struct

import pytest

from emulator.errors import NetworkError
from emulator.impairments import Event, FourState, GilbertElliott
from emulator.links import Distribution
from emulator.qdisc import attributes
from emulator.qdisc.distributions import SIZE, table
from emulator.qdisc.netem import Netem, Slot
from emulator.units import Duration, Probability, Rate

P = Probability.parse
D = Duration.parse
R = Rate.parse

# One of every attribute, and the combinations that share one. The lab installs and reads back each.
EXAMPLES = {
    "nothing": Netem(),
    "delay in ns": Netem(delay=D("1ns")),
    "delay of minutes": Netem(delay=D("20 min")),
    "jitter": Netem(delay=D("10 ms"), jitter=D("2 ms"), delay_correlation=P("25%")),
    "normal": Netem(delay=D("10 ms"), jitter=D("1.5 us"), distribution="normal"),
    "pareto": Netem(delay=D("10 ms"), jitter=D("1 ms"), distribution="pareto"),
    "paretonormal": Netem(delay=D("10 ms"), jitter=D("1 ms"), distribution="paretonormal"),
    "loss": Netem(loss=Event(P("0.0046%"))),
    "correlated loss": Netem(loss=Event(P("1%"), P("30%"))),
    "all is lost": Netem(loss=Event(P("100%"))),
    "Gilbert-Elliott": Netem(loss=GilbertElliott(P("1%"), P("20%"), loss_good=P("0.01%"), loss_bad=P("75%"))),
    "four states": Netem(loss=FourState(p13=P("1%"), p31=P("50%"), p32=P("10%"), p23=P("30%"), p14=P("0.5%"))),
    "marks": Netem(loss=Event(P("5%")), ecn=True),
    "duplicate": Netem(duplicate=Event(P("1%"), P("10%"))),
    "reorder": Netem(delay=D("1 ms"), reorder=Event(P("25%"), P("50%"))),
    "reorder in gaps": Netem(delay=D("1 ms"), reorder=Event(P("25%")), gap=5),
    "corrupt": Netem(corrupt=Event(P("0.1%"), P("5%"))),
    "rate": Netem(rate=R("10 gbit"), limit=1000, packet_overhead=24),
    "widest 32-bit rate": Netem(rate=Rate(8 * (2**32 - 1))),
    "narrowest 64-bit rate": Netem(rate=Rate(8 * 2**32)),
    "64-bit rate": Netem(rate=R("800 gbit"), limit=2**31 - 1),
    "cells": Netem(rate=R("155520 kbit"), packet_overhead=-14, cell_size=48, cell_overhead=5),
    "slot": Netem(slot=Slot(min_delay=D("800 us"), max_delay=D("1 ms"), packets=32, bytes=64000)),
    "drawn slot": Netem(slot=Slot(delay=D("5 ms"), jitter=D("1 ms"), packets=8, distribution="normal")),
    "seed": Netem(loss=Event(P("1%")), seed=2**64 - 1),
    "all together": Netem(
        limit=77, delay=D("3 ms"), jitter=D("1 ms"), delay_correlation=P("5%"), distribution="normal",
        loss=GilbertElliott(P("1%"), P("20%")), ecn=True, duplicate=Event(P("1%")), reorder=Event(P("2%")), gap=3,
        corrupt=Event(P("3%")), rate=R("100 gbit"), packet_overhead=24,
        slot=Slot(min_delay=D("1 us"), max_delay=D("2 us")), seed=42,
    ),
}  # fmt: skip


def _attribute(kind: int, layout: str, *values: int) -> bytes:
    payload = struct.pack("=" + layout, *values)
    return struct.pack("=HH", 4 + len(payload), kind) + payload


def test_plain_netem_byte_by_byte() -> None:
    asked = Netem(limit=5, delay=D("1.5 us"), loss=Event(Probability(7), Probability(8)), rate=R("1 mbit"), seed=9)
    expected = (
        struct.pack("=6I", 1500 // 64, 5, 7, 0, 0, 0)  # tc_netem_qopt: latency, limit, loss, gap, duplicate, jitter
        + _attribute(1, "3I", 0, 8, 0)  # CORR: delay, loss, duplicate
        + _attribute(3, "2I", 0, 0)  # REORDER
        + _attribute(4, "2I", 0, 0)  # CORRUPT
        + _attribute(6, "IiIi", 125_000, 0, 0, 0)  # RATE: bytes/s, packet overhead, cell size, cell overhead
        + _attribute(7, "I", 0)  # ECN
        + _attribute(10, "q", 1500)  # LATENCY64
        + _attribute(11, "q", 0)  # JITTER64
        + _attribute(12, "qqiiqq", 0, 0, 0, 0, 0, 0)  # SLOT
        + _attribute(14, "Q", 9)  # PRNG_SEED
    )
    assert asked.encode() == expected


def test_rate_above_32_bits_fills_the_old_field_and_adds_the_wide_one() -> None:
    found = attributes.unpack(Netem(rate=R("100 gbit"), packet_overhead=24).encode()[24:])
    assert found[6] == struct.pack("=IiIi", 2**32 - 1, 24, 0, 0)
    assert found[8] == struct.pack("=Q", 12_500_000_000)


def test_loss_models_are_nested_and_the_bad_state_says_what_it_keeps() -> None:
    gilbert = GilbertElliott(Probability(1), Probability(2), loss_good=Probability(3), loss_bad=P("100%"))
    found = attributes.unpack(Netem(loss=gilbert).encode()[24:])
    assert found[5] == _attribute(2, "4I", 1, 2, 0, 3)  # GE: p, r, h, k1
    four = FourState(*(Probability(value) for value in (13, 31, 32, 23, 14)))
    found = attributes.unpack(Netem(loss=four).encode()[24:])
    assert found[5] == _attribute(1, "5I", 13, 31, 32, 14, 23)  # GI: p13, p31, p32, p14, p23


def test_every_field_that_a_change_would_keep_is_always_sent() -> None:
    sent = attributes.unpack(Netem().encode()[24:])
    assert {1, 3, 4, 6, 7, 10, 11, 12} <= set(sent)
    assert not any(any(sent[kind]) for kind in (1, 3, 4, 6, 7, 12))


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_decode_gives_back_what_encode_took(example: Netem) -> None:
    again = Netem.decode(example.encode())
    unreported = {"distribution"}
    for name in set(Netem.__dataclass_fields__) - unreported - {"slot"}:
        assert getattr(again, name) == getattr(example, name), name
    assert again.encode()[:24] == example.encode()[:24]


def test_slot_comes_back_without_its_table() -> None:
    slot = Slot(delay=D("5 ms"), jitter=D("1 ms"), packets=8, distribution="normal")
    assert Netem.decode(Netem(slot=slot).encode()).slot == Slot(delay=D("5 ms"), jitter=D("1 ms"), packets=8)


@pytest.mark.parametrize(
    ("name", "mean"),
    # A Pareto of shape 3, cut at c = 3/2 + 4 s with s = sqrt(3/4), has its mean lowered by 1 / (2 c^2), in units of s.
    [("uniform", 0), ("normal", 0), ("pareto", -1 / (2 * (1.5 + 4 * 0.75**0.5) ** 2) / 0.75**0.5)],
)
def test_table_rises_and_has_its_mean(name: Distribution, mean: float) -> None:
    entries = struct.unpack(f"={SIZE}h", table(name))
    assert list(entries) == sorted(entries)
    assert sum(entries) / SIZE / 8192 == pytest.approx(mean, abs=1e-4)


def test_paretonormal_is_a_quarter_normal() -> None:
    mixed, normal, pareto = (struct.unpack(f"={SIZE}h", table(name)) for name in ("paretonormal", "normal", "pareto"))
    for index in range(SIZE - 40):  # the last ones are cut
        assert mixed[index] == pytest.approx(0.25 * normal[index] + 0.75 * pareto[index], abs=1)


@pytest.mark.parametrize(
    ("name", "deviation"),
    # Uniform on [-1, 1]: 3^-1/2. Pareto of shape 3, cut at c = 3/2 + 4 s: E x^2 = 3 - 2/c and E x = 3/2 - 1/(2 c^2).
    [("uniform", 0.57735), ("normal", 1), ("pareto", 0.73717)],
)
def test_table_has_its_deviation(name: Distribution, deviation: float) -> None:
    entries = struct.unpack(f"={SIZE}h", table(name))
    mean = sum(entries) / SIZE
    assert (sum((entry - mean) ** 2 for entry in entries) / SIZE) ** 0.5 / 8192 == pytest.approx(deviation, abs=2e-4)


def test_two_thirds_of_the_normal_table_are_within_one_deviation() -> None:
    entries = struct.unpack(f"={SIZE}h", table("normal"))
    assert sum(abs(entry) <= 8192 for entry in entries) / SIZE == pytest.approx(0.6827, abs=0.001)


def test_uniform_table_reaches_from_minus_to_plus_jitter() -> None:
    entries = struct.unpack(f"={SIZE}h", table("uniform"))
    assert (entries[0], entries[-1]) == (-8190, 8190)
    assert {b - a for a, b in itertools.pairwise(entries)} == {4}


@pytest.mark.parametrize("rate", [Rate(0), Rate(1_000_001)])
def test_rate_of_no_whole_bytes_is_refused(rate: Rate) -> None:
    with pytest.raises(NetworkError, match="whole bytes a second"):
        Netem(rate=rate)
