"""Queues that mark and drop, and what TCP makes of them, in virtual time: two senders at 10 Gbit/s meet at a port."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from emulator.network import from_dict, to_dict
from tests.guest import run_guest

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab")]

FRAME, WIRE = 1514, 1538  # bytes of a full packet with its header, and with preamble, check sequence and gap
LIMIT = 400  # packets
SIZE = 12_000_000


@dataclass(frozen=True, slots=True)
class Congestion:
    """What waits at the port (packets) and its rate (Gbit/s) in the middle of the transfers; the rest is until the end."""

    waiting: tuple[float, ...]
    gbit: float
    highest: float
    drops: int
    marks: int
    lost: int


def run(queue: object, tcp: object, events: object = ()) -> Any:
    network = {
        "topology": {"star": {"hosts": 3}},
        "link": {"rate": "10 gbit", "delay": "5 us"},
        "links": {"host2": {"down": {"queue": queue}}},
        "tcp": tcp,
        "events": events,
    }
    pairs = [["host0", "host2"], ["host1", "host2"]]
    return run_guest("congestion", json.dumps(to_dict(from_dict(network))), json.dumps(pairs), str(SIZE), "20000")


def congestion(queue: object, **tcp: str) -> Congestion:
    found = run(queue, tcp)
    # Slow start is over after a fifth. Soon after three fifths one sender may have ended; the other alone fills no queue.
    total = found["packets"][-1]
    middle = [at for at, packets in enumerate(found["packets"]) if total / 5 < packets < total * 3 / 5]
    return Congestion(
        waiting=tuple(found["backlog_bytes"][at] / FRAME for at in middle),
        gbit=rate(found, middle[0], middle[-1]),
        highest=max(found["backlog_bytes"]) / FRAME,
        drops=found["drops"][-1],
        marks=found["marks"][-1],
        lost=found["lost"],
    )


def rate(found: Any, first: int, last: int) -> float:
    """Gbit/s between two samples."""
    packets, took = (found[name][last] - found[name][first] for name in ("packets", "at"))
    return float(packets * WIRE * 8 / took)


def mean(values: tuple[float, ...]) -> float:
    return sum(values) / len(values)


@pytest.mark.parametrize("threshold", [35, 65])
def test_dctcp_holds_the_queue_near_the_threshold(threshold: int) -> None:
    """At the line's full rate and without a drop. DCTCP (SIGCOMM 2010, section 3.3): with N senders in step the queue rises
    to K + N packets and falls by half the root of 2 N (C RTT + K), here 9 to 10. Packets that the receiver's card hands over
    together (8 us: 6 packets) are acknowledged, and so sent, together: that widens it on both sides."""
    found = congestion({"limit": f"{LIMIT * FRAME} B", "ecn": f"{threshold * FRAME} B"}, congestion="dctcp")
    assert min(found.waiting) > 0
    assert max(found.waiting) < threshold + 2 + 6
    assert threshold * 0.75 < mean(found.waiting) < threshold
    assert found.gbit == pytest.approx(10, rel=0.002)
    assert found.drops == found.lost == 0
    assert found.marks > 0


def test_cubic_fills_a_queue_that_only_drops() -> None:
    found = congestion(f"{LIMIT * FRAME} B", congestion="cubic")
    assert found.highest == LIMIT - 1  # and one is being sent
    assert mean(found.waiting) > LIMIT / 2
    assert found.gbit == pytest.approx(10, rel=0.002)
    assert found.drops == found.lost > 0
    assert found.marks == 0


def test_cubic_with_ecn_is_marked_in_place_of_losing() -> None:
    found = congestion({"limit": f"{LIMIT * FRAME} B", "ecn": f"{65 * FRAME} B"}, congestion="cubic", ecn="true")
    assert found.drops == found.lost == 0
    assert found.marks > 0
    assert max(found.waiting) < 100
    assert found.gbit == pytest.approx(10, rel=0.002)


def test_red_drops_early_those_who_can_not_be_marked() -> None:
    ramp = {"min": f"{20 * FRAME} B", "max": f"{120 * FRAME} B", "probability": "2%"}
    found = congestion({"limit": f"{LIMIT * FRAME} B", "red": ramp}, congestion="cubic")
    assert 0 < found.drops == found.lost
    assert found.highest <= 120
    assert found.marks == 0


def test_a_rate_that_changes_keeps_what_waits_and_the_threshold() -> None:
    """From 10 to 2 Gbit/s: the tbf is changed in place, and what marks inside it stays."""
    slower = {"degrade": {"link": "host2", "at": "12 ms", "for": "20 ms", "rate": "2 gbit", "way": "down"}}
    found = run({"limit": f"{LIMIT * FRAME} B", "ecn": f"{65 * FRAME} B"}, {"congestion": "dctcp"}, [slower])
    for (start, end), gbit in (((7, 11.5), 10), ((20, 31), 2)):
        during = [index for index, at in enumerate(found["at"]) if start < at / 1e6 < end]
        waiting = [found["backlog_bytes"][index] / FRAME for index in during]
        assert min(waiting) > 0
        assert max(waiting) < 65 + 2 + 6
        assert rate(found, during[0], during[-1]) == pytest.approx(gbit, rel=0.002)
    assert found["drops"][-1] == found["lost"] == 0
