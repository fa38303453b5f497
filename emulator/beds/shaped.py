"""Test beds that somebody else brought up, shaped as a network says and left so until they are reset.

What one container of the bed sends to another is taken at the bridge's end of its cable, led through a box of ours
(`emulator.beds.box`), and put into the other's cable. All else passes as before: to and from the machine, the internet
and containers that are not of the bed, and whatever has no IP address, as ARP. Containers and bridge are not touched.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from emulator import cleaning, qdisc, steering, wire
from emulator.adopting import Cable
from emulator.beds import box
from emulator.beds.bed import LinkCounters
from emulator.beds.box import Door, Key, Plan
from emulator.errors import BedError, MachineError, NetworkError
from emulator.events import Way, direction_of
from emulator.ledger import Claim, Ledger, Written, redescribe, written
from emulator.links import Direction
from emulator.namespace import FOLDER, Namespace, inside, sysctl
from emulator.netlink import Netlink, wait_until_up
from emulator.network import Network, from_dict, to_dict
from emulator.qdisc import Nested, Qdisc, Stage
from emulator.shape import check_one_link_each
from emulator.shaping import choose_fidelity
from emulator.trials import has_netem

if TYPE_CHECKING:
    from pyroute2 import IPRoute

_PREFIX = "shape-"


@dataclass(frozen=True, slots=True)
class Shaped:
    """A bed that is shaped. `cables`: by host; `netem`: whether the kernel has it, or rates are all there is."""

    tag: str
    project: str
    network: Network
    cables: Mapping[str, Cable]
    netem: bool

    @property
    def namespace(self) -> str:
        """The name of the namespace that holds the box."""
        return f"tb-{_PREFIX}{self.tag}"

    @property
    def owner(self) -> int:
        """Whose its filters are, as `emulator.steering` says it."""
        return int(self.tag, 16) + 1

    @property
    def containers(self) -> frozenset[str]:
        return frozenset(cable.container for cable in self.cables.values())

    def door(self, host: str) -> str:
        """The name of the device by which a host's packets go into the box, and come out."""
        return f"tb{self.tag}d{list(self.cables).index(host)}"

    def plan(self) -> Plan:
        make = box.plan if self.netem else box.plan_without_netem
        return make(self.network, choose_fidelity(self.network))


@dataclass(frozen=True, slots=True)
class Line:
    """One direction of a link: what was asked, what the kernel has, in words what differs ("" where nothing does), and what
    it has carried."""

    way: Way
    asked: Direction
    has: tuple[Qdisc, ...]
    differs: str
    counters: LinkCounters


def shape(network: Network, cables: Mapping[str, Cable], project: str = "") -> tuple[Shaped, bool]:
    """Shape these containers, each a host of the network; also whether it was changed in place, with what is queued kept.

    Where they are shaped already, with the same links and qdiscs of the same kinds, the qdiscs are changed. Otherwise all is
    made before anything is touched, and what there was is replaced.

    Raises:
        NetworkError: the network can't be a box, or doesn't fit the cables, or somebody else shapes these.
        MachineError: this kernel or user can't do it.
        BedError: the kernel refused something.
    """
    network = _fitted(network, cables)
    names = {cable.container for cable in cables.values()}
    before = [found for found in shapes() if found.containers & names]
    for found in before:
        _check_whole(found, names)
    _check_free(cables, frozenset(cable.index for found in before for cable in found.cables.values()))
    if len(before) == 1:
        (old,) = before
        new = replace(old, network=network, project=project)
        if _same_build(old, new, cables):
            _change(old, new)
            return new, True
    return _make(network, cables, project, before), False


def _check_whole(found: Shaped, names: Set[str]) -> None:
    """A shape is replaced with all of its containers that are still there."""
    absent = _absent(found)
    if {cable.container for host, cable in found.cables.items() if host not in absent} - names:
        raise NetworkError(
            f"{', '.join(sorted(found.containers & names))} is shaped together with others: "
            f"{', '.join(sorted(found.containers))}; shape or reset all of them"
        )


def _fitted(network: Network, cables: Mapping[str, Cable]) -> Network:
    """The network with the MTU that the containers have."""
    check_one_link_each(network.shape)
    for key in ("events", "traffic"):
        if getattr(network, key):
            raise NetworkError(f"nobody is there to play {key} while a bed stays shaped: leave them out", key=key)
    for host, cable in cables.items():
        least = min(link.mtu for link in network.links)
        if cable.mtu > least:
            raise NetworkError(
                f"host {host} is container {cable.container}, whose MTU is {cable.mtu}, and the links' is {least}: packets "
                "would not pass; set link.mtu, or com.docker.network.driver.mtu of the Docker network",
                key="mtu",
            )
    mtu = max(cable.mtu for cable in cables.values())
    return replace(network, links=tuple(replace(link, mtu=mtu) for link in network.links))


