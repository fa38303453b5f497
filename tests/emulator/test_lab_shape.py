"""Containers that are up, shaped from outside in virtual time: what they then measure between each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from tests.guest import run_guest

PAYLOAD = 1448 / 1538  # of full packets on the wire: timestamps in TCP's header, and Ethernet's overhead
LOST = 0.01
BULK = 4_000_000
Progress = Sequence[Sequence[int]]

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab")]


def goodput(progress: Progress, begin: int, end: int) -> float:
    """Mbit/s between two times."""
    inside = [(at, have) for at, have in progress if begin <= at <= end]
    (first, had), (last, have) = inside[0], inside[-1]
    return (have - had) * 8e3 / (last - first)


def counters(said: Mapping[str, Any], source: str, target: str) -> dict[str, Any]:
    (shown,) = said["shapes"]
    (found,) = (line for line in shown["directions"] if (line["source"], line["target"]) == (source, target))
    return dict(found)


def test_containers_measure_what_their_shape_asks(needs: Callable[..., None]) -> None:
    needs("dockerd", "docker", "busybox", "tc", "ip")
    said = run_guest("shape")

    # A star: one packet of 43 bytes (79 with what surrounds it, at MTU 1500's share) on two links each way.
    assert said["star"]["hosts"] == {"host0": "left", "host1": "right", "host2": "third"}
    on_wires = 4 * 43 * 8 / (100e6 * 1514 / 1538) * 1e9
    for pair, delays in {"left right": 6_000_000, "right third": 8_000_000}.items():
        assert said["trips"][pair] == pytest.approx([delays + on_wires] * 3, abs=10)
    # Asked inside the container: packets of 98 bytes; in ms, which ping cuts to whole us.
    assert said["pings"] == pytest.approx([6 + 1e3 * 4 * 98 * 8 / (100e6 * 1514 / 1538)] * 3, abs=0.001)
    assert said["pings of others"] == [0.0] * 6

    steady = said["steady"]
    begin, end = steady["progress"][0][0], steady["progress"][-1][0]
    assert goodput(steady["progress"], (begin + end) // 2, end) == pytest.approx(100 * PAYLOAD, rel=0.001)

    # 100 to 10 Mbit/s in the middle of a transfer: at once, and nothing that was queued is lost.
    changed = said["changed"]
    assert changed["done"]["in_place"]
    begin, end = changed["progress"][0][0], changed["progress"][-1][0]
    assert goodput(changed["progress"], begin + (changed["began"] - begin) // 2, changed["began"]) == pytest.approx(
        100 * PAYLOAD, rel=0.01
    )
    assert goodput(changed["progress"], changed["ended"] + 20_000_000, end) == pytest.approx(10 * PAYLOAD, rel=0.001)
    assert (steady["again"], changed["again"]) == (0, 0)
    assert said["show"]["right"]
    line = counters(said["show"], "host0", "switch")
    assert line["asked"] == "rate 10 mbit, delay 1 ms"
    assert "netem delay 1 ms" in line["kernel"]
    assert line["drops"] == 0
    assert line["bytes"] > 2 * BULK

    # Loss, added in place: packets are lost one by one, not super-packets.
    assert said["lossy"]["in_place"]
    was, now = (counters(said["lost"][when], "host0", "switch") for when in ("before", "after"))
    sent, lost = now["packets"] + now["drops"] - was["packets"] - was["drops"], now["drops"] - was["drops"]
    assert sent >= BULK / 1448
    assert lost == pytest.approx(LOST * sent, abs=3.5 * (sent * LOST * (1 - LOST)) ** 0.5)
    assert lost <= said["lost"]["transfer"]["again"]

    # A dumbbell: two flows from one side share what is between, which properties from end to end couldn't say.
    arrivals = said["shared"]
    assert not said["dumbbell"]["in_place"]
    total, progress = 0, []
    for at, size in arrivals:
        total += size
        progress.append((at, total))
    begin, end = progress[0][0], progress[-1][0]
    assert total == 2 * BULK
    assert goodput(progress, (begin + end) // 2, end) == pytest.approx(50 * PAYLOAD, rel=0.01)

    # A WAN's matrix, by destination.
    on_wires = 6 * 43 * 8 / (1e9 * 1514 / 1538) * 1e9
    for pair, delays in {"left right": 10_000_000, "left third": 30_000_000, "third right": 50_000_000}.items():
        assert said["wan trips"][pair] == pytest.approx([delays + on_wires] * 3, abs=10)

    assert said["left over"] == []
    assert said["pings after"] == [0.0] * 3
