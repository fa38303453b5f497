"""What a rank's connections need to know of the network: window, timer, credit, from its links."""

from __future__ import annotations

import math
from dataclasses import dataclass

from emulator.errors import NetworkError
from emulator.links import ETHERNET_HEADER, Direction, Link
from emulator.network import Network
from emulator.routes import along
from emulator.shaping import Fidelity
from emulator.transport import Recovery
from replay.transports.rdma.packets import HEADER_BYTES, IP_UDP_BYTES

PAYLOAD = 4096
"""The largest payload of a packet, the most that InfiniBand and RoCE have (IBTA)."""
TRAIN_BYTES = 65_507
"""What UDP takes in one call, which is then cut into packets (UDP_SEGMENT, udp(7))."""
_TICK_NS, _LEAST_RETRY_NS = 4_096, 320_000
_UNLIMITED_WINDOW = 16 << 20


@dataclass(frozen=True, slots=True)
class RdmaOptions:
    """`window`: bytes under way on a connection at most; `credit`: on all of a rank's together, where the fabric is
    lossless, else 0; `retry_ns`: as `Limits`; `line`: bit/s of the fastest link; `dcqcn`: whether marks slow senders down;
    `trains`: packets may stay together on their way (fidelity `burst`).
    """

    recovery: Recovery
    dcqcn: bool
    window: int
    credit: int
    retry_ns: int
    line: float
    trains: bool


def rdma_options(network: Network, fidelity: Fidelity) -> RdmaOptions:
    """The options for every rank of `network`.

    The window is one BDP of the path that has most: its rate times a round trip in which a packet (a train, in bursts) is
    sent anew on each link and the acknowledgement waits for one, and a quarter more, which is how often one is asked for. The
    timer is that of IRN (SIGCOMM 2018, section 4.1), 320 us, or what a queue with a window of every rank takes, in InfiniBand's
    steps of 4.096 us times a power of two. The credit is one window, so that one connection can use it up, or a
    rank's share of the smallest queue.

    Raises:
        NetworkError: lossless, but a queue is too small to hold a packet of every host.
    """
    trains = fidelity == "burst"
    ways = {link.name: _way(link, trains) for link in network.links}
    paths = along(
        network.shape,
        ways.__getitem__,
        lambda one, other: (min(one[0], other[0]), one[1] + other[1]),
        lambda one, other: (max(one[0], other[0]), max(one[1], other[1])),
    )
    found = [(rate, trip) for *_, (rate, trip) in paths]
    trip = max((trip for _, trip in found), default=0.0)
    limited = [rate * trip / 8e9 for rate, trip in found if rate < math.inf]
    window = int(max(limited) * 5 / 4) if len(limited) == len(found) and limited else _UNLIMITED_WINDOW
    ranks = sum(len(host.ranks) for host in network.hosts)
    retry = _TICK_NS
    while retry < max(_LEAST_RETRY_NS, ranks * trip):
        retry *= 2
    rates = [float(rate) for link in network.links for rate in (link.a_to_b.rate, link.b_to_a.rate) if rate]
    return RdmaOptions(
        recovery=network.rdma.recovery,
        dcqcn=network.rdma.congestion == "dcqcn",
        window=window,
        credit=_credit(network, window) if network.rdma.lossless else 0,
        retry_ns=retry,
        line=max(rates, default=8e12),
        trains=trains,
    )


def _way(link: Link, trains: bool) -> tuple[float, float]:
    """A link's rate (bit/s), and what it adds to a round trip (ns)."""
    both = (link.a_to_b, link.b_to_a)
    rate = min(math.inf if way.rate is None else float(way.rate) for way in both)
    return rate, sum(_passage(way, link.mtu, trains) for way in both)


def _passage(way: Direction, mtu: int, trains: bool) -> float:
    packet = min(mtu, PAYLOAD + HEADER_BYTES + IP_UDP_BYTES) + ETHERNET_HEADER + way.overhead
    size = (
        TRAIN_BYTES + packet if trains else 3 * packet
    )  # its own, one that it meets, and one that the card lets go first
    return way.delay + way.jitter + (0.0 if way.rate is None else size * 8e9 / way.rate)


def _credit(network: Network, window: int) -> int:
    """Bytes that a rank may have in the network, so that no queue overflows whoever sends where."""
    limits = [
        (way.queue.limit * (link.mtu + ETHERNET_HEADER if way.queue.unit == "packets" else 1), link)
        for link in network.links
        for way in (link.a_to_b, link.b_to_a)
        if way.queue is not None
    ]
    if not limits:
        return window
    least, link = min(limits, key=lambda limit: limit[0])
    senders = max(1, sum(len(host.ranks) for host in network.hosts) - 1)
    share = least // senders
    packet = link.mtu + ETHERNET_HEADER
    if share < packet:
        raise NetworkError(
            f"rdma is lossless, but the queue of link {link.name}, {least} B, can't hold a packet of each of {senders} senders: "
            f"expected at least {senders * packet} B, or a queue without limit"
        )
    return min(window, share)
