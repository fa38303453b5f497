"""What a link is asked to do, against what packets and TCP find on it, in virtual time."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.guest import run_guest

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab")]

# Ethernet, MTU 1500: 20 bytes of IP and 32 of TCP with timestamps; header 14; preamble, check sequence and gap 24.
PAYLOAD, FRAME, WIRE = 1448, 1514, 1538
THROUGH = 1_448_000  # bytes of 1000 full packets


def bulk(size: int, *options: str, **link: Any) -> Any:
    return run_guest("bulk", json.dumps(link), str(size), *options)


@pytest.mark.parametrize(("delay", "expected"), [("10 ms", 20_000_000), ("5 us", 10_000)])
def test_round_trip_is_twice_the_delay_to_1_us(delay: str, expected: int) -> None:
    trips = run_guest("rtt", json.dumps({"rate": "unlimited", "delay": delay}), "5")
    assert len(trips) == 5
    assert all(abs(trip - expected) <= 1000 for trip in trips), trips


def test_the_directions_of_a_link_have_their_own_delays() -> None:
    link = {"rate": "unlimited", "up": {"delay": "3 ms"}, "down": {"delay": "70 us"}}
    assert run_guest("rtt", json.dumps(link), "3") == pytest.approx([3_070_000] * 3, abs=1000)


@pytest.mark.parametrize(("fidelity", "size"), [("packet", 30_000_000), ("burst", 300_000_000)])
@pytest.mark.parametrize("gbit", [1, 10, 35, 100, 200, 400, 800])
def test_goodput_is_the_rate_less_what_headers_take(gbit: int, fidelity: str, size: int) -> None:
    found = bulk(size, fidelity, rate=f"{gbit} gbit", delay="5 us")
    (began, before), (ended, after) = found["middle"], found["end"]
    goodput = (after - before) * 8 / (ended - began)  # bit a ns
    assert goodput == pytest.approx(gbit * PAYLOAD / WIRE, rel=0.005)
    assert found["retransmits"] == found["up"]["drops"] == 0


def test_random_loss_is_as_likely_as_asked_and_tcp_sends_again_what_was_lost() -> None:
    found = bulk(100 * THROUGH, rate="10 gbit", delay="50 us", up={"loss": "1%"})
    drops = found["up"]["drops"]
    sent = found["up"]["packets"] + drops
    assert sent >= 100_000
    band = 3.291 * (sent * 0.01 * 0.99) ** 0.5  # 99.9 % of a binomial distribution
    assert abs(drops - sent * 0.01) <= band
    # ACKs come back unharmed, so each lost packet is sent again. A few more are: the receiver's card hands packets over in
    # groups, so one sent later can be acknowledged first, and the receiver says that it had those.
    assert found["retransmits"] - found["needless"] == drops
    assert found["needless"] < drops / 50
    assert found["down"]["drops"] == 0


@pytest.mark.parametrize("queue", ["40 packets", f"{40 * FRAME} B"])
def test_overflow_of_a_queue_is_loss_that_tcp_sees(queue: str) -> None:
    found = bulk(20 * THROUGH, rate="1 gbit", delay="50 us", up={"queue": queue})
    assert found["retransmits"] - found["needless"] == found["up"]["drops"] > 0


@pytest.mark.parametrize("queue", ["10 packets", f"{10 * FRAME} B"])
def test_a_queue_holds_what_its_limit_says(queue: str) -> None:
    assert flood(queue, payload=1472) == 10  # with its headers that fills the MTU


def test_a_queue_in_bytes_counts_bytes_whatever_the_packets_size() -> None:
    held = flood(f"{10 * FRAME} B", payload=100) * (100 + 28 + 14)
    # The packet being sent has the room of a full one: the limit is kept to within that.
    assert 9 * FRAME < held <= 10 * FRAME


def flood(queue: str, payload: int) -> int:
    """How many of 200 packets that are sent in no time get through: what the queue held, the one being sent included."""
    link = {"rate": "1 mbit", "up": {"queue": queue}}
    found = run_guest("flood", json.dumps(link), "200", str(payload))
    assert found["received"] + found["drops"] == 200
    return int(found["received"])
