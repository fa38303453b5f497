"""A netlink socket of the thread's network namespace, with the methods of pyroute2's IPRoute that building a bed takes.

pyroute2 makes the messages and reads the qdiscs. Its own socket runs an event loop for each request and filters whole
dumps in Python, which made up most of the time that a bed took to come up.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, Self

from emulator.errors import BedError
from emulator.qdisc import CLASS, ROOT, attributes

_HEADER = struct.Struct("=IHHII")  # nlmsghdr, linux/netlink.h
_LINK = struct.Struct("=BxHiII")  # ifinfomsg, linux/rtnetlink.h
_TC = struct.Struct("=BxHiIII")  # tcmsg
_QUEUED = struct.Struct("=II")  # gnet_stats_queue, linux/gen_stats.h, as far as packets and bytes
_ERROR, _DONE = 2, 3
_REQUEST, _ACK, _ECHO, _DUMP = 0x1, 0x4, 0x8, 0x300
_FLAGS = {"add": 0x605, "change": 0x105, "set": 0x5}  # a request to be acknowledged: create, and only that; replace
_DELLINK, _GETLINK, _GETQDISC = 17, 18, 38
_INGRESS = 0xFFFFFFF1  # TC_H_INGRESS
_NUD = {"permanent": 0x80}  # linux/neighbour.h
_UNICAST = {"table": 254, "proto": 4, "type": 1}  # RT_TABLE_MAIN, RTPROT_STATIC, RTN_UNICAST
_ADDRESS, _IFNAME, _OPERSTATE, _GROUP, _EXT_MASK = 1, 3, 16, 27, 29  # linux/if_link.h
_STATS2, _STATS_QUEUE = 7, 3  # linux/rtnetlink.h, linux/gen_stats.h
_SKIP_STATS = struct.pack("=I", 8)
_IFF_UP, _IFF_LOOPBACK = 0x1, 0x8  # linux/if.h
_CARRIES = (0, 6)  # IF_OPER_UNKNOWN, IF_OPER_UP
_UP_LIMIT_S = 10
_LARGEST = 1 << 17  # bytes of one answer; the kernel makes none larger than 32 KiB


@dataclass(frozen=True, slots=True)
class Device:
    """A network device as the kernel describes it: IFF_ flags (linux/if.h), operational state (IF_OPER_, RFC 2863)."""

    index: int
    name: str
    flags: int
    state: int
    address: str

    @property
    def is_on(self) -> bool:
        """Whether it was turned on; a loopback doesn't count."""
        return bool(self.flags & _IFF_UP) and not self.flags & _IFF_LOOPBACK


