"""Topologies as drawn: how many of what, which routes, and what the links are set to. No packets."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from emulator.errors import NetworkError
from emulator.network import Network, from_dict, load, to_dict
from emulator.routes import longest, routes
from emulator.shape import Shape, unreachable
from emulator.topologies.dumbbell import dumbbell
from emulator.topologies.fat_tree import fat_tree
from emulator.topologies.leaf_spine import leaf_spine
from emulator.topologies.registry import TOPOLOGIES
from emulator.topologies.star import star
from emulator.topologies.torus import torus
from emulator.topologies.wan import from_csv, wan

SIZES = [(5,), (2, 3), (4, 4), (3, 4, 2)]


def network(folder: Path, topology: str, rest: str = "", ranks: int | None = None) -> Network:
    path = folder / "net.yaml"
    path.write_text(f"profile: ethernet-10g\ntopology: {topology}\n{rest}")
    return load(path, ranks=ranks)


def paths(shape: Shape, source: str, target: str) -> Iterator[tuple[str, ...]]:
    """The switches of every route from a host to another."""
    hops = routes(shape)[target]
    first = next(b for a, b in shape.links.values() if a == source)
    todo = [(first,)]
    while todo:
        path = todo.pop()
        for link in hops[path[-1]]:
            (after,) = set(shape.links[link]) - {path[-1]}
            if after == target:
                yield path
            else:
                todo.append((*path, after))


@pytest.mark.parametrize("sizes", SIZES)
def test_torus_routes_are_minimal(sizes: tuple[int, ...]) -> None:
    shape = torus(sizes)
    places = list(product(*(range(size) for size in sizes)))
    for host, place in zip(shape.hosts, places, strict=True):
        around = [min(at, size - at) for at, size in zip(place, sizes, strict=True)]
        if host != "host0":
            found = list(paths(shape, "host0", host))
            assert found
            assert {len(path) - 1 for path in found} == {sum(around)}


@pytest.mark.parametrize(("sizes", "links"), list(zip(SIZES, [5, 9, 32, 24 + 24 + 12], strict=True)))
def test_torus_links(sizes: tuple[int, ...], links: int) -> None:
    shape = torus(sizes)
    assert len(shape.links) - len(shape.hosts) == links
    assert len({frozenset(ends) for ends in shape.links.values()}) == len(shape.links)


def test_fat_tree_of_4_ports() -> None:
    shape = fat_tree(4)
    assert (len(shape.hosts), len(shape.switches), len(shape.links)) == (16, 20, 48)
    for switch in shape.switches:
        assert sum(switch in ends for ends in shape.links.values()) == 4
    # On one edge switch, in one pod, in two pods: Al-Fares et al. have 1, k/2 and (k/2)^2 paths.
    for target, length, equal in (("host1", 1, 1), ("host2", 3, 2), ("host4", 5, 4), ("host15", 5, 4)):
        found = list(paths(shape, "host0", target))
        assert [len(path) for path in found] == [length] * equal


@pytest.mark.parametrize("k", [2, 6, 8])
def test_fat_tree_of_k_ports(k: int) -> None:
    shape = fat_tree(k)
    assert (len(shape.hosts), len(shape.switches)) == (k**3 // 4, 5 * k * k // 4)


def test_leaf_spine_has_a_path_through_each_spine() -> None:
    shape = leaf_spine(leaves=3, spines=4, hosts_per_leaf=2)
    assert (len(shape.hosts), len(shape.switches), len(shape.links)) == (6, 7, 6 + 12)
    assert {path[1] for path in paths(shape, "host0", "host5")} == {f"spine{index}" for index in range(4)}
    assert list(paths(shape, "host0", "host1")) == [("leaf0",)]


def test_hosts_do_not_forward() -> None:
    links = {"a-s": ("a", "s"), "h-s": ("h", "s"), "h-t": ("h", "t"), "b-t": ("b", "t")}
    assert routes(Shape(("a", "h", "b"), ("s", "t"), links))["b"] == {"t": ("b-t",)}


def test_the_longest_route() -> None:
    assert longest(star(5), lambda link: 7) == 14
    assert longest(torus((5,)), lambda link: 0 if link.startswith("host") else 10) == 20
    assert longest(Shape(("a", "b"), (), {"x": ("a", "b")}), lambda link: 3) == 3
    assert longest(Shape(("a",), ("s",), {"x": ("a", "s")}), lambda link: 3) == 0


@pytest.mark.parametrize(
    "shape",
    [star(3), dumbbell(2, 3), leaf_spine(2, 2, 2), fat_tree(4), torus((4,)), torus((2, 2)), wan(("a", "b", "c"), 2)],
)
def test_every_host_has_one_link_and_reaches_all(shape: Shape) -> None:
    assert unreachable(shape) is None
    for host in shape.hosts:
        assert sum(host in ends for ends in shape.links.values()) == 1


@pytest.mark.parametrize(
    ("topology", "ranks", "hosts"),
    [
        ("{dumbbell: {}}", 5, 5),
        ("{dumbbell: {left: 1, right: 3}}", None, 4),
        ("{leaf-spine: {leaves: 2, spines: 2}}", 8, 8),
        ("{leaf-spine: {leaves: 2, spines: 2, ranks_per_host: 4}}", 8, 2),
        ("{fat-tree: {k: 4}}", 8, 16),
        ("{ring: {}}", 6, 6),
        ("{torus: {sizes: [2, 3]}}", 12, 6),
        ("{wan: {rtt: aws}}", 20, 20),
        ("{wan: {rtt: aws, sites: [us-east-1, sa-east-1], hosts_per_site: 3}}", None, 6),
    ],
)
def test_hosts_are_as_many_as_the_ranks_need_where_the_file_does_not_say(
    tmp_path: Path, topology: str, ranks: int | None, hosts: int
) -> None:
    found = network(tmp_path, topology, ranks=ranks)
    assert len(found.hosts) == hosts
    assert sum(len(host.ranks) for host in found.hosts) == (ranks or hosts)
    assert from_dict(to_dict(found)) == found


@pytest.mark.parametrize(("times", "gbit"), [(1, 20), (2, 10), (4, 5)])
def test_oversubscription_sets_the_uplinks(tmp_path: Path, times: int, gbit: int) -> None:
    topology = f"{{leaf-spine: {{leaves: 2, spines: 2, hosts_per_leaf: 4, oversubscription: {times}}}}}"
    found = network(tmp_path, topology, "links: {leaf0-spine1: {rate: 1 gbit}}")
    rates = {link.name: link.a_to_b.rate for link in found.links}
    assert rates["host0"] == 10 * 10**9
    assert rates["leaf1-spine0"] == gbit * 10**9
    assert rates["leaf0-spine1"] == 10**9


def test_the_cable_inside_a_node_of_a_ring_takes_no_time_and_loses_nothing(tmp_path: Path) -> None:
    found = network(tmp_path, "{ring: {hosts: 3}}", "link: {delay: 1 ms, jitter: 1 us, loss: 1%, queue: 1 MiB}")
    cable, trunk = (next(link for link in found.links if link.name == name) for name in ("host0", "switch0-switch1"))
    assert (cable.a_to_b.delay, cable.a_to_b.loss, cable.a_to_b.queue, cable.a_to_b.rate) == (0, None, None, 10**10)
    assert trunk.a_to_b.loss is not None
    assert trunk.a_to_b.delay == 10**6


def test_the_matrix_of_aws_regions(tmp_path: Path) -> None:
    found = network(tmp_path, "{wan: {rtt: aws}}")
    trips = {link.name: link.a_to_b.delay + link.b_to_a.delay for link in found.links}
    assert len(found.switches) == 10
    assert len(trips) == 10 + 45
    # Virginia-California, Ireland-Frankfurt, Singapore-Sao Paulo
    assert trips["us-east-1-us-west-1"] == 72_740_000
    assert trips["eu-west-1-eu-central-1"] == 19_560_000
    assert trips["ap-southeast-1-sa-east-1"] == 328_100_000


def test_a_matrix_in_the_file_and_one_beside_it(tmp_path: Path) -> None:
    (tmp_path / "rtt.csv").write_text("# mine\n,a,b\na,0,20\nb,30,0\n")
    inline = network(tmp_path, "{wan: {rtt: {a: {b: 20 ms}, b: {a: 30 ms}}}}")
    assert network(tmp_path, "{wan: {rtt: rtt.csv}}") == inline
    assert inline.links[-1].a_to_b.delay + inline.links[-1].b_to_a.delay == 25_000_000


def test_a_cell_that_is_no_time_is_named() -> None:
    with pytest.raises(NetworkError, match=r"^m\.csv, line 3, b: 'far ms' is not a duration"):
        from_csv("# mine\n,a,b\na,,far\n", "m.csv")
    with pytest.raises(NetworkError, match=r"^m\.csv: expected a table"):
        from_csv("\n", "m.csv")
    with pytest.raises(NetworkError, match=r"^m\.csv, line 2, a: 3 times for 2 names"):
        from_csv(",a,b\na,1,2,3\n", "m.csv")


@pytest.mark.parametrize("first", ["../x", "a-host0"])
def test_sites_have_names_that_can_be_used(tmp_path: Path, first: str) -> None:
    with pytest.raises(NetworkError, match=r"not a name|too alike"):
        network(tmp_path, f"{{wan: {{rtt: {{{first}: {{a: 1 ms}}}}}}}}")


def test_each_topology_is_tested_here() -> None:
    assert set(TOPOLOGIES) == {"star", "dumbbell", "leaf-spine", "fat-tree", "ring", "torus", "wan"}
