"""The network for a job that has servers: each is given its seat. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from emulator.errors import NetworkError
from emulator.links import Direction, Link
from emulator.network import Network, load
from emulator.units import Duration, Probability
from traces.program import Seat, Trace

_FREE = Direction(
    rate=None,
    delay=Duration(0),
    jitter=Duration(0),
    jitter_correlation=Probability(0),
    distribution="uniform",
    loss=None,
    reorder=None,
    duplicate=None,
    corrupt=None,
    queue=None,
    overhead=0,
)


def load_seated(network: str | Path, trace: Trace, overrides: Mapping[str, str]) -> Network:
    """The network in a file, or a profile's, for the ranks of `trace`: those beside a worker are on its host, those in a
    switch have a link that takes no time.

    Raises NetworkError, also where a server that wants a host of its own would share one.
    """
    beside = {rank: seat.beside for rank, seat in trace.servers.items() if seat.beside >= 0}
    loaded = load(network, ranks=trace.world_size - len(beside), overrides=overrides)
    return _with_guests(_in_switches(loaded, trace.servers), beside)


def _in_switches(network: Network, servers: Mapping[int, Seat]) -> Network:
    free = set()
    for rank, seat in servers.items():
        if seat.beside >= 0:
            continue
        host = next(host for host in network.hosts if rank in host.ranks)
        if len(host.ranks) > 1:
            others = ", ".join(str(other) for other in host.ranks if other != rank)
            text = f"rank {rank}, a server, needs a host of its own, and '{host.name}' is also rank {others}'s"
            raise NetworkError(f"{text}: add hosts, or put servers beside workers", file=network.name, key="hosts")
        if seat.in_switch:
            free.add(host.name)
    return replace(network, links=tuple(_freed(link) if {link.a, link.b} & free else link for link in network.links))


def _freed(link: Link) -> Link:
    return replace(link, a_to_b=_FREE, b_to_a=_FREE)


def _with_guests(network: Network, beside: Mapping[int, int]) -> Network:
    hosts = tuple(
        replace(host, ranks=(*host.ranks, *(guest for guest, rank in beside.items() if rank in host.ranks)))
        for host in network.hosts
    )
    return replace(network, hosts=hosts)
