"""The profiles: that they are all there, say what they should, and say from where."""

from __future__ import annotations

import pytest

from emulator.network import from_dict, load, profiles, to_dict
from emulator.queues import Queue
from emulator.units import Duration, Rate

# One-way, host to host, over the two links of a star. The WAN ones are half of a measured RTT, in notes on regions.
PROFILES = {
    "ethernet-1g": ("1 gbit", "10 us", 1500, "tcp"),
    "ethernet-10g": ("10 gbit", "4 us", 1500, "tcp"),
    "ethernet-25g": ("25 gbit", "2 us", 1500, "tcp"),
    "ethernet-40g": ("40 gbit", "2 us", 1500, "tcp"),
    "ethernet-100g": ("100 gbit", "1 us", 1500, "tcp"),
    "ethernet-200g": ("200 gbit", "1 us", 1500, "tcp"),
    "ethernet-400g": ("400 gbit", "1 us", 1500, "tcp"),
    "roce-25": ("25 gbit", "300 ns", 4140, "rdma"),
    "roce-100": ("100 gbit", "300 ns", 4140, "rdma"),
    "roce-200": ("200 gbit", "300 ns", 4140, "rdma"),
    "roce-400": ("400 gbit", "300 ns", 4140, "rdma"),
    "ib-edr": ("100 gbit", "200 ns", 4096, "rdma"),
    "ib-hdr": ("200 gbit", "200 ns", 4096, "rdma"),
    "ib-ndr": ("400 gbit", "200 ns", 4096, "rdma"),
    "ipoib-100": ("100 gbit", "200 ns", 2044, "tcp"),
    "cloud-25": ("25 gbit", "50 us", 9001, "tcp"),
    "wan-continental": ("1 gbit", "36.35 ms", 1500, "tcp"),
    "wan-transatlantic": ("1 gbit", "40.3 ms", 1500, "tcp"),
    "nvlink-a100": ("1.92 tbit", "470 ns", 65520, "rdma"),
    "nvlink-h100": ("2966.4 gbit", "470 ns", 65520, "rdma"),
    "pcie-3": ("96 gbit", "1 us", 65520, "rdma"),
    "pcie-4": ("192 gbit", "1 us", 65520, "rdma"),
}


@pytest.mark.parametrize("name", PROFILES)
def test_profiles(name: str) -> None:
    rate, one_way, mtu, transport = PROFILES[name]
    network = load(name)
    assert network.links[0].a_to_b.rate == Rate.parse(rate)
    assert network.links[0].a_to_b.delay + network.links[1].b_to_a.delay == Duration.parse(one_way)
    assert (network.links[0].mtu, network.transport) == (mtu, transport)
    assert from_dict(to_dict(network)) == network


def test_each_profile_has_a_source_and_is_tested() -> None:
    assert set(profiles()) == set(PROFILES)
    for profile in profiles().values():
        settings = profile.mapping()
        source = settings["source"].scalar().lower()
        for part in ("link", "costs"):
            for key in settings[part].mapping() if part in settings else ():
                assert key in source or key == "overhead", (source, key)


def test_one_that_starts_from_another_changes_only_what_it_says() -> None:
    slow, fast = load("roce-25"), load("roce-100")
    assert (slow.rdma, slow.costs, slow.links[0].mtu) == (fast.rdma, fast.costs, fast.links[0].mtu)
    assert slow.rdma.lossless
    assert load("ib-ndr").rdma.congestion == "none"
    assert load("roce-400", overrides={"transport": "tcp"}).transport == "tcp"


def test_a_message_takes_what_was_measured_from_host_to_host() -> None:
    """Two links and the hosts: ib_send_lat and sockperf, as the profiles say."""
    for name, measured in (("roce-100", "830 ns"), ("ib-edr", "830 ns"), ("ethernet-10g", "17.8 us")):
        network = load(name)
        assert 2 * network.links[0].a_to_b.delay + network.costs.message == Duration.parse(measured)


def test_wan_queue_holds_one_rtt_of_the_rate() -> None:
    for name in ("wan-continental", "wan-transatlantic"):
        way = load(name).links[0].a_to_b
        assert way.rate
        assert way.queue == Queue(way.rate // 8 * 4 * way.delay // 10**9, "bytes")
