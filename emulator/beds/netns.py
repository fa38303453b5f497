"""The netns bed: each host and each switch is a network namespace, and one more holds the wires between them.

The same code runs on a machine's own kernel and inside the lab kernel.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from emulator import qdisc, wire
from emulator.beds import routing
from emulator.beds.bed import LinkCounters, Queues
from emulator.buckets import bucket, check_changes
from emulator.errors import BedError
from emulator.events import WAYS, Change, Course, Way, direction_of, possible
from emulator.ledger import Ledger
from emulator.links import ETHERNET_HEADER, Direction, Link
from emulator.namespace import FOLDER, Namespace, enter, inside, set_attributes, sysctl
from emulator.netlink import Netlink, wait_until_up
from emulator.network import Network
from emulator.qdisc import Stage
from emulator.routes import along, path_mtus, routes
from emulator.shape import check_one_link_each
from emulator.shaping import (
    Fidelity,
    Needs,
    choose_fidelity,
    derived_seed,
    needs_of,
    nic,
    rdma_nic,
    stages,
)
from emulator.trials import has_netem

_FIRST_ADDRESS = IPv4Address("10.0.0.1")
_MOST_HOPS = 255  # what an IP packet's time to live can be
_BUFFER_FLOOR = {"tcp_wmem": 4 << 20, "tcp_rmem": 6 << 20}  # what Linux lets TCP grow to (net/ipv4/tcp.c, tcp_init)
RECEIVE_GAP_NS = 8_000
"""A host's card hands packets of one flow over together (GRO) while they follow each other within this, so that TCP
acknowledges many at once. 8 us is assumed: drivers wait 3 us (rx-usecs in tuned issue 726) to 16 us (sockperf issue 21)
by default. A message's last packet is handed over at once, for it has the PSH flag."""
_WIRES = "wires"


