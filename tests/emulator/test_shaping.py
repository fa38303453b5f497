from __future__ import annotations

from dataclasses import replace

import pytest

from emulator.impairments import Event
from emulator.links import Queue
from emulator.network import load
from emulator.qdisc import Qdisc
from emulator.qdisc.netem import Netem
from emulator.qdisc.tbf import Tbf
from emulator.shaping import IN_ORDER, NO_LIMIT, choose_fidelity, derived_seed, nic, stages
from emulator.units import Duration, Probability, Rate, Size

PLAIN = load("ethernet-10g").links[0].a_to_b  # 10 gbit, 2 us
LOSSY = replace(PLAIN, loss=Event(Probability.parse("1%")))
DELAY_ONLY = replace(PLAIN, rate=None)


def test_rate_and_constant_delay_are_one_netem() -> None:
    expected = Netem(limit=NO_LIMIT, delay=Duration(2000), rate=Rate(10**10), packet_overhead=24)
    assert stages(PLAIN, 1500, "packet", 1) == (expected,)


def test_packet_time_on_the_wire_is_that_of_all_its_bytes() -> None:
    # 1538 bytes of a full packet: 1230.4 ns at 10 Gbit/s, 123 at 100 (Brouer, LCA 2015).
    (netem,) = stages(PLAIN, 1500, "packet", 1)
    assert (1514 + netem.packet_overhead) * 8 * 10**9 // _rate(netem) == 1230
    (netem,) = stages(replace(PLAIN, rate=Rate(10**11)), 1500, "packet", 1)
    assert (1514 + netem.packet_overhead) * 8 * 10**9 // _rate(netem) == 123


@pytest.mark.parametrize("mtu", [1500, 9000])
def test_burst_takes_as_long_for_full_packets(mtu: int) -> None:
    (netem,) = stages(PLAIN, mtu, "burst", 1)
    assert netem.packet_overhead == 0
    packets = 44
    taken = packets * (mtu + 14) * 8 * 10**9 / _rate(netem)
    assert taken == pytest.approx(packets * (mtu + 38) * 8 * 10**9 / 10**10, rel=1e-9)


def test_faults_come_after_the_wire_and_have_the_seed() -> None:
    wire, way = stages(LOSSY, 1500, "packet", 5)
    assert wire == Netem(limit=NO_LIMIT, rate=Rate(10**10), packet_overhead=24)
    assert way == Netem(limit=NO_LIMIT, delay=Duration(2000), loss=LOSSY.loss, seed=5)


def test_queue_in_packets_is_the_wires_limit_and_the_way_never_drops() -> None:
    wire, way = stages(replace(PLAIN, queue=Queue(100, "packets")), 1500, "packet", 1)
    assert wire == Netem(limit=100, rate=Rate(10**10), packet_overhead=24)
    assert way == Netem(limit=NO_LIMIT, delay=Duration(2000))


def test_queue_in_bytes_waits_in_a_tbf_less_the_packet_being_sent() -> None:
    bucket, wire = stages(replace(LOSSY, queue=Queue(100_000, "bytes")), 1500, "packet", 5)
    assert bucket == Tbf(rate=Rate(10**10), burst=Size(1538), limit=Size(100_000 - 1514), overhead=24)
    assert wire == replace(stages(LOSSY, 1500, "packet", 5)[1], rate=Rate(10**10), packet_overhead=24)
    (tight, _) = stages(replace(PLAIN, queue=Queue(1514, "bytes")), 1500, "packet", 5)
    assert isinstance(tight, Tbf)
    assert tight.limit == 1514


def test_queue_without_delay_is_one_stage() -> None:
    (wire,) = stages(replace(PLAIN, delay=Duration(0), queue=Queue(9, "packets")), 1500, "packet", 1)
    assert wire == Netem(limit=9, rate=Rate(10**10), packet_overhead=24)


@pytest.mark.parametrize("field", ["reorder", "duplicate", "corrupt"])
def test_each_fault_is_passed_on(field: str) -> None:
    event = Event(Probability(3), Probability(4))
    way = stages(replace(PLAIN, **{field: event}), 1500, "packet", 1)[-1]
    assert getattr(way, field) == event


def test_jitter_keeps_packets_in_order() -> None:
    jittery = replace(PLAIN, jitter=Duration(500), distribution="normal", jitter_correlation=Probability(9))
    way = stages(jittery, 1500, "packet", 1)[-1]
    assert way == Netem(
        limit=NO_LIMIT, delay=Duration(2000), jitter=Duration(500), delay_correlation=Probability(9),
        distribution="normal", rate=IN_ORDER, seed=1,
    )  # fmt: skip
    # netem cuts (bytes * 10^9) / (bytes a second) to whole ns: nothing, for the largest super-packet of 512 KiB.
    assert 2**19 * 10**9 // (IN_ORDER // 8) == 0


def test_unlimited_rate_has_only_the_way() -> None:
    assert stages(DELAY_ONLY, 1500, "burst", 1) == (Netem(limit=NO_LIMIT, delay=Duration(2000)),)
    assert stages(replace(DELAY_ONLY, delay=Duration(0)), 1500, "burst", 1) == ()


def test_a_card_holds_back_only_where_nothing_else_queues() -> None:
    card = nic(PLAIN, 1500)
    assert card is not None
    shaper, queue = card
    (wire,) = stages(PLAIN, 1500, "burst", 1)
    assert shaper.rate == _rate(wire)  # as fast as the wire behind it, so that nothing piles up there
    assert queue.limit == queue.flow_limit == NO_LIMIT
    assert nic(replace(PLAIN, queue=Queue(100, "packets")), 1500) is None
    assert nic(DELAY_ONLY, 1500) is None


@pytest.mark.parametrize(
    ("overrides", "fidelity"),
    [
        ({}, "burst"),
        ({"links.host1.down.loss": "0.1%"}, "packet"),
        ({"link.queue": "1 MiB"}, "packet"),
        ({"link.jitter": "1 us"}, "packet"),
        ({"link.reorder": "1%"}, "packet"),
        ({"link.duplicate": "1%"}, "packet"),
        ({"link.corrupt": "1%"}, "packet"),
        ({"tcp.congestion": "dctcp"}, "packet"),
        ({"tcp.congestion": "bbr", "link.delay": "9 ms"}, "burst"),
    ],
)
def test_fidelity(overrides: dict[str, str], fidelity: str) -> None:
    assert choose_fidelity(load("ethernet-10g", overrides=overrides)) == fidelity


def test_each_direction_has_its_own_seed_the_same_everywhere() -> None:
    seeds = {derived_seed(seed, link, way) for seed in (1, 2) for link in ("a", "b") for way in ("up", "down")}
    assert len(seeds) == 8
    # sha256("1/host0/up"), the first eight bytes, by sha256sum.
    assert derived_seed(1, "host0", "up") == 0x9D42D1F108E0448C


def _rate(netem: Qdisc) -> Rate:
    assert isinstance(netem, Netem)
    assert netem.rate is not None
    return netem.rate
