"""Networks whose links have different MTUs, in virtual time: packets are as large as their way allows, and none is dropped."""

from __future__ import annotations

import json

import pytest

from emulator.network import from_dict, to_dict
from tests.guest import run_guest

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab")]

SIZE = 50_000_000
MTUS = {"a": 1500, "b": 9000, "c": 9000}


@pytest.mark.parametrize(("source", "target", "mtu"), [("a", "b", 1500), ("b", "a", 1500), ("b", "c", 9000)])
def test_a_transfer_takes_what_packets_of_its_way_need(source: str, target: str, mtu: int) -> None:
    links = {name: {"rate": "10 gbit", "delay": "2 us", "mtu": of, "ends": [name, "s"]} for name, of in MTUS.items()}
    network = from_dict({"hosts": list(MTUS), "switches": ["s"], "links": links})
    found = run_guest("fabric", json.dumps(to_dict(network)), json.dumps([[source, target]]), str(SIZE))
    assert found["took_ns"] == pytest.approx(SIZE * 8 / 10 * (mtu + 38) / (mtu - 52), rel=0.002)
    (packets,) = (count for start, end, count in found["packets"] if (start, end) == ("s", target))
    assert packets == pytest.approx(SIZE / (mtu - 52), rel=0.002)