class NetnsBed:
    """A network of namespaces, up from the moment it is made.

    `fidelity`: None chooses what the network needs (`emulator.shaping.choose_fidelity`). `attached`: the namespace of each
    host whose namespace somebody else made, as a container's, by a file as /proc/PID/ns/net; it has no `eth0` yet.
    `exact`: False on a kernel without netem, where links are what `emulator.buckets` can do.

    Raises:
        NetworkError: the network has a shape this bed can't build.
        MachineError: this kernel or user can't do it.
        BedError: the kernel refused something or reports another setting than was asked.
    """

    def __init__(
        self,
        network: Network,
        ledger: Ledger,
        fidelity: Fidelity | None = None,
        attached: Mapping[str, Path] = MappingProxyType({}),
    ) -> None:
        self.network = network
        self._ledger = ledger
        self.fidelity: Fidelity = fidelity or choose_fidelity(network)
        self._addresses = addresses(network)
        nodes = (*self._addresses, *_switches(network), _WIRES)
        self._names = {node: namespace_name(ledger.run_id, node) for node in nodes}
        self._ports = _port_names(network)
        self._in_flight = _most_in_flight(network)
        self._cards = network.cards
        self._attached = frozenset(attached)
        self._carriers: dict[tuple[str, Way], tuple[int, ...]] = {}
        self._needs: dict[tuple[str, Way], Needs] = {}
        self._now: dict[tuple[str, Way], Direction] = {}
        self._links = {link.name: (number, link) for number, link in enumerate(network.links)}
        check_one_link_each(network.shape)
        with ExitStack() as guards:
            ledger.claim_all("netns", self._names.values())
            for node, name in self._names.items():
                guards.callback(Namespace(name, ledger, attached.get(node)).close)
            guards.callback(self._cut)
            self.exact = self._is_exact()
            self._build()
            self._guards = guards.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def address(self, host: str) -> str:
        return self._addresses[host]

    def namespace(self, node: str) -> str:
        """The name of a host's or switch's namespace, for `ip netns exec`."""
        return self._names[node]

    def enter(self, host: str) -> None:
        enter(self._names[host])

    def enter_link(self, link: str) -> tuple[str, str]:
        number, _ = self._links[link]
        enter(self._names[_WIRES])
        return f"w{number}a", f"w{number}b"

    def counters(self) -> tuple[LinkCounters, ...]:
        with self._inside(_WIRES) as ipr:
            return tuple(
                LinkCounters(name, *_ends(self._links[name][1], way), *wire.count(ipr, carriers))
                for (name, way), carriers in self._carriers.items()
            )

    def queues(self) -> Queues:
        with inside(self._names[_WIRES]):
            return _Queues(Netlink(), tuple(carriers[0] for carriers in self._carriers.values()))

    def apply(self, change: Change) -> None:
        key, after = (change.link, change.way), change.direction
        _, link = self._links[change.link]
        before, self._now[key] = self._now[key], after
        # A netem that is changed begins its draws anew, so each change has others.
        seed = derived_seed(self.network.seed, *key, str(change.at))
        asked, had = (self._stages(link, change.way, now, seed) for now in (after, before))
        with self._inside(_WIRES) as ipr:
            for carrier, stage, old in zip(self._carriers[key], asked, had, strict=False):  # no stage: one carrier
                if stage != old:  # changing a tbf fills its bucket
                    qdisc.change(ipr, carrier, stage)
        source, _ = _ends(link, change.way)
        card = self._card(after, link.mtu)
        if card and card != self._card(before, link.mtu) and (link.name, source) in self._cards:
            with self._inside(source) as ipr:
                qdisc.change(ipr, wire.device(ipr, self._ports[link.name, source]), card)

    def close(self) -> None:
        with self._ledger.together():
            self._guards.close()

    @contextmanager
    def _inside(self, node: str) -> Iterator[Netlink]:
        with inside(self._names[node]), Netlink() as netlink:
            yield netlink

    def _stages(self, link: Link, way: Way, direction: Direction, seed: int) -> Sequence[Stage]:
        if self.exact:
            return stages(direction, link.mtu, self.fidelity, seed, self._needs[link.name, way])
        check_changes(link.name, possible(link, way, self.network.events), link.mtu, self.fidelity)
        return bucket(link.name, direction, link.mtu, self.fidelity)

    def _card(self, leaving: Direction, mtu: int) -> Stage | None:
        rdma = self.network.transport == "rdma"
        card = rdma_nic(leaving, mtu, self.fidelity) if rdma else nic(leaving, mtu)
        return card.outer if card and not self.exact else card  # such a kernel may have no fq either

    def _is_exact(self) -> bool:
        from pyroute2 import IPRoute

        with inside(self._names[_WIRES]), IPRoute() as ipr:
            return has_netem(ipr)

    def _build(self) -> None:
        for switch in _switches(self.network):
            self._build_switch(switch)
        for number, link in enumerate(self.network.links):
            self._build_link(number, link)
        if self.fidelity == "packet":
            with self._inside(_WIRES) as ipr:
                names = (device.name for device in ipr.devices() if device.is_on)
                wire.set_offloads(names, send=False, receive=False)
        for host in self._addresses:
            self._build_host(host)
        if self.fidelity == "packet":
            hosts = [self._names[host] for host in self._addresses]
            set_attributes(hosts, "eth0", "gro_flush_timeout", str(RECEIVE_GAP_NS))
        for node in (*self._addresses, *_switches(self.network), _WIRES):
            with self._inside(node) as ipr:
                wait_until_up(ipr, node)
        for link in self.network.links:
            self._introduce(link)
        mtus = _mtus(self.network)
        for host in self._addresses:
            with self._inside(host) as ipr:
                # Who runs in a namespace of somebody else's may not be allowed to choose.
                metrics = routing.metrics_of(self.network.tcp, choose=host in self._attached)
                to = {self._addresses[other]: mtu for other, mtu in mtus[host].items()}
                routing.leave_by(ipr, "eth0", to, metrics)
        self._build_routes()

    def _build_switch(self, switch: str) -> None:
        with self._inside(switch) as ipr:
            _quiet()
            routing.forward(ipr)

    def _introduce(self, link: Link) -> None:
        """Each end of the link knows the hardware address of the other."""
        nodes = (link.a, link.b)
        macs = []
        for node in nodes:
            with self._inside(node) as ipr:
                macs.append(ipr.device(self._ports[link.name, node]).address)
        for node, peer in zip(nodes, reversed(macs), strict=True):
            with self._inside(node) as ipr:
                routing.add_peer(ipr, self._ports[link.name, node], peer)

    def _build_routes(self) -> None:
        """What each switch knows: the ports that lead to each host."""
        towards = routes(self.network.shape)
        for switch in _switches(self.network):
            with self._inside(switch) as ipr:
                if any(len(hops.get(switch, ())) > 1 for hops in towards.values()):
                    routing.seed_paths(derived_seed(self.network.seed, switch))
                for host, hops in towards.items():
                    ports = [self._ports[name, switch] for name in hops.get(switch, ())]
                    if ports:
                        routing.add_route(ipr, f"{self._addresses[host]}/32", ports)

    def _build_link(self, number: int, link: Link) -> None:
        """Both cables to the wire box, and the two directions inside it."""
        ports = f"w{number}a", f"w{number}b"
        ends = [self._ports[link.name, node] for node in (link.a, link.b)]
        with self._inside(_WIRES) as ipr:
            if number == 0:
                _quiet()
            for port, node, end in zip(ports, (link.a, link.b), ends, strict=True):
                handle = os.open(FOLDER / self._names[node], os.O_RDONLY)
                try:
                    wire.add_pair(ipr, port, end, link.mtu, handle)
                finally:
                    os.close(handle)
            for way, (into, out_of) in zip(WAYS, (ports, reversed(ports)), strict=True):
                key, direction = (link.name, way), direction_of(link, way)
                seed = derived_seed(self.network.seed, *key)
                self._now[key] = direction
                self._needs[key] = needs_of(possible(link, way, self.network.events))
                qdiscs = self._stages(link, way, direction, seed)
                self._carriers[key] = wire.add_direction(ipr, f"w{number}{way}", into, out_of, qdiscs, link.mtu)
        for node, end, leaving in zip((link.a, link.b), ends, (link.a_to_b, link.b_to_a), strict=True):
            self._plug_in(node, end, self._card(leaving, link.mtu) if (link.name, node) in self._cards else None)

    def _plug_in(self, node: str, end: str, card: Stage | None) -> None:
        """The end of a cable at a host or a switch."""
        with self._inside(node) as ipr:
            port = wire.device(ipr, end)
            if self.fidelity == "packet":
                wire.set_offloads([end], send=False, receive=node in self._addresses)
            if card is not None:
                qdisc.install(ipr, port, card)
            ipr.link("set", index=port, state="up")

    def _cut(self) -> None:
        """Take every cable away, ports of the nodes included. With its namespace it would only go some time after the bed,
        and a host that somebody else made stays."""
        from pyroute2.netlink.exceptions import NetlinkError

        with suppress(BedError, NetlinkError), self._inside(_WIRES) as ipr:  # gone already, or none was laid yet
            ipr.remove_group(wire.GROUP)

    def _build_host(self, host: str) -> None:
        """The host's address and TCP."""
        with self._inside(host) as ipr:
            _quiet()
            port = wire.device(ipr, "eth0")
            ipr.link("set", index=wire.device(ipr, "lo"), state="up")
            ipr.addr("add", index=port, address=self._addresses[host], prefixlen=32)
            sysctl("ipv4/ip_default_ttl", str(_MOST_HOPS))
            for key, floor in _BUFFER_FLOOR.items():
                sysctl(f"ipv4/{key}", _with_maximum(key, self._buffer(floor)))
            sysctl("ipv4/tcp_congestion_control", self.network.tcp.congestion, may_refuse=True)
            if self.network.tcp.ecn:
                sysctl("ipv4/tcp_ecn", "1")

    def _buffer(self, floor: int) -> int:
        """Bytes a socket may hold: as asked, or what Linux allows, or twice what the longest path holds."""
        if self.network.tcp.buffer is not None:
            return int(self.network.tcp.buffer)
        return max(floor, 2 * self._in_flight)


