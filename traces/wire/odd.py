"""TCP segments that lie behind headers the fast reader doesn't know: scapy looks into each packet, some 10,000 a second.

What it knows here: PPP, PPPoE, 802.11, MPLS, GRE (with ERSPAN), VXLAN, Geneve, IP in IP, and IPv6's extension headers.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass

import numpy as np
from scapy.config import conf
from scapy.contrib import erspan, geneve, mpls  # noqa: F401 - scapy knows what is imported
from scapy.layers import dot11, ppp, vxlan  # noqa: F401
from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrFragment, IPv6ExtHdrRouting, IPv6ExtHdrSegmentRouting
from scapy.packet import Packet

from traces.wire.records import Ints, Records

_HEAD = 512
"""Bytes of a packet that are looked into: enough for several tunnels' headers, few enough for a hostile packet."""
_MAPPED = bytes(10) + b"\xff\xff"


@dataclass(frozen=True, slots=True)
class Found:
    """Segments: addresses in two halves, and a row each of when, ports, first number, bytes, SYN, IPv4's identification.

    `fragments` counts the packets that are parts of an IP packet.
    """

    source: Ints
    target: Ints
    rows: Ints
    fragments: int


def link_types() -> set[int]:
    """Those that scapy looks into."""
    return set(conf.l2types.num2layer)


def segments(data: bytes, records: Records, chosen: Ints, link: int) -> Found:
    """What TCP there is in the packets `chosen`, which are of a link type of `link_types`."""
    head: type[Packet] = conf.l2types.num2layer[link]
    pairs, rows, fragments = list[bytes](), list[tuple[int, ...]](), 0
    columns = (records.at, records.kept, records.at_ns)
    for at, kept, at_ns in zip(*(column[chosen].tolist() for column in columns), strict=True):
        try:
            packet = head(data[at : at + min(kept, _HEAD)])
        except Exception:  # scapy raises whatever comes up in a packet that is damaged or cut
            continue
        found = _inside(packet)
        if found is None:
            continue
        ip, tcp = found
        if tcp is None:
            fragments += 1
        elif (row := _row(at_ns, ip, tcp)) is not None:
            pairs.append(_packed(ip.src) + _packed(ip.dst))
            rows.append(row)
    halves = np.frombuffer(b"".join(pairs), ">i8").astype(np.int64).reshape(-1, 4)
    return Found(halves[:, :2], halves[:, 2:], np.array(rows, np.int64).reshape(-1, 6), fragments)


def _inside(packet: Packet) -> tuple[Packet, Packet | None] | None:
    """The IP header that is next to TCP, and TCP, which a fragment has not; None where there is no TCP to read."""
    ip, layer = None, packet
    while layer:
        kind = type(layer)  # not its bases: those of packets that ICMP quotes are derived from these
        if kind in (IP, IPv6):
            ip = layer
            if kind is IP and (layer.frag or layer.flags.MF):
                return ip, None
        elif kind is IPv6ExtHdrFragment and ip is not None and (layer.offset or layer.m):
            return ip, None
        elif kind in (IPv6ExtHdrRouting, IPv6ExtHdrSegmentRouting) and layer.segleft:
            return None  # the address is of a place on the way
        elif kind is TCP and ip is not None:
            return ip, layer
        layer = layer.payload
    return None


def _row(at_ns: int, ip: Packet, tcp: Packet) -> tuple[int, ...] | None:
    """None where the header's lengths contradict each other."""
    if type(ip) is IP:
        size, ident = ip.len - ip.ihl * 4, ip.id
    else:
        size, ident = ip.plen - (len(ip.payload.original) - len(tcp.original)), 0
    size -= tcp.dataofs * 4
    ports = tcp.sport << 16 | tcp.dport
    return (at_ns, ports, tcp.seq, size, int(tcp.flags.S), ident) if size >= 0 else None


def _packed(address: str) -> bytes:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    packed = socket.inet_pton(family, address)
    return packed if family == socket.AF_INET6 else _MAPPED + packed
