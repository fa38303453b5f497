"""What random loss makes of TCP's congestion controls, in virtual time, against what is known of them."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from tests.guest import run_guest

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab")]

SEGMENT = 1448  # bytes of payload at MTU 1500 with timestamps


def bulk(congestion: str, size: int, rate: str, rtt_ms: int, loss: str) -> Any:
    link = {"rate": rate, "delay": f"{rtt_ms / 2} ms", "up": {"loss": loss}}
    return run_guest("bulk", json.dumps(link), str(size), "packet", "1", congestion)


def goodput(found: Any) -> float:
    """Bytes a second, after the first quarter."""
    (began, before), (ended, after) = found["middle"], found["end"]
    return float((after - before) / (ended - began) * 1e9)


@pytest.mark.parametrize(("loss", "rtt_ms", "size"), [(0.004, 20, 120_000_000), (0.01, 40, 60_000_000)])
def test_reno_has_the_window_that_loss_leaves_it(loss: float, rtt_ms: int, size: int) -> None:
    """Mathis et al. (CCR 1997): (3 / 2 p)^(1/2) segments a round trip. That is without delayed ACKs (with them it would be 0.71
    of it), for Linux opens its window by the segments that an ACK acknowledges, however many they are."""
    found = bulk("reno", size, "1 gbit", rtt_ms, f"{loss * 100}%")
    window = goodput(found) * rtt_ms / 1000 / SEGMENT
    assert window == pytest.approx((1.5 / loss) ** 0.5, rel=0.08)
    assert found["retransmits"] - found["needless"] == found["up"]["drops"] > 300


def test_cubic_has_the_window_of_its_response_function() -> None:
    """RFC 9438, 5.1: 1.054 (RTT / p)^(3/4) segments where losses are evenly spaced. At random (Poojary and Sharma, "An
    asymptotic approximation for TCP CUBIC", 2019) it is more, as a model of section 4 of the RFC says here. Far more than
    Reno's, since the round trip is long."""
    loss, rtt = 0.001, 0.4
    found = bulk("cubic", 300_000_000, "1 gbit", 400, "0.1%")
    window = goodput(found) * rtt / SEGMENT
    losses = int(found["up"]["drops"])
    runs = [cubic(loss, rtt, losses, seed) for seed in range(100)]
    mean = sum(runs) / len(runs)
    deviation = (sum((run - mean) ** 2 for run in runs) / len(runs)) ** 0.5
    assert abs(window - mean) < 3 * deviation < 0.2 * mean
    assert window > 2 * (1.5 / loss) ** 0.5


def cubic(loss: float, rtt: float, losses: int, seed: int) -> float:
    """The mean window of W(t) = C (t - K)^3 + Wmax, C 0.4, beta 0.7, with a loss at random."""
    random = Random(seed)
    highest, seconds, segments = (rtt / loss) ** 0.75, 0.0, 0.0
    step = rtt / 8
    for _ in range(losses):
        left, since = random.expovariate(loss), 0.0
        back_at = (0.3 * highest / 0.4) ** (1 / 3)
        window = 0.7 * highest
        while left > 0:
            window = 0.4 * (since - back_at) ** 3 + highest
            left -= window * step / rtt
            segments += window * step / rtt
            since += step
        highest = window
        seconds += since
    return segments * rtt / seconds


def test_bbr_does_not_mind_loss_that_reno_does() -> None:
    without, with_loss = (goodput(bulk("bbr", 20_000_000, "100 mbit", 20, loss)) for loss in ("0%", "0.4%"))
    assert without * 8 == pytest.approx(1e8 * SEGMENT / 1538, rel=0.02)
    assert with_loss == pytest.approx(without, rel=0.02)
    reno = bulk("reno", 10_000_000, "100 mbit", 20, "0.4%")
    assert goodput(reno) < without / 5
