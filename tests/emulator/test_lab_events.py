"""Events on a link that carries a transfer, in virtual time."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.guest import run_guest

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab")]

MS = 10**6
DELAY = 5_000
LINK = {"rate": "10 gbit", "delay": "5 us"}
WIRE = 1538  # bytes of a full packet: 1500, Ethernet's header 14, preamble, check sequence and gap 24


def transfer(events: list[object], size: int, samples: list[int], **link: Any) -> Any:
    """The samples are when packets leave the link, so they are taken one delay later than asked."""
    times = [at + DELAY for at in samples]
    return run_guest("events", *map(json.dumps, ({**LINK, **link}, events, size, times)))


def packets_in(gbit: int, ns: int) -> float:
    return ns * gbit / 8 / WIRE


def test_a_link_degraded_for_half_a_second_moves_exactly_the_bytes_that_it_should() -> None:
    """To within a packet at either end, and one that was being sent at the old rate: ten of those at the new one."""
    degraded = {"degrade": {"at": "1 s", "for": "500 ms", "rate": "1 gbit", "way": "up"}}
    found = transfer([degraded], 1_300_000_000, [900 * MS, 1000 * MS, 1500 * MS, 1550 * MS])
    before, start, end, after = found["samples"]
    assert start - before == pytest.approx(packets_in(10, 100 * MS), abs=2)
    assert end - start == pytest.approx(packets_in(1, 500 * MS), abs=2)
    assert after - end == pytest.approx(packets_in(10, 50 * MS), abs=2 + 10)
    assert found["retransmits"] == found["up"]["drops"] == 0


def test_changes_lose_and_reorder_nothing_that_is_queued() -> None:
    steps = [
        {"at": f"{at} ms", "rate": f"{1 + at % 7} gbit", "delay": f"{5 + at * 13 % 40} us"} for at in range(100, 300)
    ]
    found = transfer([{"course": {"steps": steps}}], 100_000_000, [250 * MS])
    assert 250 * MS < found["end"] < 400 * MS
    assert found["retransmits"] == found["up"]["drops"] == 0


def test_nothing_passes_while_a_link_flaps_down_and_the_transfer_ends() -> None:
    flap = {"flap": {"at": "150 ms", "times": 2, "down": "10 ms", "up": "300 ms", "way": "up"}}
    found = transfer([flap], 1_000_000_000, [140 * MS, 151 * MS, 159 * MS, 461 * MS, 469 * MS])
    before, first, still, second, then = found["samples"]
    assert before < first == still < second == then
    assert found["up"]["drops"] > 0


def test_the_same_events_give_the_same_packets() -> None:
    events = [
        {"loss_burst": {"at": "130 ms", "for": "5 ms", "loss": "2%"}},
        {"churn": {"at": "150 ms", "for": "1 s", "mean_up": "100 ms", "mean_down": "1 ms"}},
    ]
    once, again = (transfer(events, 100_000_000, [140 * MS, 200 * MS]) for _ in range(2))
    assert once == again
    assert once["up"]["drops"] > 0
