"""Machines with several ranks, as drawn: their parts, names, links and what packets fit. No packets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from emulator.network import Network, from_dict, load, to_dict
from emulator.routes import along, path_mtus
from emulator.shape import Shape
from emulator.shaping import choose_fidelity
from emulator.topologies.star import star

TWO_BY_THREE = "profile: ethernet-25g\ntopology: {star: {ranks_per_host: 3, island: nvlink-h100}}\n"
LISTED = """
profile: ethernet-25g
hosts: {m: {ranks: [4, 0], island: pcie-3}, n: {ranks: [1, 2, 3]}}
switches: [s]
link: {delay: 9 us, loss: 1%}
links:
  m: {ends: [m, s]}
  n: {ends: [n, s], mtu: 9000}
  m-1: {up: {rate: 1 gbit}}
"""


def network(folder: Path, text: str, ranks: int | None = None) -> Network:
    path = folder / "net.yaml"
    path.write_text(text)
    return load(path, ranks=ranks)


def held(found: Network) -> dict[str, tuple[int, ...]]:
    return {host.name: host.ranks for host in found.hosts}


def test_a_machine_is_a_switch_with_a_host_for_each_rank(tmp_path: Path) -> None:
    found = network(tmp_path, TWO_BY_THREE, ranks=6)
    assert held(found) == {
        f"host{machine}-{number}": (3 * machine + number,) for machine in (0, 1) for number in (0, 1, 2)
    }
    assert {switch.name: switch.island for switch in found.switches} == {"switch": False, "host0": True, "host1": True}
    links = {link.name: link for link in found.links}
    assert (links["host1"].a, links["host1"].b) == ("host1", "switch")
    assert (links["host1"].mtu, links["host1"].a_to_b) == (1500, load("ethernet-25g").links[0].a_to_b)
    assert (links["host1-2"].a, links["host1-2"].b) == ("host1-2", "host1")
    assert (links["host1-2"].mtu, links["host1-2"].a_to_b) == (65520, load("nvlink-h100").links[0].a_to_b)


def test_cards_are_where_packets_leave_a_rank_and_a_machine(tmp_path: Path) -> None:
    found = network(tmp_path, TWO_BY_THREE, ranks=6)
    inside = {(f"host{machine}-{number}",) * 2 for machine in (0, 1) for number in (0, 1, 2)}
    assert found.cards == inside | {("host0", "host0"), ("host1", "host1")}
    cabled = from_dict({**to_dict(found), "islands": ["host0", "host1", "switch"], "switches": []})
    assert cabled.cards == found.cards | {("host0", "switch"), ("host1", "switch")}
    assert load("ethernet-1g").cards == {("host0", "host0"), ("host1", "host1")}


def test_listed_hosts_have_islands_of_their_own(tmp_path: Path) -> None:
    found = network(tmp_path, LISTED)
    assert held(found) == {"m-0": (4,), "m-1": (0,), "n": (1, 2, 3)}
    links = {link.name: link for link in found.links}
    assert (links["m-0"].a_to_b.delay, links["m-0"].a_to_b.loss) == (500, None)  # `link` is of the links outside
    assert (links["m"].a_to_b.delay, links["n"].mtu) == (9000, 9000)
    assert (links["m-1"].a_to_b.rate, links["m-1"].b_to_a.rate) == (10**9, 96 * 10**9)
    assert from_dict(json.loads(json.dumps(to_dict(found)))) == found


def test_machines_without_ranks_stay_whole(tmp_path: Path) -> None:
    text = "profile: ethernet-1g\ntopology: {star: {hosts: 3, ranks_per_host: 2, island: pcie-4}}\n"
    found = network(tmp_path, text, ranks=3)
    assert held(found) == {"host0-0": (0,), "host0-1": (1,), "host1-0": (2,), "host2": ()}
    assert from_dict(to_dict(found)) == found


@pytest.mark.parametrize(
    "topology",
    ["leaf-spine: {leaves: 2, spines: 2, ", "ring: {", "torus: {sizes: [2, 2], ", "wan: {rtt: {a: {b: 7 ms}}, "],
)
def test_every_topology_may_have_islands(tmp_path: Path, topology: str) -> None:
    text = f"profile: ethernet-10g\ntopology: {{{topology}ranks_per_host: 2, island: pcie-3}}}}\n"
    found = network(tmp_path, text, ranks=8)
    assert sorted(rank for host in found.hosts for rank in host.ranks) == list(range(8))
    assert all(len(host.ranks) == 1 for host in found.hosts)
    assert from_dict(to_dict(found)) == found


def test_what_fits_on_each_way(tmp_path: Path) -> None:
    found = network(tmp_path, TWO_BY_THREE, ranks=6)
    mtus = {link.name: link.mtu for link in found.links}
    fits = path_mtus(found.shape, mtus.__getitem__)
    assert fits["host0-1"] == {
        "host0-0": 65520, "host0-2": 65520, "host1-0": 1500, "host1-1": 1500, "host1-2": 1500,
    }  # fmt: skip


def test_of_equally_short_ways_the_narrowest_counts() -> None:
    diamond = {"a": ("a", "l"), "1": ("l", "t"), "2": ("l", "u"), "3": ("t", "r"), "4": ("u", "r"), "b": ("r", "b")}
    shape = Shape(("a", "b"), ("l", "t", "u", "r"), diamond)
    mtus = {"a": 9000, "1": 9000, "2": 4000, "3": 2000, "4": 9000, "b": 8000}
    assert path_mtus(shape, mtus.__getitem__) == {"a": {"b": 2000}, "b": {"a": 2000}}
    ways = list(along(shape, str, lambda one, other: one + other, lambda one, other: f"({one} or {other})"))
    assert ways == [("b", "a", "b(31a or 42a)"), ("a", "b", "a(13b or 24b)")]


def test_every_pair_has_one_way() -> None:
    assert len(list(along(star(5), lambda name: 1, int.__add__, max))) == 5 * 4


def test_bursts_need_full_packets_where_packets_are_framed(tmp_path: Path) -> None:
    assert choose_fidelity(network(tmp_path, TWO_BY_THREE, ranks=6)) == "burst"  # an island's links have no framing
    assert choose_fidelity(network(tmp_path, LISTED.replace(", loss: 1%", ""))) == "packet"
    assert choose_fidelity(network(tmp_path, LISTED.replace(", loss: 1%", "").replace(", mtu: 9000", ""))) == "burst"
