"""A node's routes. All that is at the other end of a cable has one and the same address, so that a route names a port and
no more, and that address is known beforehand: resolving addresses is not what is measured, and a lossy link would lose it.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from emulator import wire
from emulator.errors import MachineError
from emulator.namespace import sysctl
from emulator.transport import Tcp

if TYPE_CHECKING:
    from pyroute2 import IPRoute

Metrics = Mapping[str, int | str]
"""What a route says of what goes there, by the names of RTAX_* in small letters."""
_PEER = "169.254.0.1"  # link-local (RFC 3927)
_ONLINK = 4  # RTNH_F_ONLINK, linux/rtnetlink.h: the gateway is there, whatever the addresses say
_HASH_SEED = Path("/proc/sys/net/ipv4/fib_multipath_hash_seed")


def forward(ipr: IPRoute) -> None:
    """Make a router of this thread's namespace."""
    ipr.link("set", index=wire.device(ipr, "lo"), state="up")  # a kernel without any address takes no gateway
    for scope in ("all", "default"):
        sysctl(f"ipv4/conf/{scope}/rp_filter", "0")
    sysctl("ipv4/ip_forward", "1")


def seed_paths(seed: int) -> None:
    """Which of equal paths packets take in this thread's namespace depends on `seed` and their two addresses only.

    That is Linux's own choice of what to hash (fib_multipath_hash_policy 0). With ports in it (1), a run could not be
    repeated: the kernel draws the ports of connections, and takes the hash that TCP drew for the packet.

    Raises:
        MachineError: the kernel can't seed that (Linux can from 6.11 on).
    """
    if not _HASH_SEED.exists():
        raise MachineError("this kernel can't seed ECMP, which Linux 6.11 brought", mend="run with --on virtual")
    sysctl("ipv4/fib_multipath_hash_policy", "0")
    sysctl("ipv4/fib_multipath_hash_seed", str(seed % (2**32 - 1) + 1))  # 0 would be none


def add_peer(ipr: IPRoute, port: str, address: str) -> None:
    """What is at the other end of this port's cable has this hardware address."""
    ipr.neigh("add", dst=_PEER, lladdr=address, ifindex=wire.device(ipr, port), state="permanent")


def metrics_of(tcp: Tcp, choose: bool) -> Metrics:
    """What a host's routes say to its TCP connections (RTAX_*, linux/rtnetlink.h). `choose`: the congestion control as well,
    whatever their programs may choose.
    """
    return {
        **({"cc_algo": tcp.congestion} if choose else {}),
        **({} if tcp.delayed_ack else {"quickack": 1}),
        **({"initcwnd": tcp.initial_window} if tcp.initial_window else {}),
        **({"initrwnd": tcp.initial_receive_window} if tcp.initial_receive_window else {}),
    }


def add_route(ipr: IPRoute, to: str, ports: Sequence[str], metrics: Metrics = MappingProxyType({})) -> None:
    """Send what is for `to` (a prefix, or "default") out of one of `ports`, always the same for two hosts (ECMP).

    `metrics`: of this route; its "mtu" is the largest packet that this host sends there, in bytes, where that is not the
    port's own.
    """
    hops = [{"gateway": _PEER, "oif": wire.device(ipr, port), "flags": _ONLINK} for port in ports]
    if len(hops) == 1:
        ipr.route("add", dst=to, **hops[0], metrics=metrics)
    else:
        ipr.route("add", dst=to, multipath=hops, metrics=metrics)


def leave_by(ipr: IPRoute, port: str, mtus: Mapping[str, int], metrics: Metrics) -> None:
    """Send all of this host's packets out of `port`; `mtus` says, by address, how large those to the others may be.

    A router on the way would drop what is too large for its next link: no host asks there (path MTU discovery) for what is
    known beforehand. `metrics` are those of every route.

    Raises:
        MachineError: this kernel lacks the congestion control that is in `metrics`.
    """
    from pyroute2.netlink.exceptions import NetlinkError

    least = min(mtus.values(), default=None)
    try:
        add_route(ipr, "default", [port], {**metrics, **({"mtu": least} if least else {})})
    except NetlinkError as error:
        if "cc_algo" not in metrics or error.code != errno.EINVAL:
            raise
        mend = "choose one of /proc/sys/net/ipv4/tcp_available_congestion_control"
        raise MachineError(f"this kernel has no congestion control {metrics['cc_algo']!r}", mend=mend) from None
    for address, mtu in mtus.items():
        if mtu != least:
            add_route(ipr, f"{address}/32", [port], {**metrics, "mtu": mtu})
