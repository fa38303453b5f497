"""The names of a network: hosts, switches and links; and what must hold for any of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from emulator.errors import NetworkError

Ends = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Shape:
    """Names only: `links` maps a link's name to its two ends."""

    hosts: tuple[str, ...]
    switches: tuple[str, ...]
    links: Mapping[str, Ends]


def check_one_link_each(shape: Shape) -> None:
    """Hosts have one link each: a bed gives them one port. Raises NetworkError."""
    for host in shape.hosts:
        links = sum(host in ends for ends in shape.links.values())
        if links != 1:
            raise NetworkError(f"host {host} has {links} links, expected one", key="links")


def unreachable(shape: Shape) -> Ends | None:
    """The first pair of hosts with no path between them, or None. A path goes through switches only: hosts don't
    forward.

    Cost: one walk over the switches, then one look at each host.
    """
    neighbours: dict[str, set[str]] = defaultdict(set)
    for a, b in shape.links.values():
        neighbours[a].add(b)
        neighbours[b].add(a)
    island: dict[str, int] = {}
    for switch in shape.switches:
        if switch not in island:
            _mark(switch, len(island), neighbours, frozenset(shape.switches), island)
    islands = {host: {island[name] for name in neighbours[host] if name in island} for host in shape.hosts}
    if shape.hosts and set.intersection(*islands.values()):
        return None
    for index, a in enumerate(shape.hosts):
        for b in shape.hosts[index + 1 :]:
            if b not in neighbours[a] and not islands[a] & islands[b]:
                return a, b
    return None


def _mark(
    start: str, number: int, neighbours: Mapping[str, set[str]], switches: frozenset[str], island: dict[str, int]
) -> None:
    """Give every switch that `start` reaches through switches the island's number."""
    todo = [start]
    while todo:
        switch = todo.pop()
        if switch not in island:
            island[switch] = number
            todo.extend(neighbours[switch] & switches)
