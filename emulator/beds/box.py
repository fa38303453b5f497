"""A whole network in one namespace, for hosts that are elsewhere: each link a wire, each switch filters at its ports.

    host --door-- [w0a] ==stages==> [w0b] --veth-- [p0b] ==by address==> [p1b] --veth-- [w1b] ==stages==> [w1a] --door-- host

A switch changes nothing in what it passes on: it looks at the addresses and redirects to the port that the route says.
So the hosts keep their addresses and their neighbours, and stay one network to each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import TYPE_CHECKING

from emulator import steering, wire
from emulator.buckets import bucket, late_bytes
from emulator.events import WAYS, Way, direction_of
from emulator.namespace import sysctl
from emulator.netlink import Netlink
from emulator.network import Network
from emulator.qdisc import Stage
from emulator.qdisc.tbf import U32_MAX, Tbf
from emulator.routes import passages
from emulator.shaping import Fidelity, Needs, derived_seed, stages
from emulator.units import Size

if TYPE_CHECKING:
    from pyroute2 import IPRoute

Key = tuple[str, Way]
Plan = Mapping[Key, tuple[Stage, ...]]
_ANY_CHANGE = Needs(faults=True, delay=True, rate_changes=True, delay_changes=True)
"""What a direction may need later: it is built so that most changes find qdiscs of the kinds that they need."""


@dataclass(frozen=True, slots=True)
class Door:
    """How a host reaches the box: the device of its side, in the namespace that makes the box; the host's addresses."""

    device: str
    addresses: tuple[str, ...]


def plan(network: Network, fidelity: Fidelity) -> Plan:
    """The stages of each direction, made for changes of rate, delay and faults in place, and for timers that are late."""
    return {
        (link.name, way): _patient(
            stages(direction_of(link, way), link.mtu, fidelity, derived_seed(network.seed, link.name, way), _ANY_CHANGE)
        )
        for link in network.links
        for way in WAYS
    }


def _patient(planned: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """A bucket of one packet that is filled late loses what didn't fit, and so takes from the rate. A larger one passes more
    to the netem behind it, which spaces it as exactly; as much less waits in front. (Not where a red looks at what waits.)
    """
    first, *others = planned or (None,)
    if not isinstance(first, Tbf):
        return planned
    burst = Size(max(first.burst, min(late_bytes(first.rate), first.limit // 2)))
    limit = first.limit if first.limit == U32_MAX else Size(first.limit - (burst - first.burst))
    return (replace(first, burst=burst, limit=limit), *others)


def plan_without_netem(network: Network, fidelity: Fidelity) -> Plan:
    """What `emulator.buckets` can do of it. Raises MachineError where that isn't enough."""
    return {
        (link.name, way): bucket(link.name, direction_of(link, way), link.mtu, fidelity)
        for link in network.links
        for way in WAYS
    }


def onward(network: Network) -> Mapping[tuple[str, str], Mapping[tuple[str, str], str]]:
    """`emulator.routes.passages`, with the network's seed deciding between equal paths."""
    return passages(network.shape, lambda switch, *pair: derived_seed(network.seed, switch, *pair))


def build(
    ipr: IPRoute, network: Network, doors: Mapping[str, Door], planned: Plan, fidelity: Fidelity, outside: int
) -> None:
    """Make it all in this thread's namespace, which is new. The doors' outer ends come to be in the namespace `outside`
    (a file descriptor), and down.

    Raises MachineError where the kernel lacks a qdisc, BedError where it refuses something.
    """
    for scope in ("all", "default"):
        sysctl(f"ipv6/conf/{scope}/disable_ipv6", "1")
    for number, link in enumerate(network.links):
        ports = f"w{number}a", f"w{number}b"
        for port, end, node in zip(ports, "ab", (link.a, link.b), strict=True):
            if node in doors:
                wire.add_pair(ipr, port, doors[node].device, link.mtu, outside)
            else:
                wire.add_pair(ipr, port, f"p{number}{end}", link.mtu)
        for way, (into, out_of) in zip(WAYS, (ports, reversed(ports)), strict=True):
            wire.add_direction(ipr, f"w{number}{way}", into, out_of, planned[link.name, way], link.mtu)
    set_fidelity(fidelity)
    _build_switches(ipr, network, doors)


def _build_switches(ipr: IPRoute, network: Network, doors: Mapping[str, Door]) -> None:
    numbers = {link.name: number for number, link in enumerate(network.links)}
    ends = {(link.name, node): end for link in network.links for end, node in zip("ab", (link.a, link.b), strict=True)}

    def port(link: str, switch: str) -> int:
        return wire.device(ipr, f"p{numbers[link]}{ends[link, switch]}")

    for (link, switch), ways in onward(network).items():
        entry = port(link, switch)
        steering.open_ingress(ipr, entry)
        for (source, target), out in ways.items():
            for sender in map(ip_address, doors[source].addresses):
                for receiver in map(ip_address, doors[target].addresses):
                    if sender.version == receiver.version:
                        steering.redirect(ipr, entry, port(out, switch), receiver, sender)


def set_fidelity(fidelity: Fidelity) -> None:
    """Whether super-packets pass the devices of this thread's namespace."""
    with Netlink() as netlink:
        names = [device.name for device in netlink.devices() if device.is_on]
    wire.set_offloads(names, send=fidelity == "burst", receive=False)


def carriers(ipr: IPRoute, network: Network, planned: Plan) -> Mapping[Key, tuple[int, ...]]:
    """The devices that carry the stages of each direction, first to last. Raises BedError where one is gone."""
    found: dict[Key, tuple[int, ...]] = {}
    for number, link in enumerate(network.links):
        for way, last in zip(WAYS, "ba", strict=True):
            inner = [f"w{number}{way}s{stage}" for stage in range(len(planned[link.name, way]) - 1)]
            found[link.name, way] = tuple(wire.device(ipr, name) for name in (*inner, f"w{number}{last}"))
    return found
