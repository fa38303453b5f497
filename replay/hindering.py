"""Which link a message's time on its way is held against, from what the links are and what else was under way. Pure.

Only a capture would know where each packet waited; a run has when each message came. So its time is parted:

1. The delay of each link on its path is that link's.
2. Of the rest, as much as the fullest link of the path was busy meanwhile is that link's: nothing could go faster there. How
   busy a link was is what all messages brought there, each spread evenly over its time on its way, against its rate. Links
   that were equally full (within 1 %) share it.
3. For what is left TCP held itself back. Where packets were dropped or marked on the path, that was for them, by their number;
   else for round trips. What makes those long is a queue, at the link of the path that was fullest both ways (acknowledgements
   wait as well), or delay: the first as much as the path was busy, the second as much as it was idle (slow start).

With a link free, a message still takes what the next fullest link of its path needs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from emulator.beds.bed import LinkCounters
from emulator.events import Way, direction_of
from emulator.links import ETHERNET_HEADER
from emulator.network import Network
from emulator.routes import routes
from replay.loads import rates
from replay.moments import Message

_TCP_HEADERS = 52  # IP and TCP with timestamps
_EQUALLY_FULL = 0.99
_Numbers = np.ndarray[Any, np.dtype[np.float64]]
_Places = np.ndarray[Any, np.dtype[np.intp]]
_Hop = tuple[tuple[str, Way], ...]
"""Directions of links, of which a flow takes one: more than one where equally short paths part."""


@dataclass(frozen=True, slots=True)
class Hindrance:
    """What a link did to the messages that cross it, `messages` being their places in the caller's list; times in ns.

    `links`: the link, or several of which a flow takes one. `against`: the part of each message's time that is held against
    it; `without`: how long each would be on its way were it free.
    """

    links: tuple[str, ...]
    messages: _Places
    against: _Numbers
    without: _Numbers


def hindrances(
    network: Network, counters: Iterable[LinkCounters], messages: Sequence[Message], took: Sequence[int]
) -> tuple[Hindrance, ...]:
    """What each link that a message crosses did, by name. Message i took `took[i]` ns from when nothing else held it.

    Cost: for each link, its messages in order of time.
    """
    if not messages:
        return ()
    paths = _paths(network, messages)
    wires = _Wires(network, counters, messages, paths)
    found: dict[tuple[str, ...], list[Hindrance]] = defaultdict(list)
    for hops, places in paths:
        for part in _parted(wires, hops, places, np.array([took[place] for place in places], np.float64)):
            found[part.links].append(part)
    return tuple(_joined(parts) for _, parts in sorted(found.items()))


def _parted(wires: _Wires, hops: Sequence[_Hop], places: _Places, took: _Numbers) -> Iterator[Hindrance]:
    """The messages of one path, link by link. Rows of the tables are hops, columns messages."""
    delays = np.array([[wires.delay(hop)] for hop in hops], np.float64)
    signs = np.array([[wires.signs(hop)] for hop in hops], np.float64)
    delayed = delays * np.minimum(1, took / max(delays.sum(), 1))
    body = np.maximum(0, took - delayed.sum(axis=0))
    busy = np.minimum(body, [wires.busy(hop, places, took) for hop in hops])
    most = busy.max(axis=0)
    fullest, crowded = _largest(busy), _largest(busy + [wires.busy(_back(hop), places, took) for hop in hops])
    slack = body - most
    if signs.any():
        blame = signs / signs.sum() * np.ones_like(busy)
    else:
        queued = most / np.maximum(body, 1) if delays.any() else 1.0
        blame = queued * crowded + (1 - queued) * delays / max(delays.sum(), 1)
    names = [tuple(dict.fromkeys(link for link, _ in hop)) for hop in hops]
    for links in dict.fromkeys(names):
        mine = np.array([name == links for name in names])
        against = delayed + most * fullest + slack * blame
        others = busy[~mine].max(axis=0, initial=0.0)
        freed = delayed[mine].sum(axis=0) + (most - others) + (slack * blame)[mine].sum(axis=0)
        yield Hindrance(links, places, against[mine].sum(axis=0), np.maximum(0, took - freed))


def _largest(table: _Numbers) -> _Numbers:
    """Each column's largest, which share 1."""
    found = (table >= _EQUALLY_FULL * table.max(axis=0)).astype(np.float64)
    share: _Numbers = found / found.sum(axis=0)
    return share


def _back(hop: _Hop) -> _Hop:
    """The other directions of its links."""
    return tuple((link, "down" if way == "up" else "up") for link, way in hop)


def _joined(parts: Sequence[Hindrance]) -> Hindrance:
    """What a link did to the messages of all paths that lead over it."""
    places, against, without = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("messages", "against", "without")
    )
    return Hindrance(parts[0].links, places, against, without)


