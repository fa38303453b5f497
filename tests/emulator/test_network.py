from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from emulator.impairments import Event, FourState, GilbertElliott
from emulator.network import Network, from_dict, load, to_dict
from emulator.queues import Early, Queue
from emulator.shape import Shape, unreachable
from emulator.topologies.star import star
from emulator.transport import NO_COSTS, Costs, Rdma, Tcp
from emulator.units import Duration, Probability, Rate, Size

STAR = """
profile: ethernet-10g
topology: {star: {hosts: 4}}
link: {rate: 10 gbit, delay: 5 us, loss: 0.1%, queue: 512 KiB, mtu: 9000}
links:
  host2:
    rate: 1 gbit
    up: {delay: 1ms, jitter: 10us, jitter_correlation: 5%, distribution: normal}
    down: {loss: {gilbert_elliott: {good_to_bad: 1%, bad_to_good: 20%}}, queue: 100 packets}
  host3:
    loss: {four_state: {p13: 1%, p31: 50%}}
    reorder: {probability: 1%, correlation: 25%}
    duplicate: 2%
    corrupt: 3%
    overhead: 38
    up: {queue: {limit: 1 MiB, ecn: 65 KiB}}
    down: {queue: {limit: 1 MiB, red: {min: 30 KiB, max: 90 KiB, probability: 10%}}}
tcp: {congestion: reno, buffer: 16 MiB, streams: 4, mss: 1000, nodelay: false, delayed_ack: false, initial_window: 32,
  initial_receive_window: 64, pacing: 5 gbit}
transport: rdma
rdma: {recovery: selective-repeat, lossless: true}
costs: {message: 1.5 us, copy: 30 gbit}
seed: 7
"""

PAIRS = """
name: two racks
source: drawn on a napkin
hosts: {a: {ranks: [3, 0]}, b: {ranks: [1]}, c: {ranks: [2]}}
switches: [left, right]
link: {rate: unlimited}
links:
  a-left: {ends: [a, left]}
  b-left: {ends: [b, left]}
  trunk: {ends: [left, right], rate: 40 gbit, up: {rate: 1 gbit}}
  c-right: {ends: [c, right], mtu: 68}
"""


def _load(tmp_path: Path, text: str, **keywords: object) -> Network:
    path = tmp_path / "net.yaml"
    path.write_text(text)
    return load(path, **keywords)  # type: ignore[arg-type]


def test_star_with_overrides_by_link_and_direction(tmp_path: Path) -> None:
    network = _load(tmp_path, STAR, ranks=8)
    assert [host.ranks for host in network.hosts] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert [switch.name for switch in network.switches] == ["switch"]
    assert network.tcp == Tcp(
        "reno", Size(2**24), ecn=False, streams=4, mss=1000, nodelay=False, delayed_ack=False, initial_window=32,
        initial_receive_window=64, pacing=Rate(5 * 10**9),
    )  # fmt: skip
    assert (network.transport, network.rdma) == ("rdma", Rdma("selective-repeat", "none", lossless=True))
    assert network.costs == Costs(Duration(1500), Rate(30 * 10**9), None, Rate(16_500_000_000))
    assert (network.name, network.source, network.seed) == ("net", "profile ethernet-10g", 7)
    plain, _, slow, faulty = network.links
    assert (plain.name, plain.a, plain.b, plain.mtu) == ("host0", "host0", "switch", 9000)
    assert plain.a_to_b == plain.b_to_a
    assert plain.a_to_b.rate == 10**10
    assert plain.a_to_b.delay == 5000
    assert plain.a_to_b.loss == Event(Probability.parse("0.1%"))
    assert plain.a_to_b.queue == Queue(524288, "bytes")
    assert plain.a_to_b.overhead == 24
    assert slow.a_to_b.rate == slow.b_to_a.rate == 10**9
    assert (slow.a_to_b.delay, slow.b_to_a.delay) == (10**6, 5000)
    assert (slow.a_to_b.jitter, slow.a_to_b.distribution) == (10_000, "normal")
    assert slow.b_to_a.queue == Queue(100, "packets")
    assert slow.b_to_a.loss == GilbertElliott(Probability.parse("1%"), Probability.parse("20%"))
    assert faulty.a_to_b.loss == FourState(Probability.parse("1%"), Probability.parse("50%"))
    assert faulty.a_to_b.reorder == Event(Probability.parse("1%"), Probability.parse("25%"))
    assert faulty.a_to_b.duplicate == Event(Probability.parse("2%"))
    assert faulty.a_to_b.corrupt == Event(Probability.parse("3%"))
    assert faulty.a_to_b.overhead == 38
    step = Early(Size(66560), Size(66560), Probability(Probability.ALWAYS), ecn=True)
    assert faulty.a_to_b.queue == Queue(2**20, "bytes", step)
    ramp = Early(Size(30720), Size(92160), Probability.parse("10%"), ecn=False)
    assert faulty.b_to_a.queue == Queue(2**20, "bytes", ramp)


