"""Filters at somebody else's device: whose they are, and that only those are taken away."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from ipaddress import ip_address
from typing import TYPE_CHECKING

import pytest

from emulator import steering
from emulator.errors import BedError
from emulator.namespace import inside

if TYPE_CHECKING:
    from pyroute2 import IPRoute

OURS, THEIRS = 7, 8

pytestmark = pytest.mark.root


@pytest.fixture
def port(netns_root: IPRoute) -> Iterator[int]:
    """A device of a namespace in which this thread is, with filters of OURS for an address of each IP version."""
    netns_root.link("add", ifname="port", kind="veth", peer={"ifname": "away"})
    (index,) = netns_root.link_lookup(ifname="port")
    (away,) = netns_root.link_lookup(ifname="away")
    netns_root.link("set", index=index, txqlen=0)
    with inside(f"tracebed-test-{os.getpid()}"):
        steering.open_ingress(netns_root, index)
        for address in ("10.8.0.2", "fd00::2"):
            steering.redirect(netns_root, index, away, ip_address(address), owner=OURS)
        yield index


def tc(*arguments: str) -> str:
    return subprocess.run(["tc", *arguments], check=True, capture_output=True, text=True).stdout


def test_a_filter_is_for_the_whole_address_and_says_whose_it_is(netns_root: IPRoute, port: int) -> None:
    said = tc("filter", "show", "dev", "port", "ingress")
    matches = [line.split()[1] for line in said.splitlines() if "match" in line]
    assert matches == [
        "0a080002/ffffffff",
        "fd000000/ffffffff",
        "00000000/ffffffff",
        "00000000/ffffffff",
        "00000002/ffffffff",
    ]
    assert said.count("Egress Redirect to device away") == 2
    assert steering.owners(netns_root, port) == {OURS}
    assert steering.others(netns_root, port) == ""


def test_the_owners_filters_are_taken_and_the_queue_length_is_as_before(netns_root: IPRoute, port: int) -> None:
    assert steering.queue_length(netns_root, port) == 1000  # qdisc_create's doing
    assert steering.remove_from(port, "port", 0, OURS)
    assert "ingress" not in tc("qdisc", "show", "dev", "port")
    assert steering.queue_length(netns_root, port) == 0
    assert not steering.remove_from(port, "port", 0, OURS)


def test_filters_of_another_owner_or_device_stay(netns_root: IPRoute, port: int) -> None:
    assert not steering.remove_from(port, "port", 0, THEIRS)
    assert not steering.remove_from(port, "other", 0, OURS)
    assert not steering.remove_from(port + 100, "port", 0, OURS)
    assert steering.owners(netns_root, port) == {OURS}


def test_what_somebody_added_to_our_ingress_stays(netns_root: IPRoute, port: int) -> None:
    tc("filter", "add", "dev", "port", "ingress", "prio", "1", "u32", "match", "u32", "0", "0", "classid", "1:1")
    assert steering.remove_from(port, "port", 0, OURS)
    said = tc("filter", "show", "dev", "port", "ingress")
    assert "pref 1 " in said
    assert "mirred" not in said
    assert steering.others(netns_root, port) == "ingress"


def test_an_ingress_that_is_taken_is_refused(netns_root: IPRoute, port: int) -> None:
    with pytest.raises(BedError, match=f"device {port}: can't redirect what comes in: File exists"):
        steering.open_ingress(netns_root, port)
