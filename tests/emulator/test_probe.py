"""What is asked of a path, and the verdict on what was measured: no sockets, no clock."""

from __future__ import annotations

from typing import Any

import pytest

from emulator.errors import NetworkError
from emulator.network import from_dict
from emulator.probe import VIRTUAL, Arrival, Finding, Measured, Path, judge, paths, train

GBIT_PACE_NS = 12_304  # a full packet of MTU 1500 takes 1538 bytes on the wire


def path(**link: Any) -> Path:
    """From `a` to `b`, over one link of 1 Gbit/s and 1 ms unless told otherwise."""
    wire = {"rate": "1 gbit", "delay": "1 ms", **link, "ends": ["a", "b"]}
    return paths(from_dict({"hosts": ["a", "b"], "links": {"wire": wire}}))[0]


def arrivals(probed: Path, pace_ns: int = GBIT_PACE_NS) -> tuple[tuple[Arrival, ...], ...]:
    """All that was sent, in order and evenly."""
    sent = train(probed)
    return ((tuple((number * pace_ns, number) for number in range(sent.packets))),) * sent.rounds


def found(probed: Path, rounds: tuple[tuple[Arrival, ...], ...], trip_ns: int = 2_024_608) -> dict[str, Finding]:
    measured = Measured((trip_ns,) * 3, rounds)
    return {finding.what: finding for finding in judge(probed, measured, VIRTUAL)}


def test_each_host_probes_the_next_and_every_link_between_switches_is_crossed_both_ways() -> None:
    ends = {"a": ["a", "s"], "b": ["b", "s"], "core": ["s", "t"], "c": ["c", "t"]}
    delays = {"a": "1 us", "b": "2 us", "core": "4 us", "c": "8 us"}
    links = {name: {"rate": "unlimited", "delay": delays[name], "ends": pair} for name, pair in ends.items()}
    probed = paths(from_dict({"hosts": ["a", "b", "c"], "switches": ["s", "t"], "links": links}))
    assert [(way.source, way.target) for way in probed] == [("a", "b"), ("b", "c"), ("c", "a")]
    assert [[int(hop.delay) for hop in way.there] for way in probed] == [
        [1000, 2000],
        [2000, 4000, 8000],
        [8000, 4000, 1000],
    ]
    assert [[int(hop.delay) for hop in way.back] for way in probed][1] == [8000, 4000, 2000]


def test_what_differs_between_equally_short_paths_is_not_asked() -> None:
    spines = {"topology": {"leaf-spine": {"leaves": 2, "spines": 2, "hosts_per_leaf": 1}}, "link": {"rate": "1 gbit"}}
    assert all(way.settled for way in paths(from_dict(spines)))
    (slower,) = (name for name, (a, b) in from_dict(spines).shape.links.items() if (a, b) == ("leaf0", "spine1"))
    forth, back = paths(from_dict({**spines, "links": {slower: {"delay": "1 ms"}}}))
    assert (forth.settled, back.settled) == (False, False)
    measured = Measured((5_000,) * 3, arrivals(forth))
    assert {finding.verdict for finding in judge(forth, measured, VIRTUAL)} == {"not checked"}


def test_one_host_has_no_path() -> None:
    with pytest.raises(NetworkError, match="no path to probe"):
        paths(from_dict({"hosts": ["a"], "links": {}}))


@pytest.mark.parametrize(
    ("link", "packets", "rounds"),
    [
        ({}, 500, 1),
        ({"rate": "1 mbit"}, 10, 1),  # no more than 0.1 s carries, but ten
        ({"up": {"queue": "40 packets"}}, 40, 1),
        ({"up": {"queue": "30280 B"}}, 20, 1),  # of 1514
        ({"up": {"loss": "1%"}}, 500, 20),
        ({"up": {"reorder": "1%"}}, 500, 20),
        ({"down": {"loss": "1%", "queue": "2 packets"}}, 500, 1),
    ],
)
def test_a_train_fits_the_queues_and_is_repeated_where_chance_is_measured(
    link: dict[str, Any], packets: int, rounds: int
) -> None:
    sent = train(path(**link))
    assert (sent.packets, sent.rounds) == (packets, rounds)