class Netlink:
    """Asks the kernel one thing after the other; a context manager. Raises pyroute2's NetlinkError where it refuses."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the socket back."""
        self._socket.close()

    def link(
        self,
        command: Literal["add", "set"],
        *,
        index: int = 0,
        ifname: str | None = None,
        kind: str | None = None,
        peer: Mapping[str, Any] = MappingProxyType({}),
        mtu: int | None = None,
        group: int | None = None,
        state: Literal["up"] | None = None,
    ) -> None:
        from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

        attrs = _given(("IFLA_IFNAME", ifname), ("IFLA_MTU", mtu), ("IFLA_GROUP", group))
        if kind is not None:
            far = {"attrs": [(f"IFLA_{name.upper()}", value) for name, value in peer.items()]}
            data = ("IFLA_INFO_DATA", {"attrs": [("VETH_INFO_PEER", far)]})
            attrs.append(("IFLA_LINKINFO", {"attrs": [("IFLA_INFO_KIND", kind), data]}))
        up = int(state == "up")
        self._tell(ifinfmsg, 16, _FLAGS[command], {"index": index, "flags": up, "change": up}, attrs)

    def addr(self, command: Literal["add"], *, index: int, address: str, prefixlen: int) -> None:
        from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg

        fields = {"index": index, "family": socket.AF_INET, "prefixlen": prefixlen}
        self._tell(ifaddrmsg, 20, _FLAGS[command], fields, [("IFA_LOCAL", address), ("IFA_ADDRESS", address)])

    def neigh(
        self, command: Literal["add"], *, dst: str, lladdr: str, ifindex: int, state: Literal["permanent"]
    ) -> None:
        from pyroute2.netlink.rtnl.ndmsg import ndmsg

        fields = {"ifindex": ifindex, "family": socket.AF_INET, "state": _NUD[state]}
        self._tell(ndmsg, 28, _FLAGS[command], fields, [("NDA_DST", dst), ("NDA_LLADDR", lladdr)])

    def route(
        self,
        command: Literal["add"],
        *,
        dst: str,
        gateway: str | None = None,
        oif: int | None = None,
        flags: int = 0,
        multipath: Sequence[Mapping[str, Any]] | None = None,
        metrics: Mapping[str, int | str | None] | None = None,
    ) -> None:
        from pyroute2.netlink.rtnl.rtmsg import rtmsg

        prefix, _, length = dst.partition("/")
        anywhere = dst == "default"
        fields = {"family": socket.AF_INET, "dst_len": 0 if anywhere else int(length), "flags": flags, **_UNICAST}
        hops = [
            {"oif": hop["oif"], "flags": hop["flags"], "attrs": [("RTA_GATEWAY", hop["gateway"])]}
            for hop in multipath or ()
        ]
        values = {"attrs": _given(*((f"RTAX_{name.upper()}", value) for name, value in (metrics or {}).items()))}
        attrs = _given(
            ("RTA_DST", None if anywhere else prefix),
            ("RTA_GATEWAY", gateway),
            ("RTA_OIF", oif),
            ("RTA_MULTIPATH", hops or None),
            ("RTA_METRICS", values if metrics else None),
        )
        self._tell(rtmsg, 24, _FLAGS[command], fields, attrs)

    def tc(
        self,
        command: Literal["add", "change", "add-filter"],
        kind: str,
        index: int,
        handle: int = 0,
        *,
        parent: int = _INGRESS,
        payload: bytes | None = None,
        prio: int = 0,
        protocol: int = 0,
        **match: Any,
    ) -> None:
        from pyroute2.netlink.rtnl.tcmsg import plugins, tcmsg

        verb, _, filters = command.partition("-")
        options = plugins[kind].get_parameters(match) if filters else payload
        fields = {"index": index, "handle": handle, "parent": parent, "info": prio << 16 | socket.htons(protocol)}
        attrs = _given(("TCA_KIND", kind), ("TCA_OPTIONS", options))
        self._tell(tcmsg, 44 if filters else 36, _FLAGS[verb], fields, attrs)

    def devices(self) -> tuple[Device, ...]:
        """Every device of the namespace."""
        asked = _LINK.pack(0, 0, 0, 0, 0) + attributes.pack(_EXT_MASK, _SKIP_STATS)
        return tuple(map(_device, self._ask(_GETLINK, _DUMP, asked)))

    def device(self, name: str) -> Device:
        """The device of this name."""
        asked = _LINK.pack(0, 0, 0, 0, 0) + attributes.pack(_IFNAME, name.encode() + b"\0")
        (found,) = self._ask(_GETLINK, _ACK, asked + attributes.pack(_EXT_MASK, _SKIP_STATS))
        return _device(found)

    def link_lookup(self, ifname: str) -> tuple[int, ...]:
        """The index of the device of this name, if there is one."""
        from pyroute2.netlink.exceptions import NetlinkError

        try:
            return (self.device(ifname).index,)
        except NetlinkError:
            return ()

    def get_qdiscs(self, index: int) -> Iterator[Any]:
        """What a device has at its root, and in that one's first class, as pyroute2's tcmsg."""
        from pyroute2.netlink.exceptions import NetlinkError
        from pyroute2.netlink.rtnl.tcmsg import tcmsg

        for parent in (ROOT, CLASS):
            try:
                # A kernel before 6.8 sends what it finds as a notice only: ECHO lets the asker have it (qdisc_notify).
                found = self._ask(_GETQDISC, _ACK | _ECHO, _TC.pack(0, 0, index, 0, parent, 0))
            except NetlinkError:
                continue  # nothing there
            for data in found:
                message = tcmsg(data)
                message.decode()
                yield message

    def backlogs(self) -> dict[int, int]:
        """Bytes that wait in what each device has at its root, by the device's index."""
        found = {}
        for message in self._ask(_GETQDISC, _DUMP, _TC.pack(0, 0, 0, 0, 0, 0)):
            _, _, index, _, parent, _ = _TC.unpack_from(message, _HEADER.size)
            said = attributes.unpack(message[_HEADER.size + _TC.size :])
            if parent == ROOT and _STATS2 in said:
                _, found[index] = _QUEUED.unpack_from(attributes.unpack(said[_STATS2])[_STATS_QUEUE])
        return found

    def remove_group(self, group: int) -> None:
        """Remove all devices of this group; they and their peers are gone when this returns, and at once."""
        self._ask(_DELLINK, _ACK, _LINK.pack(0, 0, 0, 0, 0) + attributes.pack(_GROUP, struct.pack("=I", group)))

    def _tell(
        self, of: Any, kind: int, flags: int, fields: Mapping[str, Any], attrs: Sequence[tuple[str, Any]]
    ) -> None:
        message = of()
        message.update(fields)
        message["attrs"] = attrs
        message["header"].update({"type": kind, "flags": flags})
        message.encode()
        self._socket.send(message.data)
        self._answer()

    def _ask(self, kind: int, flags: int, body: bytes) -> list[bytes]:
        self._socket.send(_HEADER.pack(_HEADER.size + len(body), kind, _REQUEST | flags, 0, 0) + body)
        return self._answer()

    def _answer(self) -> list[bytes]:
        """The messages that come before the kernel says that this is all."""
        from pyroute2.netlink.exceptions import NetlinkError

        found: list[bytes] = []
        while True:
            data = self._socket.recv(_LARGEST)
            while data:
                length, kind, *_ = _HEADER.unpack_from(data)
                if kind == _ERROR:
                    (code,) = struct.unpack_from("=i", data, _HEADER.size)
                    if code:
                        raise NetlinkError(-code, os.strerror(-code))
                if kind in (_ERROR, _DONE):
                    return found
                found.append(data[:length])
                data = data[length + -length % 4 :]


def wait_until_up(netlink: Netlink, where: str, only: Container[str] | None = None) -> None:
    """Wait for the devices that were turned on, or for `only` these. The kernel notices a device's carrier in its own time
    (net/core/link_watch.c) and drops packets until then. Raises BedError, which says `where`, after 10 s."""
    deadline = time.monotonic() + _UP_LIMIT_S
    while down := [
        device.name
        for device in netlink.devices()
        if device.is_on and device.state not in _CARRIES and (only is None or device.name in only)
    ]:
        if time.monotonic() > deadline:
            raise BedError(f"{where}: device {down[0]} did not come up in {_UP_LIMIT_S} s")
        time.sleep(0.01)


def _given(*attrs: tuple[str, Any]) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in attrs if value is not None]


def _device(message: bytes) -> Device:
    _, _, index, flags, _ = _LINK.unpack_from(message, _HEADER.size)
    said = attributes.unpack(message[_HEADER.size + _LINK.size :])
    address = ":".join(f"{byte:02x}" for byte in said.get(_ADDRESS, b""))
    return Device(index, said[_IFNAME].rstrip(b"\0").decode(), flags, said[_OPERSTATE][0], address)
