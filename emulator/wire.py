"""A link as a box in the middle: two ports in a namespace of its own, joined through the qdiscs of either way.

    node a --veth-- [a port]  ==redirect==> (stage 1) ... [b port: last stage] --veth-- node b

What comes in at one port is redirected to the first stage of that direction; each stage but the last is the sending
end of a veth pair inside the box, the last is the other port itself. So a full queue is loss, as on a router, and
neither end of the link knows of the shaping. (On a sender's own egress overflow is not loss: net/sched/sch_netem.c
returns NET_XMIT_DROP there, and TCP does not count the packet as sent.)
"""

from __future__ import annotations

import fcntl
import socket
import struct
from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING

from emulator import qdisc, steering
from emulator.errors import BedError
from emulator.qdisc import Stage
from emulator.qdisc.red import Red

if TYPE_CHECKING:
    from pyroute2 import IPRoute

GROUP = 1
"""What the pairs of one namespace belong to, so that they can be removed together (`emulator.netlink`)."""
_SIOCETHTOOL = 0x8946
_ETHTOOL_STSO, _ETHTOOL_SGSO, _ETHTOOL_SGRO = 0x1F, 0x24, 0x2C  # linux/ethtool.h


def device(ipr: IPRoute, name: str) -> int:
    """A device's index. Raises BedError where there is none."""
    found = ipr.link_lookup(ifname=name)
    if not found:
        raise BedError(f"device {name} is gone")
    return int(found[0])


def remove_device(name: str) -> bool:
    """Remove a device of this thread's namespace; False where there is none of that name."""
    from pyroute2 import IPRoute

    with IPRoute() as ipr:
        found = ipr.link_lookup(ifname=name)
        for index in found:
            ipr.link("del", index=index)
        return bool(found)


def add_pair(ipr: IPRoute, name: str, peer: str, mtu: int, peer_namespace: int | None = None) -> None:
    """A veth pair, both ends up; with `peer_namespace` (a file descriptor) the peer is there, and still down."""
    target: dict[str, str | int] = {"ifname": peer, "mtu": mtu}
    if peer_namespace is not None:
        target["net_ns_fd"] = peer_namespace
    ipr.link("add", ifname=name, kind="veth", peer=target, mtu=mtu, group=GROUP, state="up")
    if peer_namespace is None:
        ipr.link("set", index=device(ipr, peer), state="up")


def add_direction(ipr: IPRoute, tag: str, into: str, out_of: str, stages: Iterable[Stage], mtu: int) -> tuple[int, ...]:
    """Pass what comes in at the device `into` through `stages` and out of the device `out_of`.

    Returns the devices that carry the stages, first to last; the last is `out_of`, also where there is no stage.
    """
    *inner, last = (*stages,) or (None,)
    carriers: list[int] = []
    entry = device(ipr, into)
    for number, stage in enumerate(inner):
        sending, receiving = f"{tag}s{number}", f"{tag}r{number}"
        add_pair(ipr, sending, receiving, mtu)
        carrier = device(ipr, sending)
        _install(ipr, carrier, stage)
        _redirect(ipr, entry, carrier)
        carriers.append(carrier)
        entry = device(ipr, receiving)
    port = device(ipr, out_of)
    _install(ipr, port, last)
    _redirect(ipr, entry, port)
    return (*carriers, port)


def _install(ipr: IPRoute, carrier: int, stage: Stage | None) -> None:
    if stage is not None:
        qdisc.install(ipr, carrier, stage)


def _redirect(ipr: IPRoute, entry: int, exit_: int) -> None:
    steering.open_ingress(ipr, entry)
    steering.redirect_all(ipr, entry, exit_)


def count(ipr: IPRoute, carriers: Iterable[int]) -> tuple[int, int, int, int, int, int]:
    """Packets and bytes that left the last carrier, drops and overlimits of all, bytes that wait in the first, ECN marks."""
    packets = sent = drops = overlimits = marks = 0
    backlog: list[int] = []
    for carrier in carriers:
        for message in ipr.get_qdiscs(index=carrier):
            if message.get_attr("TCA_KIND") == Red.kind:
                marks += Red.marked(message.get_attr("TCA_XSTATS"))
            if message["parent"] != qdisc.ROOT or message.get_attr("TCA_STATS2") is None:
                continue
            stats = message.get_attr("TCA_STATS2")
            basic, queue = stats.get_attr("TCA_STATS_BASIC"), stats.get_attr("TCA_STATS_QUEUE")
            packets, sent = int(basic["packets"]), int(basic["bytes"])
            drops += int(queue["drops"])
            overlimits += int(queue["overlimits"])
            backlog.append(int(queue["backlog"]))
    return packets, sent, drops, overlimits, next(iter(backlog), 0), marks


def set_offloads(devices: Iterable[str], *, send: bool, receive: bool) -> None:
    """Turn the offloads of devices of this namespace on or off: segmentation on sending, merging (GRO) on receiving.

    With both off, only packets of at most the MTU pass.
    """
    wanted = {_ETHTOOL_STSO: send, _ETHTOOL_SGSO: send, _ETHTOOL_SGRO: receive}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for name in devices:
            for command, on in wanted.items():
                value = array("B", struct.pack("II", command, on))
                request = struct.pack("16sP", name.encode(), value.buffer_info()[0])
                fcntl.ioctl(control, _SIOCETHTOOL, request)
