"""A dilated network: what of it is slower, what stays, and what can't be."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from itertools import islice
from pathlib import Path

import pytest

from emulator.dilation import dilate
from emulator.errors import NetworkError
from emulator.events import timeline
from emulator.network import Network, load
from emulator.traffic_schedule import pieces
from emulator.transport import Costs
from emulator.units import Duration, Rate

NETWORK = """profile: ethernet-10g
topology: {star: {hosts: 3}}
costs: {message: 600 ns, copy: 40 gbit, stream: 20 gbit}
tcp: {pacing: 10 gbit}
link: {delay: 3 us, jitter: 1 us, queue: 512 KiB, loss: 0.1%}
links: {host2: {up: {rate: unlimited, queue: unlimited}}}
events:
  - degrade: {link: host0, way: up, at: 1 ms, for: 500 us, rate: 1 gbit, delay: 7 us}
  - down: {link: host1, way: down, at: 2 ms}
traffic:
  - constant: {from: host0, to: host1, rate: 1 gbit, at: 1 ms, for: 1 ms}
  - on_off: {from: host1, to: host2, rate: 2 gbit, on: 20 us, off: 30 us, times: exponential}
  - heavy_tailed: {from: host1, to: host2, rate: 2 gbit, sizes: {pareto: {shape: 1.2, mean: 10 kB}}}
  - incast: {from: [host0, host1], to: host2, every: 1 ms, size: 10 kB}
"""


def network(folder: Path, text: str = NETWORK) -> Network:
    path = folder / "net.yaml"
    path.write_text(text)
    return load(path)


def test_rates_are_divided_times_multiplied_and_bytes_stay(tmp_path: Path) -> None:
    plain = network(tmp_path)
    slow = dilate(plain, Fraction(10))
    before, after = plain.links[0].a_to_b, slow.links[0].a_to_b
    assert after == replace(before, rate=Rate(10**9), delay=Duration(30_000), jitter=Duration(10_000))
    assert slow.links[2].a_to_b.rate is None
    assert slow.costs == Costs(Duration(6000), Rate(4 * 10**9), None, Rate(2 * 10**9))
    assert slow.tcp == replace(plain.tcp, pacing=Rate(10**9))
    assert (
        replace(slow, tcp=plain.tcp, costs=plain.costs, links=plain.links, events=plain.events, traffic=plain.traffic)
        == plain
    )


def test_events_come_later_and_last_longer(tmp_path: Path) -> None:
    plain = network(tmp_path)
    slow = dilate(plain, Fraction(10))
    for before, after in zip(timeline(plain.links, plain.events), timeline(slow.links, slow.events), strict=True):
        assert (after.at, after.link, after.direction.loss) == (10 * before.at, before.link, before.direction.loss)
        assert after.direction.rate is not None
        assert before.direction.rate is not None
        assert 10 * after.direction.rate == before.direction.rate
        assert after.direction.delay == 10 * before.direction.delay


@pytest.mark.parametrize("host", ["host0", "host1"])
def test_traffic_is_the_same_pieces_later(host: str, tmp_path: Path) -> None:
    """To the nanosecond that each time is rounded to."""
    plain = network(tmp_path)
    slow = dilate(plain, Fraction(10))
    pairs = zip(
        *(sorted(islice(pieces(net, host), 300), key=lambda piece: piece[1:]) for net in (plain, slow)), strict=True
    )
    for before, after in pairs:
        assert after[1:] == before[1:]
        assert after.at == pytest.approx(10 * before.at, abs=10 * 300)


def test_a_dilation_of_one_changes_nothing(tmp_path: Path) -> None:
    plain = network(tmp_path)
    assert dilate(plain, Fraction(1)) == plain


def test_what_does_not_divide_is_rounded(tmp_path: Path) -> None:
    slow = dilate(network(tmp_path), Fraction("2.7")).links[0].a_to_b
    assert (slow.rate, slow.delay) == (Rate(round(10**10 / 2.7 / 8) * 8), Duration(8100))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("link: {rate: 80 bit}\n", "can't be dilated by 1000: rate 80 bit would be less than 8 bit a second"),
        ("link: {rate: 1 gbit, delay: 1 s, jitter: 10 ms}\n", "jitter 10 s is more than the kernel takes"),
        ("link: {rate: 1 gbit}\nevents: [{degrade: {rate: 80 kbit}}]\n", "rate 80 bit is less than 2.4 kbit"),
        ("link: {rate: 1 gbit, delay: 200000 min}\n", "is no duration"),
    ],
)
def test_what_no_network_can_have_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(NetworkError, match=re.escape(message)):
        dilate(network(tmp_path, text), Fraction(1000))