@dataclass(frozen=True, slots=True)
class _Queues:
    """`netlink`: of the namespace of the wires. `first`: each direction's first carrier, which has its queue."""

    netlink: Netlink
    first: tuple[int, ...]

    def read(self) -> list[int]:
        found = self.netlink.backlogs()
        return [found.get(carrier, 0) for carrier in self.first]

    def close(self) -> None:
        self.netlink.close()


def _ends(link: Link, way: Way) -> tuple[str, str]:
    """Where the direction comes from, and where it goes."""
    return (link.a, link.b) if way == "up" else (link.b, link.a)


def addresses(network: Network) -> dict[str, str]:
    """Each host's IP address, by its name."""
    return {host.name: str(_FIRST_ADDRESS + number) for number, host in enumerate(network.hosts)}


def namespace_name(run_id: str, node: str) -> str:
    """What the namespace of a run's host or switch is called."""
    return f"tb-{run_id}-{node}"


def _switches(network: Network) -> tuple[str, ...]:
    return tuple(switch.name for switch in network.switches)


def _port_names(network: Network) -> dict[tuple[str, str], str]:
    """By link and node: a host has one port, eth0; a switch one a link."""
    hosts = {host.name for host in network.hosts}
    return {
        (link.name, node): "eth0" if node in hosts else f"p{number}"
        for number, link in enumerate(network.links)
        for node in (link.a, link.b)
    }