def _check_free(cables: Mapping[str, Cable], ours: frozenset[int]) -> None:
    """`ours`: the cables that are shaped by what is there to be changed or replaced."""
    from pyroute2 import IPRoute

    with IPRoute() as ipr:
        for cable in cables.values():
            where = f"{cable.device}, where the cable of container {cable.container} ends,"
            if others := steering.others(ipr, cable.index):
                raise NetworkError(f"{where} is shaped by somebody else ({others}): tc qdisc show dev {cable.device}")
            if cable.index not in ours and steering.owners(ipr, cable.index):
                raise BedError(f"{where} is shaped by a run that died: see tracebed clean")


def _same_build(old: Shaped, new: Shaped, cables: Mapping[str, Cable]) -> bool:
    """Whether what is there can become this by changing qdiscs alone."""
    if old.cables != cables or old.network.shape != new.network.shape or _absent(old):
        return False
    try:
        kinds = [{key: list(map(_kept, stages)) for key, stages in each.plan().items()} for each in (old, new)]
    except MachineError:
        return False
    return kinds[0] == kinds[1] and box.onward(old.network) == box.onward(new.network)


def _kept(stage: Stage) -> object:
    """What a change leaves as it is: the kind, and what is inside a tbf."""
    return stage.inner if isinstance(stage, Nested) else stage.kind


def _absent(shaped: Shaped) -> list[str]:
    """The hosts whose container isn't behind its cable any more, or all where the box is gone."""
    from pyroute2 import IPRoute

    if not (FOLDER / shaped.namespace).exists():
        return list(shaped.cables)
    with IPRoute() as ipr:
        return [
            host
            for host, cable in shaped.cables.items()
            if cable.index not in ipr.link_lookup(ifname=cable.device)
            or shaped.owner not in steering.owners(ipr, cable.index)
        ]


def _change(old: Shaped, new: Shaped) -> None:
    redescribe(_ledger(old), _description(new))
    fidelity, before = choose_fidelity(new.network), old.plan()
    with _inside(new) as ipr:
        box.set_fidelity(fidelity)
        for key, devices in box.carriers(ipr, new.network, new.plan()).items():
            for device, stage, had in zip(devices, new.plan()[key], before[key], strict=False):  # no stage: one carrier
                if stage != had:  # changing a tbf fills its bucket, and a netem begins its draws anew
                    qdisc.change(ipr, device, stage)
    wire.set_offloads(map(new.door, new.cables), send=fidelity == "burst", receive=False)


def _make(network: Network, cables: Mapping[str, Cable], project: str, before: Sequence[Shaped]) -> Shaped:
    shaped = Shaped(uuid.uuid4().hex[:6], project, network, cables, netem=True)
    with Ledger(_PREFIX + shaped.tag) as own, ExitStack() as guards:
        shaped = _make_box(shaped, own, guards)
        for old in before:
            cleaning.remove(_ledger(old))
        _plug_in(shaped, own, guards)
        own.keep(_description(shaped))
        guards.pop_all()
    return shaped


def _make_box(shaped: Shaped, own: Ledger, guards: ExitStack) -> Shaped:
    """The box and its doors, with nothing plugged in; on a kernel without netem of what else there is."""
    from pyroute2 import IPRoute

    guards.callback(Namespace(shaped.namespace, own).close)
    for host in shaped.cables:
        claim = own.claim("device", shaped.door(host))
        guards.callback(own.release, claim)
        guards.callback(wire.remove_device, claim.name)
    with _inside(shaped) as ipr:
        shaped = replace(shaped, netem=has_netem(ipr))
    planned, fidelity = shaped.plan(), choose_fidelity(shaped.network)
    doors = {host: Door(shaped.door(host), cable.addresses) for host, cable in shaped.cables.items()}
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        with _inside(shaped) as ipr:
            box.build(ipr, shaped.network, doors, planned, fidelity, home)
    finally:
        os.close(home)
    names = [door.device for door in doors.values()]
    mtu = shaped.network.links[0].mtu
    with IPRoute() as ipr:
        for name in names:
            sysctl(f"ipv6/conf/{name}/disable_ipv6", "1")
            ipr.link("set", index=wire.device(ipr, name), mtu=mtu, state="up")
        wire.set_offloads(names, send=fidelity == "burst", receive=False)
    with Netlink() as netlink:
        wait_until_up(netlink, "here", names)
    with inside(shaped.namespace), Netlink() as netlink:
        wait_until_up(netlink, shaped.namespace)
    return shaped