def test_what_is_asked_is_exact() -> None:
    findings = found(path(), arrivals(path()))
    assert [finding.asked for finding in findings.values()] == [2_000_000 + 2 * GBIT_PACE_NS, 1e9, 0.0, 0.0]
    assert [finding.band for finding in findings.values()] == [1000, 5e6, 0.0, 0.0]
    assert findings["rate, bit/s"].got == pytest.approx(1e9)
    assert {finding.verdict for finding in findings.values()} == {"yes"}


@pytest.mark.parametrize(("off_ns", "verdict"), [(1000, "yes"), (-1000, "yes"), (1001, "no"), (-1001, "no")])
def test_a_round_trip_may_be_off_by_1_us(off_ns: int, verdict: str) -> None:
    finding = found(path(), arrivals(path()), 2_024_608 + off_ns)["round trip, ns"]
    assert finding.verdict == verdict


@pytest.mark.parametrize(("pace_ns", "verdict"), [(12_250, "yes"), (12_360, "yes"), (12_230, "no"), (12_380, "no")])
def test_a_rate_may_be_off_by_half_a_percent(pace_ns: int, verdict: str) -> None:
    assert found(path(), arrivals(path(), pace_ns))["rate, bit/s"].verdict == verdict


@pytest.mark.parametrize(("lost", "verdict"), [(100, "yes"), (67, "yes"), (133, "yes"), (65, "no"), (135, "no")])
def test_loss_lies_in_the_band_of_a_binomial_distribution(lost: int, verdict: str) -> None:
    probed = path(up={"loss": "1%"})  # of 10,000: 100, and 3.291 standard deviations are 32.7, and one more
    first, *rest = arrivals(probed)
    finding = found(probed, (first[lost:], *rest))["loss"]
    assert finding.got == pytest.approx(lost / 10_000)
    assert finding.verdict == verdict


def test_nothing_asked_allows_nothing() -> None:
    (arrived,) = arrivals(path())
    assert found(path(), (arrived[:-1],))["loss"].verdict == "no"
    swapped = (*arrived[:100], (arrived[100][0], 101), (arrived[101][0], 100), *arrived[102:])
    findings = found(path(), (swapped,))
    assert findings["reordering"].verdict == "no"
    assert findings["reordering"].got == 1 / 500
    assert findings["rate, bit/s"].verdict == "yes"


def test_losses_in_bursts_may_spread_wider() -> None:
    model = {"gilbert_elliott": {"good_to_bad": "1%", "bad_to_good": "19%"}}
    finding = found(path(up={"loss": model}), arrivals(path(up={"loss": model})))["loss"]
    assert finding.asked == pytest.approx(0.05)
    single = 3.291 * (10_000 * 0.05 * 0.95) ** 0.5 + 1
    assert finding.band == pytest.approx(3 * single / 10_000)  # (1 + 0.8) / (1 - 0.8) is 9


@pytest.mark.parametrize(
    ("link", "what"),
    [
        ({"rate": "unlimited"}, "rate, bit/s"),
        ({"up": {"queue": "2 packets"}}, "rate, bit/s"),
        ({"up": {"jitter": "1 ms"}, "rate": "100 gbit"}, "rate, bit/s"),
        ({"up": {"corrupt": "1%"}}, "loss"),
        ({"up": {"loss": {"four_state": {"p13": "1%", "p31": "50%"}}}}, "loss"),
        ({"up": {"loss": {"probability": "1%", "correlation": "20%"}}}, "loss"),
        ({"up": {"duplicate": "1%"}}, "reordering"),
        ({"up": {"reorder": "1%"}, "delay": "20 us"}, "reordering"),
    ],
)
def test_what_has_no_simple_answer_is_not_checked(link: dict[str, Any], what: str) -> None:
    finding = found(path(**link), arrivals(path(**link)))[what]
    assert (finding.verdict, finding.band) == ("not checked", None)


def test_where_nothing_arrives_nothing_is_right() -> None:
    findings = {finding.what: finding for finding in judge(path(), Measured((), ((),)), VIRTUAL)}
    assert findings["round trip, ns"].got is findings["rate, bit/s"].got is None
    assert findings["loss"].got == 1
    assert [finding.verdict for finding in findings.values()] == ["no", "no", "no", "yes"]
