"""When a host sends which bytes of a network's background traffic: decided before anything is sent, by the network alone.

Each entry has random numbers of its own for each source, from the network's seed.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from random import Random
from statistics import fmean
from typing import NamedTuple

from emulator.draws import exponential, lognormal, pareto
from emulator.events import direction_of
from emulator.links import ETHERNET_HEADER
from emulator.network import Network
from emulator.routes import path_mtus
from emulator.shaping import derived_seed
from emulator.traffic import Constant, HeavyTailed, Incast, Lognormal, OnOff, Pareto, Traffic, Transport

HEADERS: dict[Transport, int] = {"udp": 28, "tcp": 52}
"""Bytes of IP and UDP, and of IP and TCP with timestamps (RFC 791, 768, 9293, 7323)."""
_NEVER = 2**63


class Piece(NamedTuple):
    """From `at` ns after Go on, `nbytes` of a flow are to be sent to a host; `ends`: nothing of this flow comes after them.

    A piece of UDP is one packet. Flows are numbered for each entry, source and target.
    """

    at: int
    entry: int
    target: str
    flow: int
    nbytes: int
    ends: bool


@dataclass(frozen=True, slots=True)
class _Source:
    """A host as an entry's source, with the number of the entry and the host's link towards the network. `mtus`: the
    largest packet to each target."""

    traffic: Traffic
    entry: int
    host: str
    mtus: Mapping[str, int]
    overhead: int
    line_rate: int | None
    seed: int

    def payload(self, target: str) -> int:
        return self.mtus[target] - HEADERS[self.traffic.transport]

    def wire(self, target: str) -> int:
        """Bytes that a full packet takes on the host's link."""
        return self.mtus[target] + ETHERNET_HEADER + self.overhead

    @property
    def end(self) -> int:
        return _NEVER if self.traffic.length is None else self.traffic.at + self.traffic.length

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(target for target in self.traffic.targets if target != self.host)

    def draws(self, *what: str) -> Random:
        return Random(derived_seed(self.seed, "traffic", str(self.entry), self.host, *what))


def pieces(network: Network, host: str) -> Iterator[Piece]:
    """Everything that a host is to send, in order of time: without end where an entry has none."""
    streams = []
    narrow = _narrow(network, host)
    for entry, traffic in enumerate(network.traffic):
        if host in traffic.sources:
            link = next(link for link in network.links if host in (link.a, link.b))
            way = direction_of(link, "up" if link.a == host else "down")
            mtus = {target: narrow.get(target, link.mtu) for target in traffic.targets}
            source = _Source(traffic, entry, host, mtus, way.overhead, way.rate, network.seed)
            streams.append(_pieces(source))
    return heapq.merge(*streams)


def _narrow(network: Network, host: str) -> Mapping[str, int]:
    """The largest packet from a host to each other; none where that is the MTU of every link."""
    of = {link.name: link.mtu for link in network.links}
    return path_mtus(network.shape, of.__getitem__)[host] if len(set(of.values())) > 1 else {}


def _pieces(source: _Source) -> Iterator[Piece]:
    pattern = source.traffic.pattern
    if isinstance(pattern, Constant):
        return heapq.merge(*(_constant(source, pattern, target) for target in source.targets))
    if isinstance(pattern, OnOff):
        return heapq.merge(*(_on_off(source, pattern, target) for target in source.targets))
    flows = _incast(source, pattern) if isinstance(pattern, Incast) else _heavy_tailed(source, pattern)
    return flows if source.traffic.transport == "tcp" else _in_packets(source, flows)


def _constant(source: _Source, pattern: Constant, target: str) -> Iterator[Piece]:
    for at in _paced(source.wire(target), pattern.rate, source.traffic.at, source.end):
        yield Piece(at, source.entry, target, 0, source.payload(target), False)


def _on_off(source: _Source, pattern: OnOff, target: str) -> Iterator[Piece]:
    """The times on and off follow each other without a gap, the first one on; each begins a packet anew."""
    draws = source.draws(target)
    on: int = source.traffic.at
    while on < source.end:
        lengths: list[int] = [pattern.on, pattern.off]
        if pattern.times == "exponential":
            lengths = [exponential(draws, mean) for mean in lengths]
        for at in _paced(source.wire(target), pattern.rate, on, min(on + lengths[0], source.end)):
            yield Piece(at, source.entry, target, 0, source.payload(target), False)
        on += sum(lengths)


def _heavy_tailed(source: _Source, pattern: HeavyTailed) -> Iterator[Piece]:
    draws = source.draws()
    numbers = dict.fromkeys(source.targets, 0)
    spread = fmean(source.wire(target) / source.payload(target) for target in source.targets)
    gap = pattern.sizes.mean * spread * 8 * 10**9 / pattern.rate
    at: int = source.traffic.at
    while (at := at + exponential(draws, gap)) < source.end:
        target = draws.choice(source.targets)
        yield Piece(at, source.entry, target, numbers[target], _size(draws, pattern.sizes), True)
        numbers[target] += 1


def _size(draws: Random, sizes: Pareto | Lognormal) -> int:
    if isinstance(sizes, Pareto):
        return pareto(draws, sizes.shape, sizes.mean)
    return lognormal(draws, sizes.sigma, sizes.mean)


def _incast(source: _Source, pattern: Incast) -> Iterator[Piece]:
    for flow in count():
        at = source.traffic.at + flow * pattern.every
        if at >= source.end:
            return
        for target in source.targets:
            yield Piece(at, source.entry, target, flow, pattern.size, True)


def _paced(wire: int, rate: int, start: int, end: int) -> Iterator[int]:
    """When each packet of `wire` bytes begins that has begun before `end`, cut to the nanosecond."""
    for number in count():
        at = start + number * wire * 8 * 10**9 // rate
        if at >= end:
            return
        yield at


def _in_packets(source: _Source, flows: Iterator[Piece]) -> Iterator[Piece]:
    """Each flow packet by packet at its link's rate, at once where the link has none; flows that overlap side by side."""
    under_way: list[Piece] = []  # each with the bytes that are left of it
    coming = next(flows, None)
    while under_way or coming is not None:
        if coming is not None and (not under_way or coming < under_way[0]):
            heapq.heappush(under_way, coming)
            coming = next(flows, None)
            continue
        piece = under_way[0]
        payload = source.payload(piece.target)
        left = piece.nbytes - payload
        yield piece._replace(nbytes=min(piece.nbytes, payload), ends=left <= 0)
        if left > 0:
            gap = source.wire(piece.target) * 8 * 10**9 // source.line_rate if source.line_rate else 0
            heapq.heapreplace(under_way, piece._replace(at=piece.at + gap, nbytes=left))
        else:
            heapq.heappop(under_way)
