"""What a network is to a collective: who shares an island, and which links lie between two ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from emulator.network import Network
from emulator.routes import along

Way = tuple[int, ...]
"""Directions of links, by number, in the order in which a packet takes them."""


@dataclass(frozen=True, eq=False)
class Wires:
    """What lies between the members of a group. `ways[i][j]` lead from member i to j, none where they share a host; by its
    number, a direction takes `ns_per_byte` (0 where its rate is unlimited) and its `delays` in ns.

    It is hashed and compared as an object, as it is large and a `Fabric` makes one a group.
    """

    ways: tuple[tuple[Way, ...], ...]
    ns_per_byte: Sequence[float]
    delays: Sequence[int]


class Fabric:
    """A network as its ranks meet it. Where several ways are equally short, the first is taken for all: which one packets of
    a bed take is drawn there."""

    def __init__(self, network: Network) -> None:
        """Every rank that is asked for must be on a host of `network`."""
        self._network = network
        self._host = {rank: host.name for host in network.hosts for rank in host.ranks}
        self._groups: dict[tuple[int, ...], Wires] = {}

    def islands(self, ranks: Sequence[int]) -> tuple[int, ...]:
        """Which island each is on: a host with several ranks, or a machine's. Empty where one has all, or each its own."""
        where = [self._islands[self._host[rank]] for rank in ranks]
        number = {island: index for index, island in enumerate(dict.fromkeys(where))}
        return tuple(number[island] for island in where) if 1 < len(number) < len(where) else ()

    def nodes(self, ranks: Sequence[int]) -> int:
        """On how many hosts or machines they are."""
        return len({self._islands[self._host[rank]] for rank in ranks})

    def slowest_ns_per_byte(self, ranks: tuple[int, ...]) -> float:
        """Of the slowest link between any two; 0 where none has a rate."""
        wires = self.wires(ranks)
        return max((self._ns_per_byte[way] for row in wires.ways for ways in row for way in ways), default=0.0)

    def wires(self, ranks: tuple[int, ...]) -> Wires:
        """What lies between `ranks`; the same object each time."""
        if ranks not in self._groups:
            hosts = [self._host[rank] for rank in ranks]
            ways = tuple(tuple(self._ways.get((a, b), ()) for b in hosts) for a in hosts)
            self._groups[ranks] = Wires(ways, self._ns_per_byte, self._delays)
        return self._groups[ranks]

    @cached_property
    def _islands(self) -> Mapping[str, str]:
        """By host: the switch of its machine, or itself."""
        machines = {switch.name for switch in self._network.switches if switch.island}
        found = {host.name: host.name for host in self._network.hosts}
        for link in self._network.links:
            if link.a in found and link.b in machines:
                found[link.a] = link.b
            elif link.b in found and link.a in machines:
                found[link.b] = link.a
        return found

    @cached_property
    def _ways(self) -> Mapping[tuple[str, str], Way]:
        ends = {link.name: (number, link.a, link.b) for number, link in enumerate(self._network.links)}

        def way(source: str, names: tuple[str, ...]) -> Way:
            found = []
            for name in names:
                number, a, b = ends[name]
                found.append(2 * number + (source != a))
                source = b if source == a else a
            return tuple(found)

        known = along(
            self._network.shape, lambda name: (name,), lambda head, tail: (*head, *tail), lambda first, _: first
        )
        return {(source, target): way(source, names) for source, target, names in known}

    @cached_property
    def _ns_per_byte(self) -> Sequence[float]:
        rates = [way.rate for link in self._network.links for way in (link.a_to_b, link.b_to_a)]
        return [8e9 / rate if rate else 0.0 for rate in rates]

    @cached_property
    def _delays(self) -> Sequence[int]:
        return [int(way.delay) for link in self._network.links for way in (link.a_to_b, link.b_to_a)]
