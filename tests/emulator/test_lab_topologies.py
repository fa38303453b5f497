"""Topologies as packets find them, in virtual time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from emulator.network import Network, load, to_dict
from tests.guest import run_guest

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab")]

SIZE = 200_000_000
CROSS = [["host0", "host2"], ["host1", "host3"]]  # of a leaf-spine with two hosts a leaf


def network(folder: Path, topology: str, **settings: str) -> Network:
    path = folder / "net.yaml"
    path.write_text(f"topology: {topology}\nlink: {{rate: 10 gbit, delay: 2 us}}\n")
    return load(path, overrides=settings)


def transfers(net: Network, pairs: Sequence[Sequence[str]], size: int = SIZE) -> Any:
    return run_guest("fabric", json.dumps(to_dict(net)), json.dumps(pairs), str(size))


def test_oversubscription_of_2_halves_what_crosses_leaves(tmp_path: Path) -> None:
    took = {
        times: transfers(
            network(
                tmp_path, f"{{leaf-spine: {{leaves: 2, spines: 1, hosts_per_leaf: 2, oversubscription: {times}}}}}"
            ),
            CROSS,
        )["took_ns"]
        for times in (1, 2)
    }
    assert took[2] / took[1] == pytest.approx(2, rel=0.02)
    assert took[1] == pytest.approx(SIZE * 8 / 10 * 1538 / 1448, rel=0.02)


def test_round_trips_of_a_matrix_are_those_asked(tmp_path: Path) -> None:
    (tmp_path / "rtt.csv").write_text(",a,b,c\na,,72.74,0.5\nb,,,230\n")
    found = network(tmp_path, "{wan: {rtt: rtt.csv}}", **{"link.rate": "unlimited"})
    sites = [host.name for host in found.hosts]
    trips = run_guest("trips", json.dumps(to_dict(found)), json.dumps(list(combinations(sites, 2))))
    assert trips == pytest.approx([72_740_000, 500_000, 230_000_000], abs=1000)


def test_a_torus_is_as_far_as_its_shortest_way(tmp_path: Path) -> None:
    found = network(tmp_path, "{torus: {sizes: [4, 3]}}", **{"link.rate": "unlimited"})
    # host0 is at 0-0; host5 at 1-2, two links away round the end of its row; host6 at 2-0, two links; host7 at 2-1.
    trips = run_guest("trips", json.dumps(to_dict(found)), json.dumps([["host0", f"host{to}"] for to in (5, 6, 7)]))
    assert trips == pytest.approx([8_000, 8_000, 12_000], abs=1000)


def test_the_seed_decides_which_of_equal_paths_two_hosts_take(tmp_path: Path) -> None:
    leaf_spine = "{leaf-spine: {leaves: 2, spines: 4, hosts_per_leaf: 2}}"
    first, again, *others = (
        [packets > 100 for _, target, packets in transfers(network(tmp_path, leaf_spine, seed=seed), CROSS, 2_000_000)["packets"]
         if target.startswith("spine")]
        for seed in ("1", "1", "2", "3", "4")
    )  # fmt: skip
    assert first == again
    assert any(other != first for other in others)
    assert 1 <= sum(first) <= 4
