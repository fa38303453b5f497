"""What links could carry, and how much of it they did. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise, takewhile

from emulator.beds.bed import LinkCounters
from emulator.events import WAYS, Way, direction_of, timeline
from emulator.network import Network
from emulator.units import Rate

Direction = tuple[str, Way]


def rates(network: Network, until_ns: int) -> dict[Direction, list[tuple[int, Rate | None]]]:
    """From when on each direction of each link has which rate, None being unlimited, until `until_ns` after the start."""
    found: dict[Direction, list[tuple[int, Rate | None]]] = {
        (link.name, way): [(0, direction_of(link, way).rate)] for link in network.links for way in WAYS
    }
    for change in takewhile(lambda change: change.at < until_ns, timeline(network.links, network.events)):
        found[change.link, change.way].append((change.at, change.direction.rate))
    return found


def utilisation(network: Network, counters: Iterable[LinkCounters], until_ns: int) -> list[float | None]:
    """For each direction, the bits that it carried, with what the wire adds to a packet, over those that it could have until
    `until_ns`; None where its rate was unlimited. What went over it before the start, as connections were made, is in it.
    """
    links = {link.name: link for link in network.links}
    over_time = rates(network, until_ns)
    found: list[float | None] = []
    for each in counters:
        way: Way = "up" if each.source == links[each.link].a else "down"
        steps = [*over_time[each.link, way], (until_ns, None)]
        could = sum(math.inf if rate is None else rate * (end - at) / 1e9 for (at, rate), (end, _) in pairwise(steps))
        bits = 8 * (each.bytes + each.packets * direction_of(links[each.link], way).overhead)
        found.append(round(bits / could, 6) if 0 < could < math.inf else None)
    return found