class _Wires:
    """How busy each hop was at any time, by what the messages brought there."""

    def __init__(
        self,
        network: Network,
        counters: Iterable[LinkCounters],
        messages: Sequence[Message],
        paths: Iterable[tuple[tuple[_Hop, ...], _Places]],
    ) -> None:
        self._links = {link.name: link for link in network.links}
        self._signs = {(each.link, each.source): each.drops + each.marks for each in counters}
        self._began = np.array([each.began for each in messages], np.float64)
        self._ended = np.array([each.ended for each in messages], np.float64)
        self._nbytes = np.array([each.nbytes if each.arrives else 0 for each in messages], np.float64)
        self._rates = self._rates_over_time(network, max(each.ended for each in messages))
        crossing: dict[_Hop, list[_Places]] = defaultdict(list)
        for hops, places in paths:
            for hop in hops:
                crossing[hop].append(places)
        self._worked = {hop: self._work(hop, np.concatenate(lists)) for hop, lists in crossing.items()}

    def delay(self, hop: _Hop) -> int:
        """Of its way, in ns, before any event."""
        link, way = hop[0]
        return direction_of(self._links[link], way).delay

    def signs(self, hop: _Hop) -> int:
        """Packets that were dropped or marked there."""
        ends = {link.name: {"up": link.a, "down": link.b} for link in self._links.values()}
        return sum(self._signs.get((link, ends[link][way]), 0) for link, way in hop)

    def busy(self, hop: _Hop, places: _Places, took: _Numbers) -> _Numbers:
        """For how many ns of the last `took` ns of each message the hop was busy; none where no message crosses it."""
        if hop not in self._worked:
            return np.zeros(len(places))
        times, worked = self._worked[hop]
        ended = self._ended[places]
        return np.maximum(0, np.interp(ended, times, worked) - np.interp(ended - took, times, worked))

    def _work(self, hop: _Hop, places: _Places) -> tuple[_Numbers, _Numbers]:
        """Moments, and how many ns the hop was busy until each."""
        link = self._links[hop[0][0]]
        nbytes, began, ended = self._nbytes[places], self._began[places], self._ended[places]
        each = link.mtu + ETHERNET_HEADER + direction_of(link, hop[0][1]).overhead
        bits = 8 * (nbytes + np.ceil(nbytes / (link.mtu - _TCP_HEADERS)) * (each - link.mtu + _TCP_HEADERS))
        lasts = ended > began
        bits, began, ended = bits[lasts], began[lasts], ended[lasts]
        pace = bits / (ended - began)
        changes = [self._rates[direction] for direction in hop]
        times = np.unique(np.concatenate([began, ended, *(at for at, _ in changes)]))
        load = np.zeros(len(times))
        np.add.at(load, np.searchsorted(times, began), pace)
        np.add.at(load, np.searchsorted(times, ended), -pace)
        rate = sum(rates[np.searchsorted(at, times, side="right") - 1] for at, rates in changes)
        share = np.minimum(1, np.maximum(0, np.cumsum(load)) / (rate / 1e9))
        return times, np.concatenate([[0.0], np.cumsum(share[:-1] * np.diff(times))])

    def _rates_over_time(self, network: Network, end: int) -> Mapping[tuple[str, Way], tuple[_Numbers, _Numbers]]:
        """From when on each direction has which rate in bit/s; infinite where it has none."""
        return {
            direction: (
                np.array([at for at, _ in steps], np.float64),
                np.array([np.inf if rate is None else rate for _, rate in steps], np.float64),
            )
            for direction, steps in rates(network, end).items()
        }


def _paths(network: Network, messages: Sequence[Message]) -> list[tuple[tuple[_Hop, ...], _Places]]:
    """Each path that messages take, with the places of those that do; none of a host to itself."""
    hosts = {rank: host.name for host in network.hosts for rank in host.ranks}
    taking: dict[tuple[str, str], list[int]] = defaultdict(list)
    for place, message in enumerate(messages):
        taking[hosts[message.source], hosts[message.target]].append(place)
    towards = routes(network.shape)
    homes = {node: link.name for link in network.links for node in (link.a, link.b) if node in towards}
    ends = {link.name: (link.a, link.b) for link in network.links}
    found = []
    for (source, target), places in taking.items():
        if source != target:
            hops: list[_Hop] = []
            nodes, leaving = [source], {source: (homes[source],), **towards[target]}
            while nodes != [target]:
                pairs = [(name, node) for node in nodes for name in leaving[node]]
                hops.append(tuple((name, "up" if node == ends[name][0] else "down") for name, node in pairs))
                nodes = list(dict.fromkeys(ends[name][node == ends[name][0]] for name, node in pairs))
            found.append((tuple(hops), np.array(places, np.intp)))
    return found
