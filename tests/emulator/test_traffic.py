"""Background traffic: what a file says of it, and when which bytes are sent."""

from __future__ import annotations

import math
from itertools import islice, pairwise, takewhile
from pathlib import Path
from random import Random
from statistics import fmean

import pytest
import yaml

from emulator.draws import lognormal, pareto
from emulator.errors import NetworkError
from emulator.network import Network, from_dict, load, to_dict
from emulator.traffic_schedule import Piece, pieces

NETWORK = "profile: ethernet-10g\ntopology: {star: {hosts: 4}}\ntraffic:\n"
PAYLOAD, WIRE = 1472, 1538  # bytes of UDP in a packet of 1500, and what it takes on the wire
MS = 10**6


def network(folder: Path, *traffic: str) -> Network:
    path = folder / "net.yaml"
    path.write_text(NETWORK + "".join(f"  - {entry}\n" for entry in traffic))
    return load(path)


def sent(folder: Path, entry: str, host: str = "host0", most: int = 100_000) -> list[Piece]:
    return list(islice(pieces(network(folder, entry), host), most))


def test_constant_begins_a_packet_whenever_the_one_before_has_passed(tmp_path: Path) -> None:
    found = sent(tmp_path, "constant: {from: host0, to: host1, rate: 1 gbit, at: 1 ms, for: 100 ms}")
    assert [piece.at for piece in found[:3]] == [MS, MS + 12_304, MS + 24_608]
    assert len(found) == math.ceil(100 * MS / 12_304)  # the last has begun, not ended
    assert {(piece.target, piece.flow, piece.nbytes, piece.ends) for piece in found} == {("host1", 0, PAYLOAD, False)}


def test_a_rate_that_is_no_whole_number_of_ns_a_packet_is_kept_in_the_long_run(tmp_path: Path) -> None:
    found = sent(tmp_path, "constant: {from: host0, to: host1, rate: 7 gbit, for: 50 ms}")
    assert found[-1].at == (len(found) - 1) * WIRE * 8 // 7
    assert {after.at - before.at for before, after in pairwise(found)} == {1757, 1758}


def test_each_source_sends_to_each_target_but_itself(tmp_path: Path) -> None:
    entry = "constant: {from: [host0, host1], to: [host0, host2], rate: 1 gbit}"
    assert network(tmp_path, entry).traffic[0].pairs == (("host0", "host2"), ("host1", "host0"), ("host1", "host2"))
    assert {piece.target for piece in sent(tmp_path, entry, "host0", 10)} == {"host2"}
    assert {piece.target for piece in sent(tmp_path, entry, "host1", 10)} == {"host0", "host2"}
    assert sent(tmp_path, entry, "host2") == []


def test_on_off_rests_between_its_fixed_times(tmp_path: Path) -> None:
    found = sent(tmp_path, "on_off: {from: host0, to: host1, rate: 10 gbit, on: 1 ms, off: 3 ms, at: 5 ms, for: 9 ms}")
    starts = [5 * MS, *(after.at for before, after in pairwise(found) if after.at - before.at > MS)]
    assert starts == [5 * MS, 9 * MS, 13 * MS]
    assert len(found) == 3 * math.ceil(MS / (WIRE * 0.8))


def test_exponential_times_have_the_means_that_were_asked_and_are_each_pairs_own(tmp_path: Path) -> None:
    entry = (
        "on_off: {from: host0, to: [host1, host2], rate: 100 mbit, on: 1 ms, off: 3 ms, times: exponential, for: 60 s}"
    )
    found = sent(tmp_path, entry, most=10**6)
    for target in ("host1", "host2"):
        share = sum(piece.target == target for piece in found) * WIRE * 8 / 100e6 / 60
        assert share == pytest.approx(0.25, rel=0.1)  # a packet that has begun is counted whole: 6 % more than its time
    ats = [[piece.at for piece in found if piece.target == target][:50] for target in ("host1", "host2")]
    assert ats[0] != ats[1]