def test_listed_hosts_switches_and_links(tmp_path: Path) -> None:
    network = _load(tmp_path, PAIRS)
    assert (network.name, network.source) == ("two racks", "drawn on a napkin")
    assert [host.ranks for host in network.hosts] == [(3, 0), (1,), (2,)]
    trunk, last = network.links[2:]
    assert (trunk.a, trunk.b) == ("left", "right")
    assert (trunk.a_to_b.rate, trunk.b_to_a.rate) == (Rate(10**9), Rate(4 * 10**10))
    assert (network.transport, network.costs) == ("tcp", NO_COSTS)
    assert last.a_to_b.rate is None
    assert last.mtu == 68


def test_dctcp_has_ecn_and_others_where_they_ask(tmp_path: Path) -> None:
    assert _load(tmp_path, "profile: ethernet-10g\ntcp: {congestion: dctcp}\n").tcp.ecn
    assert _load(tmp_path, "profile: ethernet-10g\ntcp: {ecn: true}\n").tcp == Tcp("cubic", None, ecn=True)
    assert not _load(tmp_path, "profile: ethernet-10g\n").tcp.ecn


@pytest.mark.parametrize("text", [STAR, PAIRS, "profile: wan-transatlantic"])
def test_resolved_form_is_a_network_file_of_the_same_network(tmp_path: Path, text: str) -> None:
    network = _load(tmp_path, text)
    plain = to_dict(network)
    assert from_dict(json.loads(json.dumps(plain))) == network
    assert _load(tmp_path, yaml.safe_dump(plain, sort_keys=False)) == network


@pytest.mark.parametrize(
    ("topology", "ranks", "held"),
    [
        ("{star: {}}", None, [1, 1]),
        ("{star: {}}", 5, [1, 1, 1, 1, 1]),
        ("{star: {ranks_per_host: 4}}", 8, [4, 4]),
        ("{star: {ranks_per_host: 4}}", 9, [4, 4, 1]),
        ("{star: {hosts: 3, ranks_per_host: 2}}", None, [2, 2, 2]),
        ("{star: {hosts: 3}}", None, [1, 1, 1]),
        ("{star: {hosts: 3}}", 8, [3, 3, 2]),
        ("{star: {hosts: 3}}", 2, [1, 1, 0]),
    ],
)
def test_ranks_are_placed_in_blocks(tmp_path: Path, topology: str, ranks: int | None, held: list[int]) -> None:
    network = _load(tmp_path, f"profile: ethernet-1g\ntopology: {topology}", ranks=ranks)
    assert [len(host.ranks) for host in network.hosts] == held
    assert [rank for host in network.hosts for rank in host.ranks] == list(range(sum(held)))


def test_overrides_win_over_what_the_file_shares(tmp_path: Path) -> None:
    overrides = {"link.rate": "100 gbit", "links.host1.up.delay": "9 us", "tcp.congestion": "bbr", "seed": "3"}
    network = _load(tmp_path, STAR, overrides=overrides)
    assert [link.a_to_b.rate for link in network.links] == [10**11, 10**11, 10**9, 10**11]
    assert (network.links[1].a_to_b.delay, network.links[1].b_to_a.delay) == (9000, 5000)
    assert (network.tcp.congestion, network.seed) == ("bbr", 3)


def test_a_profile_alone_is_a_star_of_the_ranks() -> None:
    network = load("ethernet-25g", ranks=16)
    assert len(network.hosts) == len(network.links) == 16
    assert network.links[0].a_to_b.rate == Rate.parse("25 gbit")
    assert network.name == "ethernet-25g"


def test_a_file_called_as_a_profile_is_asked_for_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ethernet-1g").write_text("link: {rate: 7 kbit}")
    assert [link.a_to_b.rate for link in (*load("ethernet-1g").links, *load("./ethernet-1g").links)] == [
        10**9, 10**9, 7000, 7000,
    ]  # fmt: skip


def test_unreachable_pairs() -> None:
    links = {"1": ("a", "s"), "2": ("b", "s"), "3": ("c", "t")}
    assert unreachable(Shape(("a", "b", "c"), ("s", "t"), links)) == ("a", "c")
    assert unreachable(Shape(("a", "b", "c"), ("s", "t"), {**links, "4": ("s", "t")})) is None
    # Hosts don't forward: c reaches b, b reaches a, c doesn't reach a.
    chain = {"1": ("a", "b"), "2": ("b", "c")}
    assert unreachable(Shape(("a", "b", "c"), (), chain)) == ("a", "c")
    assert unreachable(Shape(("a", "b", "c"), (), {**chain, "3": ("a", "c")})) is None
    assert unreachable(star(1000)) is None