def _plug_in(shaped: Shaped, own: Ledger, guards: ExitStack) -> None:
    """From the doors into the cables first, then from the cables into the doors."""
    from pyroute2 import IPRoute

    with IPRoute() as ipr:
        doors = {host: wire.device(ipr, shaped.door(host)) for host in shaped.cables}
        for host, cable in shaped.cables.items():
            steering.open_ingress(ipr, doors[host])
            steering.redirect_all(ipr, doors[host], cable.index)
        for host, cable in shaped.cables.items():
            length = steering.queue_length(ipr, cable.index)
            guards.callback(own.release, own.claim("ingress", f"{cable.index} {cable.device} {length} {shaped.owner}"))
            steering.open_ingress(ipr, cable.index)  # where it isn't free any more, what is there is somebody else's
            guards.callback(steering.remove_from, cable.index, cable.device, length, shaped.owner)
            for other, target in shaped.cables.items():
                for address in target.addresses if other != host else ():
                    steering.redirect(ipr, cable.index, doors[host], ip_address(address), owner=shaped.owner)


@contextmanager
def _inside(shaped: Shaped) -> Iterator[IPRoute]:
    from pyroute2 import IPRoute

    with inside(shaped.namespace), IPRoute() as ipr:
        yield ipr


def show(shaped: Shaped) -> tuple[tuple[Line, ...], tuple[str, ...]]:
    """What the kernel says now of each direction, and the hosts whose container was started anew or has gone since: those
    are not shaped.

    Raises BedError where the box is gone.
    """
    planned = shaped.plan()
    with _inside(shaped) as ipr:
        carriers = box.carriers(ipr, shaped.network, planned)
        lines = tuple(_line(ipr, shaped, key, planned[key], devices) for key, devices in carriers.items())
    return lines, tuple(_absent(shaped))


def _line(ipr: IPRoute, shaped: Shaped, key: Key, planned: Sequence[Stage], devices: Sequence[int]) -> Line:
    name, way = key
    (link,) = (link for link in shaped.network.links if link.name == name)
    has: list[Qdisc] = []
    differs = ""
    for device, stage in zip(devices, planned, strict=False):  # no stage: one carrier
        for parent, asked in _places(stage):
            try:
                has.append(qdisc.read_back(ipr, device, parent))
                qdisc.verify(asked, has[-1])
            except BedError as error:
                differs = differs or str(error)
    ends = (link.a, link.b) if way == "up" else (link.b, link.a)
    counters = LinkCounters(name, *ends, *wire.count(ipr, devices))
    return Line(way, direction_of(link, way), tuple(has), differs, counters)


def _places(stage: Stage) -> Sequence[tuple[int, Qdisc]]:
    if isinstance(stage, Nested):
        return (qdisc.ROOT, stage.outer), (qdisc.CLASS, stage.inner)
    return ((qdisc.ROOT, stage),)


def reset(shaped: Shaped) -> tuple[Claim, ...]:
    """Take away what was put there, and nothing else; what that was."""
    return cleaning.remove(_ledger(shaped))


def shapes() -> tuple[Shaped, ...]:
    """All beds that are shaped."""
    return tuple(
        _shaped(ledger) for ledger in written() if ledger.kept is not None and ledger.run_id.startswith(_PREFIX)
    )


def _ledger(shaped: Shaped) -> Written:
    (found,) = (ledger for ledger in written() if ledger.run_id == _PREFIX + shaped.tag)
    return found


def _description(shaped: Shaped) -> Mapping[str, object]:
    return {
        "project": shaped.project,
        "network": to_dict(shaped.network),
        "cables": {host: asdict(cable) for host, cable in shaped.cables.items()},
        "netem": shaped.netem,
    }


def _shaped(ledger: Written) -> Shaped:
    kept: Mapping[str, Any] = ledger.kept or {}
    cables = {
        host: Cable(**{**cable, "addresses": tuple(cable["addresses"])}) for host, cable in kept["cables"].items()
    }
    network = from_dict(kept["network"], str(ledger.path))
    return Shaped(ledger.run_id.removeprefix(_PREFIX), kept["project"], network, cables, kept["netem"])
