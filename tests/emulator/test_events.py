"""Events of a network file, and the changes that they come to."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path

import pytest
import yaml

from emulator.errors import NetworkError
from emulator.events import Change, timeline
from emulator.impairments import ALWAYS, Event
from emulator.links import Direction
from emulator.network import Network, from_dict, load, to_dict
from emulator.qdisc.netem import Netem
from emulator.qdisc.tbf import Tbf
from emulator.shaping import NO_LIMIT, choose_fidelity, needs_of, stages
from emulator.units import Duration, Probability, Rate

NETWORK = "profile: ethernet-10g\ntopology: {star: {hosts: 3}}\nevents:\n"
PLAIN = load("ethernet-10g").links[0].a_to_b
DOWN = replace(PLAIN, loss=Event(ALWAYS))
SLOW = replace(PLAIN, rate=Rate(10**9))


def network(folder: Path, *events: str) -> Network:
    path = folder / "net.yaml"
    path.write_text(NETWORK + "".join(f"  - {event}\n" for event in events))
    return load(path)


def changes(net: Network, most: int = 100) -> list[Change]:
    return list(islice(timeline(net.links, net.events), most))


def of(net: Network, link: str, most: int = 100) -> list[tuple[int, Direction]]:
    """When `link` changes upwards, and what it is then."""
    return [(at.at, at.direction) for at in changes(net, most) if (at.link, at.way) == (link, "up")]


def test_degrade_sets_what_it_names_for_as_long_as_it_says(tmp_path: Path) -> None:
    net = network(tmp_path, "degrade: {link: host1, way: up, at: 1 s, for: 500 ms, rate: 1 gbit}")
    assert changes(net) == [
        Change(Duration(10**9), "host1", "up", SLOW),
        Change(Duration(15 * 10**8), "host1", "up", PLAIN),
    ]


def test_down_stays_without_an_end_and_takes_both_ways_of_every_link(tmp_path: Path) -> None:
    found = changes(network(tmp_path, "down: {at: 2 ms}"))
    assert [(at.link, at.way) for at in found] == [(f"host{n}", way) for n in range(3) for way in ("up", "down")]
    assert all(at.direction == DOWN and at.at == 2_000_000 for at in found)


def test_flap_goes_down_and_up(tmp_path: Path) -> None:
    net = network(tmp_path, "flap: {link: [host0, host2], at: 1 us, times: 2, down: 2 us, up: 3 us}")
    assert of(net, "host2") == [(1000, DOWN), (3000, PLAIN), (6000, DOWN), (8000, PLAIN)]
    assert not of(net, "host1")


def test_partition_cuts_the_links_that_leave_the_nodes(tmp_path: Path) -> None:
    net = network(tmp_path, "partition: {nodes: [host0, switch], at: 1 s, for: 1 s}")
    assert {at.link for at in changes(net)} == {"host1", "host2"}


def test_a_straggler_has_a_part_of_its_links_rate(tmp_path: Path) -> None:
    assert of(network(tmp_path, "straggler: {link: host1, slowdown: 10}"), "host1") == [(0, SLOW)]


def test_churn_is_the_seeds_and_ends_up(tmp_path: Path) -> None:
    churn = "churn: {link: [host0, host1], for: 10 s, mean_up: 100 ms, mean_down: 10 ms}"
    net = network(tmp_path, churn)
    found = of(net, "host0", 10_000)
    downs = [end[0] - start[0] for start, end in pairwise(found) if start[1] == DOWN]
    assert [way for _, way in found] == [DOWN, PLAIN] * (len(found) // 2)
    assert 60 < len(downs) < 130
    assert 6_000_000 < sum(downs) / len(downs) < 14_000_000
    assert found[-1][0] <= 10 * 10**9
    assert found == of(network(tmp_path, churn), "host0", 10_000) != of(net, "host1", 10_000)


def test_where_events_overlap_the_later_listed_wins_and_the_other_is_there_after_it(tmp_path: Path) -> None:
    net = network(
        tmp_path,
        "degrade: {link: host0, way: up, at: 1 us, for: 9 us, rate: 1 gbit, delay: 7 us}",
        "degrade: {link: host0, way: up, at: 3 us, for: 2 us, rate: 2 gbit}",
    )
    late = replace(SLOW, delay=Duration(7000))
    assert of(net, "host0") == [
        (1000, late),
        (3000, replace(late, rate=Rate(2 * 10**9))),
        (5000, late),
        (10_000, PLAIN),
    ]


def test_csv_is_in_the_unit_of_its_heading_and_rounded(tmp_path: Path) -> None:
    (tmp_path / "rate.csv").write_text("seconds,mbit\n0,1000\n0.25,0.0333333\n")
    (tmp_path / "delay.csv").write_text("seconds,ms\n0.1,1.5\n")
    net = network(
        tmp_path, "rate_trace: {link: host0, file: rate.csv}", "delay_trace: {link: host0, way: up, file: delay.csv}"
    )
    delayed = replace(SLOW, delay=Duration(1_500_000))
    assert of(net, "host0") == [(0, SLOW), (10**8, delayed), (25 * 10**7, replace(delayed, rate=Rate(33336)))]


def test_mahimahi_lets_its_packets_through_by_each_stamp_and_starts_again(tmp_path: Path) -> None:
    stamps = [0, 1, 1, 5, 10]
    (tmp_path / "cell.up").write_text("\n".join(map(str, stamps)))
    found = of(network(tmp_path, "mahimahi: {link: host0, way: up, file: cell.up}"), "host0", 100)
    ends = [*(at for at, _ in found[1:]), 0]
    packets = [(way.rate or 0) * (end - at) / 8e9 / 1538 for (at, way), end in zip(found[:-1], ends[:-1], strict=True)]
    assert [at for at, _ in found[:7]] == [0, 1_000_000, 5_000_000, 10_000_000, 11_000_000, 15_000_000, 20_000_000]
    assert packets[:6] == pytest.approx([2, 1, 2, 2, 1, 2], rel=1e-4)


def test_the_resolved_form_holds_the_values_and_reads_back(tmp_path: Path) -> None:
    (tmp_path / "cell.up").write_text("1\n3\n")
    net = network(
        tmp_path,
        "mahimahi: {link: host0, file: cell.up}",
        "churn: {for: 1 s, mean_up: 100 ms, mean_down: 10 ms}",
        "loss_burst: {link: host1, at: 1 s, for: 1 ms, loss: {gilbert_elliott: {good_to_bad: 1%, bad_to_good: 10%}}}",
        "degrade: {link: host2, at: 1 s, delay: 3 ms, loss: 0.1%}",
    )
    assert from_dict(to_dict(net)) == net
    (tmp_path / "cell.up").unlink()
    (tmp_path / "again.yaml").write_text(yaml.safe_dump(to_dict(net)))
    assert load(tmp_path / "again.yaml") == net


@pytest.mark.parametrize(
    ("event", "fidelity"),
    [
        ("degrade: {at: 1 s, delay: 1 ms}", "burst"),
        ("degrade: {at: 1 s, rate: 1 gbit}", "packet"),
        ("loss_burst: {at: 1 s, for: 1 ms, loss: 1%}", "packet"),
        ("down: {at: 1 s, for: 1 ms}", "packet"),
    ],
)
def test_fidelity_is_chosen_for_what_events_will_do(event: str, fidelity: str, tmp_path: Path) -> None:
    assert choose_fidelity(network(tmp_path, event)) == fidelity


@pytest.mark.parametrize("changed", [SLOW, DOWN, replace(PLAIN, delay=Duration(9)), replace(SLOW, loss=DOWN.loss)])
def test_stages_are_of_the_same_kinds_before_and_after_an_event(changed: Direction) -> None:
    needs = needs_of([PLAIN, changed])
    kinds = [[stage.kind for stage in stages(way, 1500, "packet", 1, needs)] for way in (PLAIN, changed)]
    assert kinds[0] == kinds[1]


def test_what_waits_for_a_rate_that_changes_waits_in_a_tbf() -> None:
    bucket, way = stages(SLOW, 1500, "packet", 1, needs_of([PLAIN, SLOW]))
    assert isinstance(bucket, Tbf)
    assert (bucket.rate, bucket.burst, bucket.limit) == (Rate(10**9), 1538, 2**32 - 1)
    assert way == Netem(limit=NO_LIMIT, delay=Duration(2000), rate=Rate(10**9), packet_overhead=24)


WRONG = {
    "unknown kind": ("degrad: {at: 1 s}", "line 4, events[0].degrad: unknown key 'degrad': did you mean 'degrade'?"),
    "two kinds": ("{down: {}, flap: {}}", "line 4, events[0]: expected one kind of event"),
    "nothing changed": ("degrade: {at: 1 s}", "line 4, events[0].degrade: expected one of rate, delay, loss"),
    "no such link": ("down: {link: host9}", "line 4, events[0].down.link: 'host9' is none of host0, host1, host2"),
    "no such way": ("down: {way: left}", "events[0].down.way: 'left' is none of up, down"),
    "no time": ("down: {at: 5}", "events[0].down.at: '5' is not a duration"),
    "no length": ("down: {at: 1 s, for: 0 s}", "events[0].down.for: expected more than 0"),
    "a burst without end": ("loss_burst: {loss: 1%}", "events[0].loss_burst: expected 'for'"),
    "too many": ("flap: {times: 50001, down: 1 us, up: 1 us}", "events[0].flap.times: '50001' is not a whole number"),
    "too many in all": ("flap: {times: 50000, down: 1 us, up: 1 us}", "the events have more than 100000 steps"),
    "churn of too many": (
        "churn: {for: 1 s, mean_up: 1 us, mean_down: 1 us}",
        "events[0].churn: more than 100000 ups and downs",
    ),
    "no cut": ("partition: {nodes: [host0, host1, host2, switch]}", "no link joins these nodes to others"),
    "too slow": ("degrade: {rate: 800 bit}", "events[0].degrade: at 0 ns: rate 800 bit is less than 2.4 kbit"),
    "rate of no bytes": ("degrade: {rate: 12 bit}", "events[0].degrade.rate: rate 12 bit: expected a whole number"),
    "steps that fall": ("course: {steps: [{at: 2 s}, {at: 1 s}]}", "the times of the steps have to rise"),
    "period too short": ("course: {steps: [{at: 2 s}], period: 2 s}", "and to end before the period does"),
    "no steps": ("course: {steps: []}", "events[0].course: expected at least one step"),
    "no file": ("mahimahi: {file: none.up}", "line 4, events[0].mahimahi.file: can't read"),
}  # fmt: skip


@pytest.mark.parametrize(("event", "message"), WRONG.values(), ids=WRONG)
def test_the_error_names_file_line_and_key(event: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(NetworkError) as caught:
        network(tmp_path, event)
    assert str(caught.value).startswith(str(tmp_path / "net.yaml"))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("rate_trace", "0,1\n", "line 1, events[0].rate_trace.file: expected the heading"),
        ("rate_trace", "seconds,ms\n0,1\n", "line 1, events[0].rate_trace.file: '1 ms' is not a rate"),
        ("rate_trace", "seconds,mbit\n0,1\n0,2\n", "line 3: '0' is not after the time before"),
        ("rate_trace", "seconds,mbit\n0,-1\n", "line 2: '0,-1': expected a time in seconds and a value"),
        ("rate_trace", "seconds,mbit\n", "expected at least one row"),
        ("delay_trace", "seconds,ms\n0,1e9\n", "line 2: '0,1e9': expected"),
        ("mahimahi", "2\n1\n", "line 2: '1': expected milliseconds, rising"),
        ("mahimahi", "0\n", "expected at least one line of more than 0 ms"),
        ("mahimahi", "", "expected at least one line"),
    ],
)
def test_the_error_names_the_trace_and_its_line(kind: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "trace").write_text(text)
    with pytest.raises(NetworkError) as caught:
        network(tmp_path, f"{kind}: {{link: host0, file: trace}}")
    assert str(caught.value).startswith(str(tmp_path / "trace"))
    assert message in str(caught.value)


def test_a_rate_can_not_come_to_a_link_that_has_none(tmp_path: Path) -> None:
    path = tmp_path / "net.yaml"
    path.write_text("link: {rate: unlimited}\nevents: [{degrade: {link: host0, rate: 1 gbit}}]\n")
    with pytest.raises(NetworkError, match=r"line 2, events\[0\]\.degrade: at 0 ns: link 'host0' is unlimited"):
        load(path)


def test_a_probability_of_an_event_is_netems(tmp_path: Path) -> None:
    net = network(tmp_path, "loss_burst: {link: host0, way: up, at: 1 s, for: 1 ms, loss: 2%}")
    assert of(net, "host0")[0][1].loss == Event(Probability.parse("2%"))
