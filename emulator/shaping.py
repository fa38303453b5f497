"""From one direction of a link to the qdiscs that make it.

What a link does in order, it has to do in order here as well: a packet waits in the queue, is sent at the link's
rate (lost packets too: they were on the wire), and is then delayed and lost, duplicated, corrupted or reordered. One
netem does it the other way round: it loses before it sends, a reordered packet jumps the whole queue, and its limit
counts packets that are already on their way. So one netem is exact only for a rate and a constant delay; anything
more takes two, on two devices.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from emulator.events import WAYS, direction_of, possible
from emulator.links import ETHERNET_HEADER as ETHERNET_HEADER
from emulator.links import Direction
from emulator.network import Network
from emulator.qdisc import Nested, Stage
from emulator.qdisc.fq import Fq
from emulator.qdisc.netem import Netem
from emulator.qdisc.red import Red
from emulator.qdisc.tbf import U32_MAX, Tbf
from emulator.queues import Early
from emulator.units import Probability, Rate, Size

Fidelity = Literal["packet", "burst"]
SUPER_PACKET = Size(70_000)  # 65536 bytes (GSO_LEGACY_MAX_SIZE) and the headers that the kernel counts for its segments
NO_LIMIT = 2**31 - 1  # packets; TCP's windows bound the memory long before
IN_ORDER = Rate(
    8 * 10**15
)  # a packet takes less than 1 ns, which netem cuts to 0, and a rate is what keeps netem in order


@dataclass(frozen=True, slots=True)
class Needs:
    """What a direction has at some time of a run. Its stages are chosen for that, so that an event finds qdiscs of the
    kinds and number that it needs, and changes them in place."""

    faults: bool
    delay: bool
    rate_changes: bool
    delay_changes: bool


def needs_of(directions: Sequence[Direction]) -> Needs:
    """The needs of one direction that is each of these at some time (`emulator.events.possible`)."""
    return Needs(
        faults=any(map(_has_faults, directions)),
        delay=any(way.delay for way in directions),
        rate_changes=len({way.rate for way in directions}) > 1,
        delay_changes=len({way.delay for way in directions}) > 1,
    )


def _has_faults(way: Direction) -> bool:
    return any((way.jitter, way.loss, way.reorder, way.duplicate, way.corrupt))


def stages(
    direction: Direction, mtu: int, fidelity: Fidelity, seed: int, needs: Needs | None = None
) -> tuple[Stage, ...]:
    """The qdiscs that a packet meets, first to last, each on a device of its own; none where there is nothing to do.
    `needs`: those of the direction over time, where it changes.

    `packet` needs packets of at most `mtu` bytes (offloads off): each is queued, sent with `overhead` bytes and lost
    by itself. `burst` lets GSO super-packets pass, to which netem would add the overhead once only, so the rate is
    lowered by what the overhead takes: exact for full packets; a packet of n bytes takes (n + 14) (mtu + 14 +
    overhead) / (mtu + 14) in place of n + 14 + overhead bytes, so a bare TCP ACK of 52 bytes at MTU 1500 takes 67 in
    place of 90.

    A queue in packets is a netem's limit, which counts the packet being sent as `Queue` does. A queue in bytes is a
    tbf whose bucket is one full packet, in front of a netem with the same rate: the tbf holds back what waits, the
    netem gives each packet its time on the wire; two full packets always fit. In that netem a duplicate takes its
    time as well, and a reordered packet takes none.

    A queue that marks is a red in that tbf, since that is where packets wait, whatever the delay behind it is.

    netem fixes when a packet leaves as the packet comes, so what waits in one keeps the rate it found. A direction whose
    rate changes therefore waits in a tbf too, unlimited where it has no queue: all but the packets being sent, two at
    most, leave at the new rate. (A queue in packets stays a netem's: what waits in it leaves at the rate before.)
    Where the delay changes, the netem has a rate of next to no time, which keeps packets in order.
    """
    needs = needs or needs_of([direction])
    way = Netem(
        limit=NO_LIMIT,
        delay=direction.delay,
        jitter=direction.jitter,
        delay_correlation=direction.jitter_correlation,
        distribution=direction.distribution,
        loss=direction.loss,
        reorder=direction.reorder,
        duplicate=direction.duplicate,
        corrupt=direction.corrupt,
        rate=IN_ORDER if direction.jitter or needs.delay_changes else None,
        seed=seed if needs.faults else None,
    )
    if direction.rate is None:
        return (way,) if needs.delay or needs.faults else ()
    frame = mtu + ETHERNET_HEADER
    overhead = direction.overhead if fidelity == "packet" else 0
    rate = direction.rate if fidelity == "packet" else without_overhead(direction.rate, frame, direction.overhead)
    queue = direction.queue
    in_tbf = needs.rate_changes if queue is None else queue.unit == "bytes"
    if in_tbf:
        # The packet being sent is in the netem.
        waiting = Size(max(frame, queue.limit - frame) if queue else U32_MAX)
        bucket = Tbf(rate=rate, burst=Size(frame + overhead), limit=waiting, overhead=overhead)
        early = queue.early if queue else None
        return Nested(bucket, _red(early, waiting, frame)) if early else bucket, replace(
            way, rate=rate, packet_overhead=overhead
        )
    if queue is None and not needs.faults:
        return (replace(way, rate=rate, packet_overhead=overhead),)
    wire = Netem(limit=NO_LIMIT if queue is None else queue.limit, rate=rate, packet_overhead=overhead)
    return (wire, way) if needs.delay or needs.faults else (wire,)


def _red(early: Early, limit: Size, frame: int) -> Red:
    """Red for what waits behind a packet being sent, whose room is a full one's. It spares packets below its minimum, and
    takes them from its maximum on; on the minimum of a threshold it takes one in `probability`."""
    threshold = early.minimum == early.maximum
    return Red(
        limit=limit,
        minimum=Size(early.minimum - frame),
        maximum=Size(early.maximum - frame + 1),
        probability=Probability(1) if threshold else early.probability,
        ecn=early.ecn,
    )


def rdma_nic(direction: Direction, mtu: int, fidelity: Fidelity) -> Nested | None:
    """An RDMA card: it never sends faster than its line, whatever queue the direction has, so that queue holds what switches send.
    In `packet` fidelity it sends packet by packet.
    """
    if direction.rate is None:
        return None
    frame = mtu + ETHERNET_HEADER
    rate = without_overhead(direction.rate, frame, direction.overhead)
    burst = Size(frame) if fidelity == "packet" else SUPER_PACKET
    turns = Fq(limit=NO_LIMIT, flow_limit=NO_LIMIT)
    return Nested(Tbf(rate=rate, burst=burst, limit=Size(U32_MAX)), turns)


def nic(direction: Direction, mtu: int) -> Nested | None:
    """What a machine's own network card does with the direction that leaves it, where the direction has no queue of its
    own: the card's rate, and the queue inside it.

    A card that is busy never loses a packet: the queue in front of it fills, and TCP, which is told when its bytes have
    left (TCP small queues, net/ipv4/tcp_output.c), keeps the rest. Without that the wire's unlimited queue would take
    whole windows, acknowledgements would wait behind them, and flows would stall. Flows take turns there, as in the
    queue that distributions set up (fq_codel, fq): so acknowledgements don't wait behind the host's own data.

    The bucket is one GSO super-packet: that much the wire behind it, which has the same rate, may have to queue. A
    direction with a queue is a router's, which loses; the host in front of it is then left alone.

    Where ranks share the card it is a port of their island, where packets have left their hosts long before: what TCP sends
    ahead waits here then, and flows take turns all the same.
    """
    if direction.rate is None or direction.queue is not None:
        return None
    rate = without_overhead(direction.rate, mtu + ETHERNET_HEADER, direction.overhead)
    shaper = Tbf(rate=rate, burst=SUPER_PACKET, limit=Size(U32_MAX))
    return Nested(shaper, Fq(limit=NO_LIMIT, flow_limit=NO_LIMIT))


def without_overhead(rate: Rate, frame: int, overhead: int) -> Rate:
    """The rate at which frames pass when each is followed by `overhead` bytes, to the nearest byte a second."""
    wire = frame + overhead
    return Rate(8 * max(1, (rate // 8 * frame + wire // 2) // wire))


def choose_fidelity(network: Network) -> Fidelity:
    """`packet` where it matters which packet is lost, dropped or overtaken, where a queue is finite, where an event
    changes a rate, which a super-packet under way would miss, or where a link with framing may carry packets below its MTU,
    whose framing `burst` would count too low (`stages`); `burst` elsewhere."""
    framed = [link.mtu for link in network.links if link.a_to_b.overhead or link.b_to_a.overhead]
    each = bool(framed) and max(framed) > min(link.mtu for link in network.links)
    for link in network.links:
        for way in WAYS:
            needs = needs_of(possible(link, way, network.events))
            each = each or needs.faults or needs.rate_changes or direction_of(link, way).queue is not None
    return "packet" if each or network.tcp.congestion == "dctcp" else "burst"


def derived_seed(seed: int, *what: str) -> int:
    """64 bits for what has these names, as in a link's and "up" or "down", the same on every machine."""
    digest = hashlib.sha256("/".join((str(seed), *what)).encode()).digest()
    return int.from_bytes(digest[:8], "big")