def _mtus(network: Network) -> Mapping[str, Mapping[str, int]]:
    """For each host, the largest packet to each other; nothing where that is the MTU of every link."""
    of = {link.name: link.mtu for link in network.links}
    if len(set(of.values())) == 1:
        return {host.name: {} for host in network.hosts}
    return path_mtus(network.shape, of.__getitem__)


def _most_in_flight(network: Network) -> int:
    """Bytes that can be under way between two hosts at most: the path's rate x its round trip, and a queue."""
    known = {link.name: (_fastest(link, network.events), _round_trip(link, network.events)) for link in network.links}
    paths = along(
        network.shape,
        known.__getitem__,
        lambda one, other: (min(one[0], other[0]), one[1] + other[1]),
        lambda one, other: (max(one[0], other[0]), max(one[1], other[1])),
    )
    queue = max(
        (_queue_bytes(way, link.mtu) for link in network.links for way in (link.a_to_b, link.b_to_a)), default=0
    )
    wires = (int(rate * trip) // (8 * 10**9) for *_, (rate, trip) in paths if rate < math.inf)
    return max(wires, default=0) + queue


def _fastest(link: Link, events: Sequence[Course]) -> float:
    """The most that either direction carries at any time, in bit/s."""
    rates = [at.rate for way in WAYS for at in possible(link, way, events)]
    return max(math.inf if rate is None else rate for rate in rates)


def _round_trip(link: Link, events: Sequence[Course]) -> int:
    """The longest that events make of it."""
    return sum(max(at.delay for at in possible(link, way, events)) for way in WAYS)


def _queue_bytes(way: Direction, mtu: int) -> int:
    if way.queue is None:
        return 0
    return way.queue.limit * (mtu + ETHERNET_HEADER if way.queue.unit == "packets" else 1)


def _quiet() -> None:
    """No IPv6 in this namespace: its neighbour discovery would put packets on the wires that no rank sent."""
    for scope in ("all", "default"):
        sysctl(f"ipv6/conf/{scope}/disable_ipv6", "1")


def _with_maximum(key: str, maximum: int) -> str:
    low, middle, _ = Path(f"/proc/sys/net/ipv4/{key}").read_text().split()
    return f"{low} {min(int(middle), maximum)} {maximum}"