@pytest.mark.parametrize(
    ("sizes", "median"),
    [
        ("{pareto: {shape: 2.5, mean: 100 kB}}", 100_000 * 1.5 / 2.5 * 2 ** (1 / 2.5)),
        ("{lognormal: {sigma: 1, mean: 100 kB}}", 100_000 * math.exp(-0.5)),
    ],
)
def test_heavy_tailed_flows_come_at_random_and_to_the_load(sizes: str, median: float, tmp_path: Path) -> None:
    entry = f"heavy_tailed: {{from: host0, to: [host1, host2], rate: 2 gbit, for: 10 s, sizes: {sizes}}}"
    flows = sent(tmp_path, entry)
    gaps = [after.at - before.at for before, after in pairwise(flows)]
    mean = 100_000 * 8 / 2 * 1538 / 1448  # ns between flows whose payload is 1448 of every 1538 bytes
    assert fmean(gaps) == pytest.approx(mean, rel=0.03)
    assert sum(gap > mean for gap in gaps) / len(gaps) == pytest.approx(math.exp(-1), abs=0.02)
    assert fmean(flow.nbytes for flow in flows) == pytest.approx(100_000, rel=0.05)
    assert sorted(flow.nbytes for flow in flows)[len(flows) // 2] == pytest.approx(median, rel=0.03)
    assert sum(flow.target == "host1" for flow in flows) / len(flows) == pytest.approx(0.5, abs=0.03)
    assert [flow.flow for flow in flows if flow.target == "host1"] == list(
        range(sum(f.target == "host1" for f in flows))
    )


def test_quantiles_of_the_sizes_are_the_distributions() -> None:
    draws = Random(1)
    pareto_sizes, lognormal_sizes = (
        sorted(draw(draws, spread, 10**6) for _ in range(50_000)) for draw, spread in ((pareto, 1.2), (lognormal, 2.0))
    )
    least = 10**6 * 0.2 / 1.2
    for part, deviations in ((0.1, -1.2816), (0.5, 0.0), (0.9, 1.2816), (0.99, 2.3263)):
        assert pareto_sizes[int(part * 50_000)] == pytest.approx(least * (1 - part) ** (-1 / 1.2), rel=0.06)
        assert lognormal_sizes[int(part * 50_000)] == pytest.approx(10**6 * math.exp(2 * deviations - 2), rel=0.1)


def test_incast_comes_from_all_at_once_and_again(tmp_path: Path) -> None:
    entry = "incast: {from: [host1, host2, host3], to: host0, every: 10 ms, size: 64 KiB, at: 2 ms, for: 25 ms}"
    for host in ("host1", "host2", "host3"):
        found = sent(tmp_path, entry, host)
        assert found == [Piece((2 + 10 * turn) * MS, 0, "host0", turn, 65_536, True) for turn in range(3)]


def test_flows_over_udp_are_packets_at_the_links_rate_and_side_by_side(tmp_path: Path) -> None:
    entry = "incast: {from: host0, to: [host1, host2], every: 2 us, size: 4000 B, for: 3 us, transport: udp}"
    found = sent(tmp_path, entry)
    gap = WIRE * 8 // 10
    assert found == sorted(found)
    for target in ("host1", "host2"):
        for flow in (0, 1):
            mine = [piece for piece in found if (piece.target, piece.flow) == (target, flow)]
            assert [piece.at - 2000 * flow for piece in mine] == [0, gap, 2 * gap]
            assert [(piece.nbytes, piece.ends) for piece in mine] == [(PAYLOAD, False), (PAYLOAD, False), (1056, True)]


def test_entries_have_draws_of_their_own_from_the_seed(tmp_path: Path) -> None:
    entry = "heavy_tailed: {from: [host0, host1], to: host2, rate: 1 gbit, sizes: {pareto: {shape: 1.5, mean: 10 kB}}}"
    net = network(tmp_path, entry, entry)
    first, second = ([piece for piece in islice(pieces(net, "host0"), 200) if piece.entry == entry] for entry in (0, 1))
    other_host = islice(pieces(net, "host1"), 10)
    assert len({tuple(piece.nbytes for piece in found[:4]) for found in (first, second, list(other_host))}) == 3
    assert first[:50] == list(takewhile(lambda piece: piece.at <= first[49].at, sent(tmp_path, entry)))[:50]
    other_seed = load(tmp_path / "net.yaml", overrides={"seed": "2"})
    assert next(pieces(other_seed, "host0")).nbytes != first[0].nbytes


def test_packets_fit_through_every_link_on_their_way(tmp_path: Path) -> None:
    path = tmp_path / "net.yaml"
    path.write_text(
        "profile: ethernet-10g\ntopology: {star: {hosts: 3}}\nlinks: {host0: {mtu: 9000}, host1: {mtu: 9000}}\ntraffic:\n"
        "  - constant: {from: host0, to: [host1, host2], rate: 1 gbit, for: 1 ms}\n"
    )
    found = list(pieces(load(path), "host0"))
    for target, mtu in (("host1", 9000), ("host2", 1500)):
        mine = [piece for piece in found if piece.target == target]
        assert {piece.nbytes for piece in mine} == {mtu - 28}
        assert len(mine) == math.ceil(MS / ((mtu + 38) * 8))


def test_the_resolved_form_reads_back(tmp_path: Path) -> None:
    net = network(
        tmp_path,
        "constant: {from: host0, to: host1, rate: 1 gbit, transport: tcp}",
        "on_off: {from: host0, to: [host1, host2], rate: 1.5 gbit, on: 1 ms, off: 1.5 us, at: 1 s, for: 2 s}",
        "heavy_tailed: {from: host0, to: host1, rate: 1 gbit, sizes: {pareto: {shape: 1.05, mean: 1 MB}}}",
        "heavy_tailed: {from: host0, to: host1, rate: 1 gbit, sizes: {lognormal: {sigma: 2, mean: 1 MB}}}",
        "incast: {from: [host0, host1], to: host2, every: 1 ms, size: 1 KiB}",
    )
    assert from_dict(to_dict(net)) == net
    (tmp_path / "again.yaml").write_text(yaml.safe_dump(to_dict(net)))
    assert load(tmp_path / "again.yaml") == net


WRONG = {
    "unknown kind": ("constnt: {}", "line 4, traffic[0].constnt: unknown key 'constnt': did you mean 'constant'?"),
    "two kinds": ("{constant: {}, incast: {}}", "line 4, traffic[0]: expected one kind of traffic"),
    "no host": ("constant: {from: host9, to: host1, rate: 1 gbit}", "traffic[0].constant.from: 'host9' is none of"),
    "no source": ("constant: {to: host1, rate: 1 gbit}", "traffic[0].constant: expected 'from'"),
    "none at all": ("constant: {from: [], to: host1, rate: 1 gbit}", "expected a host, or a list of different hosts"),
    "twice": ("constant: {from: [host0, host0], to: host1, rate: 1 gbit}", "expected a host, or a list of different"),
    "to itself": ("constant: {from: [host0, host1], to: host1, rate: 1 gbit}", "'host1' would send to itself only"),
    "no rate": ("constant: {from: host0, to: host1, rate: 0 gbit}", "traffic[0].constant.rate: expected more than 0"),
    "never again": ("incast: {from: host0, to: host1, every: 0 s, size: 1 B}", "incast.every: expected more than 0"),
    "nothing": ("incast: {from: host0, to: host1, every: 1 s, size: 0 B}", "incast.size: expected more than 0"),
    "no mean": (
        "heavy_tailed: {from: host0, to: host1, rate: 1 gbit, sizes: {pareto: {shape: 1, mean: 1 kB}}}",
        "traffic[0].heavy_tailed.sizes.pareto.shape: sizes of shape 1.0 have no mean: expected more than 1",
    ),
    "no number": (
        "heavy_tailed: {from: host0, to: host1, rate: 1 gbit, sizes: {lognormal: {sigma: -1, mean: 1 kB}}}",
        "sizes.lognormal.sigma: '-1' is not a number of more than 0",
    ),
    "no sizes": ("heavy_tailed: {from: host0, to: host1, rate: 1 gbit, sizes: {}}", "expected one of pareto, lognormal"),
    "no transport": ("constant: {from: host0, to: host1, rate: 1 gbit, transport: sctp}", "'sctp' is none of udp, tcp"),
}  # fmt: skip


@pytest.mark.parametrize(("entry", "message"), WRONG.values(), ids=WRONG)
def test_the_error_names_file_line_and_key(entry: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(NetworkError) as caught:
        network(tmp_path, entry)
    assert str(caught.value).startswith(f"{tmp_path / 'net.yaml'}, line 4, traffic[0]")
    assert message in str(caught.value)
