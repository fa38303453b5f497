from __future__ import annotations

from dataclasses import replace

import pytest

from emulator.impairments import Event
from emulator.network import load
from emulator.qdisc import Nested, Stage
from emulator.qdisc.fq import Fq
from emulator.qdisc.netem import Netem
from emulator.qdisc.red import Red
from emulator.qdisc.tbf import Tbf
from emulator.queues import Early, Queue
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


def test_queue_that_marks_does_so_where_packets_wait_less_the_packet_being_sent() -> None:
    queue = Queue(100_000, "bytes")
    bucket, wire = stages(replace(PLAIN, queue=queue), 1500, "packet", 5)
    step = Early(Size(30_000), Size(30_000), Probability(Probability.ALWAYS), ecn=True)
    marking = stages(replace(PLAIN, queue=replace(queue, early=step)), 1500, "packet", 5)
    red = Red(
        limit=Size(98_486), minimum=Size(28_486), maximum=Size(28_487), probability=Probability(1), ecn=True
    )  # of 98,486 B that can wait, it marks what finds 28,487: with the 1,514 being sent, more than 30,000
    assert marking == (Nested(bucket, red), wire)
    ramp = Early(Size(30_000), Size(60_000), Probability.parse("10%"), ecn=False)
    dropping = stages(replace(PLAIN, queue=replace(queue, early=ramp)), 1500, "packet", 5)
    red = Red(limit=Size(98_486), minimum=Size(28_486), maximum=Size(58_487), probability=ramp.probability, ecn=False)
    assert dropping == (Nested(bucket, red), wire)


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
    (wire,) = stages(PLAIN, 1500, "burst", 1)
    assert card.outer.rate == _rate(wire)  # as fast as the wire behind it, so that nothing piles up there
    assert card.inner == Fq(limit=NO_LIMIT, flow_limit=NO_LIMIT)
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


def _rate(netem: Stage) -> Rate:
    assert isinstance(netem, Netem)
    assert netem.rate is not None
    return netem.rate
