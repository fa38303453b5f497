"""A network in a box, as far as it can be said without a kernel: routes through its switches, and what each direction gets."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from emulator.adopting import Cable
from emulator.beds import box
from emulator.beds.shaped import shape
from emulator.errors import MachineError, NetworkError
from emulator.network import Network, from_dict
from emulator.qdisc.netem import Netem
from emulator.qdisc.tbf import U32_MAX, Tbf
from emulator.units import Rate, Size


def network(**settings: Any) -> Network:
    return from_dict({"link": {"rate": "100 mbit"}, "topology": {"star": {"hosts": 2}}, **settings})


def cables(network: Network, mtu: int = 1500) -> dict[str, Cable]:
    return {
        host.name: Cable(host.name, number, f"veth{number}", mtu, (f"10.8.0.{number}",))
        for number, host in enumerate(network.hosts)
    }


def walk(network: Network, source: str, target: str) -> list[str]:
    """The links that a packet takes by what its switches know."""
    onward, links = box.onward(network), network.shape.links
    (link,) = (name for name, ends in links.items() if source in ends)
    path, node = [link], source
    while True:
        a, b = links[path[-1]]
        node = b if node == a else a
        if node == target:
            return path
        path.append(onward[path[-1], node][source, target])


def test_each_pair_of_hosts_has_one_shortest_path_and_equal_paths_are_all_used() -> None:
    made = network(topology={"leaf-spine": {"leaves": 2, "spines": 4, "hosts_per_leaf": 4}})
    spines: Counter[str] = Counter()
    for source in made.hosts[:4]:
        for target in made.hosts[4:]:
            first, up, down, last = walk(made, source.name, target.name)
            assert (first, last) == (source.name, target.name)
            assert up.split("-")[1] == down.split("-")[1]
            spines[up] += 1
    assert len(spines) == 4
    assert len(walk(made, "host0", "host1")) == 2


def test_another_seed_chooses_other_paths_and_the_same_one_the_same() -> None:
    topology = {"leaf-spine": {"leaves": 2, "spines": 4, "hosts_per_leaf": 4}}
    one, again, other = (box.onward(network(topology=topology, seed=seed)) for seed in ("1", "1", "2"))
    assert one == again != other


def test_a_rate_waits_in_a_tbf_that_a_late_timer_does_not_slow_and_that_can_be_changed() -> None:
    made = box.plan(network(link={"rate": "100 mbit", "delay": "1 ms", "queue": "64 kB"}), "packet")
    first, second = made["host0", "up"]
    assert isinstance(first, Tbf)
    assert isinstance(second, Netem)
    assert (first.rate, second.rate, second.delay) == (100_000_000, 100_000_000, 1_000_000)
    assert first.burst == 12_500  # what passes in 1 ms
    assert first.limit + first.burst - (1514 + 24) + 1514 == 64_000  # and the packet being sent
    changed = box.plan(network(link={"rate": "10 mbit", "delay": "2 ms", "loss": "1%", "queue": "1 MB"}), "packet")
    assert [stage.kind for stage in changed["host0", "up"]] == ["tbf", "netem"]


def test_a_bucket_takes_at_most_half_of_a_queue() -> None:
    first, _ = box.plan(network(link={"rate": "10 gbit", "queue": "64 kB"}), "packet")["host0", "up"]
    assert isinstance(first, Tbf)
    assert first.burst == (64_000 - 1514) // 2


def test_without_netem_a_rate_and_a_queue_in_bytes_are_a_tbf() -> None:
    (queue,) = box.plan_without_netem(network(link={"rate": "100 mbit", "queue": "64 kB"}), "packet")["host0", "up"]
    assert queue == Tbf(rate=Rate(100_000_000), burst=Size(12_500), limit=Size(64_000), overhead=24)
    (slow,) = box.plan_without_netem(network(link={"rate": "1 mbit"}), "packet")["host1", "down"]
    assert slow == Tbf(rate=Rate(1_000_000), burst=Size(1538), limit=Size(U32_MAX), overhead=24)
    (fast,) = box.plan_without_netem(network(link={"rate": "1 gbit"}), "burst")["host1", "down"]
    assert (fast.kind, fast.rate) == ("tbf", 984_395_320)  # 1514 of 1538 bytes
    assert set(box.plan_without_netem(network(link={"rate": "unlimited"}), "burst").values()) == {()}


@pytest.mark.parametrize(
    ("link", "what"),
    [
        ({"delay": "1 ms"}, "delay"),
        ({"loss": "1%", "down": {"corrupt": "1%"}}, "loss"),
        ({"down": {"corrupt": "1%"}}, "corrupt"),
        ({"queue": "10 packets"}, "a queue of 10 packets"),
        ({"queue": {"limit": "64 kB", "ecn": "30 kB"}}, "a queue of 62.5 KiB, ECN above 30 kB"),
    ],
)
def test_what_takes_netem_is_said_where_there_is_none(link: dict[str, Any], what: str) -> None:
    with pytest.raises(MachineError, match=f"no netem, and link host0 has {what}.*; mend: "):
        box.plan_without_netem(network(link={"rate": "1 gbit", **link}), "packet")


@pytest.mark.parametrize(
    ("settings", "mtu", "why"),
    [
        ({"events": [{"down": {"link": "host0", "at": "1 s"}}]}, 1500, "events: nobody is there to play"),
        ({}, 9000, "whose MTU is 9000, and the links' is 1500"),
        (
            {"hosts": ["a", "b"], "topology": None, "links": {"x": {"ends": ["a", "b"]}, "y": {"ends": ["a", "b"]}}},
            1500,
            "host a has 2 links",
        ),
    ],
)
def test_a_network_that_cannot_be_a_shape_is_refused(
    settings: dict[str, Any], mtu: int, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEBED_STATE", str(tmp_path))
    made = {"link": {"rate": "100 mbit"}, "topology": {"star": {"hosts": 2}}, **settings}
    asked = from_dict({key: value for key, value in made.items() if value is not None})
    with pytest.raises(NetworkError, match=why):
        shape(asked, cables(asked, mtu))
    assert list(tmp_path.iterdir()) == []
