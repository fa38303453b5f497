"""How long a bed takes to come up and to go, a host, beside Mininet 2.3: a star of hosts whose links have a rate of
100 Mbit/s each way, as a token bucket (tbf), which any kernel has.

Both are counted from the first system call until every name, link and namespace is gone from the kernel, not just until
the call returns. Each has two qdiscs a link; ours has twice the devices, for its links are boxes in the middle, reads each
qdisc back and answers from every host before it goes. Rounds alternate. Needs root.
"""
# Debian packages: iproute2 ethtool bridge-utils mininet

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from emulator import qdisc, wire
from emulator.beds.netns import NetnsBed
from emulator.ledger import Ledger
from emulator.namespace import FOLDER, inside
from emulator.netlink import Netlink
from emulator.network import from_dict
from emulator.qdisc.tbf import Tbf
from emulator.units import Rate, Size

SHAPER = Tbf(rate=Rate(100_000_000), burst=Size(15_000), limit=Size(1_000_000))
PORT = 5001
PATIENCE_S = 5.0
MININET = """
import sys, time
from mininet.link import TCLink
from mininet.net import Mininet
from mininet.nodelib import LinuxBridge
from mininet.topo import SingleSwitchTopo
begun = time.monotonic()
topology = SingleSwitchTopo(int(sys.argv[1]), lopts={"bw": 100, "use_tbf": True, "latency_ms": 80})
net = Mininet(topology, switch=LinuxBridge, link=TCLink, controller=None)
net.start()
up = time.monotonic()
print(f"up {up - begun}", flush=True)
sys.stdin.readline()
net.stop()
"""


@dataclass(frozen=True)
class Took:
    """Seconds for `hosts` hosts."""

    hosts: int
    up: float
    probed: float | None
    down: float


def tracebed(hosts: int) -> Took:
    """A bed up, each host asked by another, and down."""
    names = [f"h{number}" for number in range(hosts)]
    links = {name: {"ends": [name, "switch"], "rate": "unlimited"} for name in names}
    network = from_dict({"hosts": names, "switches": ["switch"], "links": links})
    before = seen()
    begun = time.monotonic()
    with Ledger(f"bench-{os.getpid()}") as own:
        bed = NetnsBed(network, own, fidelity="packet")
        with inside(bed.namespace("wires")), Netlink() as netlink:
            for number in range(hosts):
                for port in (f"w{number}a", f"w{number}b"):
                    qdisc.install(netlink, wire.device(netlink, port), SHAPER)
        up = time.monotonic()
        probe(bed, names)
        probed = time.monotonic()
        bed.close()
    until_gone(before)
    return Took(hosts, up - begun, probed - up, time.monotonic() - probed)


def probe(bed: NetnsBed, names: list[str]) -> None:
    """A datagram from each host to the next one must arrive."""
    with ExitStack() as opened:
        ends = {}
        for name in names:
            with inside(bed.namespace(name)):
                ends[name] = opened.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            ends[name].bind((bed.address(name), PORT))
            ends[name].settimeout(PATIENCE_S)
        for name, following in zip(names, names[1:] + names[:1], strict=True):
            ends[name].sendto(name.encode(), (bed.address(following), PORT))
            assert ends[following].recvfrom(64) == (name.encode(), (bed.address(name), PORT))


def mininet(hosts: int) -> Took:
    """The same of Mininet; its Python is Debian's."""
    before = seen()
    command = ["/usr/bin/python3", "-c", MININET, str(hosts)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as run:
        assert run.stdin is not None
        assert run.stdout is not None
        up = next(float(line.split()[1]) for line in run.stdout if line.startswith("up "))
        begun = time.monotonic()
        run.stdin.write("\n")
        run.stdin.close()
        run.stdout.read()
    until_gone(before)
    return Took(hosts, up, None, time.monotonic() - begun)


def seen() -> tuple[frozenset[str], frozenset[str]]:
    """The links of this machine and the names of its namespaces."""
    names = os.listdir(FOLDER) if FOLDER.exists() else []
    return frozenset(os.listdir("/sys/class/net")), frozenset(names)


def until_gone(before: tuple[frozenset[str], frozenset[str]]) -> None:
    """Wait until nothing is there that was not there before, and the kernel has taken its namespaces apart.

    It does that in the background, one batch after the other (cleanup_net in net/core/net_namespace.c): once a namespace
    that was dropped last is gone, with the device whose peer is here, all that were dropped before it are gone too.
    """
    marker = f"gone{os.getpid()}"[:15]
    subprocess.run(["ip", "netns", "add", marker], check=True)
    link = ["ip", "link", "add", marker, "type", "veth", "peer", "name", "x", "netns", marker]
    subprocess.run(link, check=True)
    subprocess.run(["ip", "netns", "del", marker], check=True)
    while seen() != before:
        time.sleep(0.002)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, default=256, help="hosts of the bed")
    parser.add_argument(
        "--mininet-hosts", type=int, default=64, help="hosts of Mininet's network, and of ours beside it"
    )
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    before = seen()
    show = "{:<10} {:>6} {:>8} {:>9} {:>8} {:>11} {:>13}".format
    print(show("", "hosts", "up s", "probed s", "down s", "up ms/host", "down ms/host"))

    def measure(name: str, of: Callable[[int], Took], hosts: int) -> float:
        took = of(hosts)
        asked = "-" if took.probed is None else f"{took.probed:.2f}"
        up, down = (1000 * part / hosts for part in (took.up, took.down))
        print(show(name, hosts, f"{took.up:.2f}", asked, f"{took.down:.2f}", f"{up:.1f}", f"{down:.1f}"), flush=True)
        return up + down

    measure("tracebed", tracebed, chosen.hosts)
    rounds = [
        (measure("tracebed", tracebed, chosen.mininet_hosts), measure("mininet", mininet, chosen.mininet_hosts))
        for _ in range(chosen.rounds)
    ]
    ours, theirs = (statistics.median(column) for column in zip(*rounds, strict=True))
    print(
        f"up and down, a shaped host, median of {chosen.rounds}: tracebed {ours:.1f} ms, Mininet {theirs:.1f} ms: {theirs / ours:.1f} times"
    )
    assert seen() == before, "something was left"
    assert not list(Path("/run/tracebed").glob(f"*bench-{os.getpid()}*"))


main()
