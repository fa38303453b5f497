"""Where what comes in at a device goes instead: filters (u32) at its ingress that redirect (mirred) to another device.

u32, not matchall or flower: every kernel with tc has it. pyroute2's can't match on what is in front of the IP header, so
packets are told apart by their IP addresses.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, Any

from emulator import qdisc
from emulator.errors import BedError, MachineError

if TYPE_CHECKING:
    from pyroute2 import IPRoute

Address = IPv4Address | IPv6Address

_INGRESS = 0xFFFF0000
_PRIORITIES = {"all": 31725, "ipv4": 31726, "ipv6": 31727}
"""Of our filters, which so tell whose they are; each protocol must have its own."""
_PROTOCOLS = {"all": 0x0003, "ipv4": 0x0800, "ipv6": 0x86DD}  # linux/if_ether.h
_SOURCE_AT = {4: 12, 6: 8}  # RFC 791, section 3.1; RFC 8200, section 3
_TARGET_AT = {4: 16, 6: 24}


def open_ingress(ipr: IPRoute, device: int) -> None:
    """Let a device have filters. Raises BedError where it can have some already, MachineError where this kernel can't."""
    with _asking(f"device {device}", "sch_ingress"):
        ipr.tc("add", "ingress", device, _INGRESS)


def redirect_all(ipr: IPRoute, entry: int, exit_: int) -> None:
    """All that comes in at `entry` leaves at `exit_`."""
    _add(ipr, entry, exit_, "all", ["0x0/0x0+0"])


def redirect(ipr: IPRoute, entry: int, exit_: int, target: Address, source: Address | None = None) -> None:
    """What comes in at `entry` for `target`, from `source` where that is given, leaves at `exit_`."""
    keys = [*_keys(source, _SOURCE_AT), *_keys(target, _TARGET_AT)]
    _add(ipr, entry, exit_, f"ipv{target.version}", keys)


def queue_length(ipr: IPRoute, index: int) -> int:
    """A device's txqueuelen: a qdisc that is put on a device without one makes 1000 of 0 (qdisc_create in sch_api.c)."""
    return int(ipr.get_links(index)[0].get_attr("IFLA_TXQLEN"))


def remove_from(index: int, name: str, length: int) -> bool:
    """Take our filters from a device and give it back its queue's length; False where it is gone, or is another one now,
    or has no filters."""
    from pyroute2 import IPRoute

    with IPRoute() as ipr:
        if index not in ipr.link_lookup(ifname=name) or not _has_ingress(ipr, index):
            return False
        ipr.link("set", index=index, txqlen=length)
        priorities = set(_priorities(ipr, index))
        if priorities <= set(_PRIORITIES.values()):
            ipr.tc("del", "ingress", index, _INGRESS)
            return True
        for ours in priorities & set(_PRIORITIES.values()):  # somebody has added filters to our ingress
            ipr.tc("del-filter", "u32", index, parent=_INGRESS, prio=ours, protocol=0, keys=[], target=0)
        return True


def is_steered(ipr: IPRoute, index: int) -> bool:
    """Whether filters of ours are there."""
    return bool(set(_priorities(ipr, index)) & set(_PRIORITIES.values()))


def others(ipr: IPRoute, index: int) -> str:
    """What shapes or filters a device that isn't ours: "" where nothing does."""
    kinds = [(message["parent"], message.get_attr("TCA_KIND")) for message in ipr.get_qdiscs(index=index)]
    found = [kind for parent, kind in kinds if kind != "noqueue" and kind != "ingress"]
    if _has_ingress(ipr, index) and not is_steered(ipr, index):
        found.append("ingress")
    return ", ".join(found)


def _has_ingress(ipr: IPRoute, index: int) -> bool:
    return any(message.get_attr("TCA_KIND") == "ingress" for message in ipr.get_qdiscs(index=index))


def _priorities(ipr: IPRoute, index: int) -> Iterator[int]:
    for message in ipr.get_filters(index=index, parent=_INGRESS):
        yield message["info"] >> 16


def _keys(address: Address | None, places: dict[int, int]) -> Iterator[str]:
    """The address in words of 32 bits, each with its place in the packet."""
    if address is not None:
        packed = address.packed
        for offset in range(0, len(packed), 4):
            yield f"0x{packed[offset : offset + 4].hex()}/0xffffffff+{places[address.version] + offset}"


def _add(ipr: IPRoute, entry: int, exit_: int, protocol: str, keys: list[str]) -> None:
    action = {"kind": "mirred", "direction": "egress", "action": "redirect", "ifindex": exit_}
    # `target` is a class that nothing looks at; pyroute2 demands one.
    match: dict[str, Any] = {"protocol": _PROTOCOLS[protocol], "keys": keys, "target": qdisc.FIRST}
    with _asking(f"device {entry}", "cls_u32 and act_mirred"):
        ipr.tc("add-filter", "u32", entry, parent=_INGRESS, prio=_PRIORITIES[protocol], action=action, **match)


@contextmanager
def _asking(device: str, modules: str) -> Iterator[None]:
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        yield
    except NetlinkError as error:
        if error.code == errno.ENOENT:
            mend = f"load {modules}, or take a kernel that has them"
            raise MachineError("this kernel can't redirect what comes in at a device", mend=mend) from error
        raise BedError(f"{device}: can't redirect what comes in: {os.strerror(error.code)}") from error
