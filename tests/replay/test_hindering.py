"""Whose a message's time on its way is: on made paths, with made times."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from emulator.beds.bed import LinkCounters
from emulator.network import Network, load
from replay.hindering import Hindrance, hindrances
from replay.moments import Message
from replay.plan import Transfer, lower
from tests.replay.runs import all_reduces

RATE = 10  # bits a ns
SHARE = 1538 / 1448


def transfer() -> Transfer:
    op = lower(all_reduces(4, 4000, steps=1)).ranks[0].ops[0]
    assert isinstance(op, Transfer)
    return op


def message(source: int, target: int, began: int, ended: int, nbytes: int = 1_448_000) -> Message:
    return Message(transfer(), source, target, nbytes, began, ended, arrives=True)


def network(tmp_path: Path, text: str = "") -> Network:
    """Two links of 10 Gbit/s and 2 us on each path."""
    path = tmp_path / "net.yaml"
    path.write_text(f"profile: ethernet-10g\n{text}")
    return load(path, ranks=4)


def against(
    network: Network, messages: Sequence[Message], counters: Sequence[LinkCounters] = ()
) -> dict[str, tuple[list[float], list[float]]]:
    """By link: the parts of its messages' time that are held against it, and what they would take without it."""
    took = [each.ended - each.began for each in messages]
    found: Sequence[Hindrance] = hindrances(network, counters, messages, took)
    return {" or ".join(each.links): (each.against.tolist(), each.without.tolist()) for each in found}


def needed(nbytes: int = 1_448_000, rate: float = RATE) -> float:
    return nbytes * 8 / rate * SHARE


def test_every_ns_is_somebodys(tmp_path: Path) -> None:
    lasts = round(needed()) + 4_000 + 777_777
    found = against(network(tmp_path), [message(0, 1, 0, lasts), message(2, 1, 100, lasts)])
    parts = {name: sum(parts) for name, (parts, _) in found.items()}
    assert set(parts) == {"host0", "host1", "host2"}
    assert sum(parts.values()) == pytest.approx(lasts + lasts - 100)


def test_delays_are_each_links_own_and_what_is_full_alike_shares(tmp_path: Path) -> None:
    lasts = round(needed()) + 4_000
    found = against(network(tmp_path), [message(0, 1, 0, lasts)])
    for parts, without in found.values():
        assert parts == [pytest.approx(lasts / 2, rel=1e-3)]
        assert without == [pytest.approx(lasts - 2_000, rel=1e-3)]  # the other link needs as long


def test_the_slower_link_takes_it_and_without_it_the_next_one_holds(tmp_path: Path) -> None:
    lasts = round(needed(rate=1)) + 4_000
    found = against(network(tmp_path, "links: {host1: {rate: 1 gbit}}\n"), [message(0, 1, 0, lasts)])
    assert found["host1"][0] == [pytest.approx(lasts - 2_000, rel=1e-3)]
    assert found["host1"][1] == [pytest.approx(needed() + 2_000, rel=1e-3)]
    assert found["host0"] == ([pytest.approx(2_000, rel=1e-2)], [pytest.approx(lasts - 2_000, rel=1e-3)])


def test_what_others_bring_makes_a_link_full(tmp_path: Path) -> None:
    """Three come to rank 0 together, each over a link of its own that is a third busy."""
    lasts = round(3 * needed()) + 4_000
    found = against(network(tmp_path), [message(rank, 0, 0, lasts) for rank in (1, 2, 3)])
    assert found["host0"][0] == [pytest.approx(lasts - 2_000, rel=1e-3)] * 3
    assert found["host0"][1] == [pytest.approx(needed() + 2_000, rel=2e-3)] * 3


def test_where_nothing_is_full_packets_that_were_dropped_take_it(tmp_path: Path) -> None:
    lasts = 100 * round(needed())
    lossy = [LinkCounters("host1", "switch", "host1", 9, 9, drops=3, overlimits=0, backlog_bytes=0, marks=0)]
    found = against(network(tmp_path), [message(0, 1, 0, lasts)], lossy)
    assert found["host1"][0] == [pytest.approx(lasts, rel=0.01)]


def test_where_nothing_is_full_and_nothing_lost_long_links_take_it(tmp_path: Path) -> None:
    """A small message on a long way, several round trips long: slow start."""
    far = network(tmp_path, "links: {host1: {delay: 20 ms}}\n")
    found = against(far, [message(0, 1, 0, 100_000_000, nbytes=50_000)])
    assert found["host1"][0] == [pytest.approx(100e6, rel=0.01)]
    assert found["host1"][1] == [pytest.approx(0, abs=1e6)]


def test_an_event_that_slows_a_link_counts_from_when_it_does(tmp_path: Path) -> None:
    events = "events: [{degrade: {link: host1, at: 1 s, rate: 100 mbit}}]\n"
    lasts = round(needed(rate=0.1))
    early = against(network(tmp_path, events), [message(0, 1, 0, lasts)])
    late = against(network(tmp_path, events), [message(0, 1, 10**9, 10**9 + lasts)])
    assert late["host1"][0] == [pytest.approx(lasts, rel=0.01)]
    assert early["host1"][0][0] < 0.6 * lasts


def test_equally_short_paths_are_one_hop_that_names_both(tmp_path: Path) -> None:
    leaves = "topology: {leaf-spine: {leaves: 2, spines: 2, hosts_per_leaf: 2}}\n"
    found = against(network(tmp_path, leaves), [message(0, 3, 0, 10_000_000)])
    assert set(found) == {"host0", "host3", "leaf0-spine0 or leaf0-spine1", "leaf1-spine0 or leaf1-spine1"}, set(found)
    assert sum(parts for (parts,), _ in found.values()) == pytest.approx(10_000_000)


def test_what_stays_on_a_host_crosses_no_link(tmp_path: Path) -> None:
    both = network(tmp_path, "topology: {star: {hosts: 2, ranks_per_host: 2}}\n")
    assert against(both, [message(0, 1, 0, 1000)]) == {}
