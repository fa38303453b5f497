"""Which way a packet goes: the shortest paths, counted in links, of which a switch takes all that are equally short."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from operator import add
from typing import TypeVar

from emulator.shape import Shape

Hops = Mapping[str, tuple[str, ...]]
T = TypeVar("T")


def routes(shape: Shape) -> Mapping[str, Hops]:
    """For each host, and each switch that reaches it: the links out of that switch that begin a shortest path to the host.

    The links are in the order of `shape.links`. A switch comes after those that its paths lead through. Hosts don't
    forward. Cost: hosts x links.
    """
    ports: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for link, (a, b) in shape.links.items():
        ports[a].append((link, b))
        ports[b].append((link, a))
    switches = frozenset(shape.switches)
    return {host: _towards(host, ports, switches) for host in shape.hosts}


def _towards(host: str, ports: Mapping[str, list[tuple[str, str]]], switches: frozenset[str]) -> Hops:
    """A breadth-first search from the host."""
    distance = {host: 0}
    reached = [host]
    for node in reached:
        for _, neighbour in ports[node]:
            if neighbour in switches and neighbour not in distance:
                distance[neighbour] = distance[node] + 1
                reached.append(neighbour)
    return {
        node: tuple(link for link, neighbour in ports[node] if distance.get(neighbour) == distance[node] - 1)
        for node in reached[1:]
    }


def along(
    shape: Shape, link: Callable[[str], T], then: Callable[[T, T], T], either: Callable[[T, T], T]
) -> Iterator[tuple[str, str, T]]:
    """What the way from each host to each other comes to: from, to, and `link` of each link on it, by name, joined by `then`;
    what equally short ways come to is joined by `either`. A host has one link.

    Cost: hosts x (hosts + links).
    """
    hosts = frozenset(shape.hosts)
    homes = {node: name for name, ends in shape.links.items() for node in ends if node in hosts}
    for target, hops in routes(shape).items():
        found: dict[str, T] = {}

        def onward(name: str, node: str, target: str = target, found: Mapping[str, T] = found) -> T:
            after = _across(shape, name, node)
            return link(name) if after == target else then(link(name), found[after])

        for switch, names in hops.items():
            found[switch] = reduce(either, [onward(name, switch) for name in names])
        for source, home in homes.items():
            if source != target:
                yield source, target, onward(home, source)


def longest(shape: Shape, length: Callable[[str], int]) -> int:
    """The length of the longest route between two hosts; `length` of a link, by its name, in any unit."""
    return max((found for *_, found in along(shape, length, add, max)), default=0)


def path_mtus(shape: Shape, mtu: Callable[[str], int]) -> Mapping[str, Mapping[str, int]]:
    """For each host and each other, the largest packet that fits through every way there; `mtu` of a link, in bytes."""
    fits: dict[str, dict[str, int]] = defaultdict(dict)
    for source, target, least in along(shape, mtu, min, min):
        fits[source][target] = least
    return fits


def _across(shape: Shape, link: str, node: str) -> str:
    a, b = shape.links[link]
    return b if node == a else a


Choice = Callable[[str, str, str], int]
"""For a switch and two hosts, a number: which of equal paths is taken, counted round."""


def passages(shape: Shape, choose: Choice) -> Mapping[tuple[str, str], Mapping[tuple[str, str], str]]:
    """For a link and the switch at its end: by source and target host, the link by which what comes in there goes on.

    Hosts have one link each. Cost: pairs of hosts x links between them.
    """
    towards = routes(shape)
    homes = {node: link for link, ends in shape.links.items() for node in ends if node in towards}
    onward: dict[tuple[str, str], dict[tuple[str, str], str]] = defaultdict(dict)
    for source, home in homes.items():
        for target, hops in towards.items():
            if source == target:
                continue
            link, node = home, _across(shape, home, source)
            while node != target:
                equal = hops[node]
                out = equal[choose(node, source, target) % len(equal)]
                onward[link, node][source, target] = out
                link, node = out, _across(shape, out, node)
    return onward
