"""TCP segments and RDMA packets of a capture, read by columns: all at once, headers only, so a capture cut by its snaplen will do.

Link types: www.tcpdump.org/linktypes.html. IPv4: RFC 791; IPv6: RFC 8200; TCP: RFC 9293. Payload sizes are those that the IP header
says, for the capture may be cut; of super-packets beyond 64 KiB (BIG TCP), which say 0, that of the packet on the wire.
What is behind other headers is left to scapy.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traces.errors import TraceError
from traces.wire import rdma
from traces.wire.records import Ints, Records, words

Bools = npt.NDArray[np.bool_]

_AT_ONCE = 1 << 16
_MOST_ODD = 250_000  # packets that scapy looks into: a minute or so
_TCP, _UDP = 6, 17
_FRAGMENT, _NOTHING = 256, 257  # beside the 256 protocols
_ODD = -1


def _among(numbers: tuple[int, ...]) -> Bools:
    """A table that says of each number of 16 bits whether it is one of these."""
    table = np.zeros(1 << 16, np.bool_)
    table[list(numbers)] = True
    return table


_IPV4, _IPV6 = 0x0800, 0x86DD
_VLANS = 0x8100, 0x88A8, 0x9100
_IS_VLAN = _among(_VLANS)
_TYPE_AT = {1: (12, 14), 113: (14, 16), 276: (0, 20)}
"""By link type, where the EtherType is and where IP begins: Ethernet, Linux cooked v1 and v2."""
_IP_AT = {0: 4, 108: 4, 12: 0, 14: 0, 101: 0, 228: 0, 229: 0}
"""By link type, where IP begins and says its own version: BSD loopback and raw IP."""
_IS_ODD_TYPE = _among((0x8847, 0x8848, 0x8864, *_VLANS))
"""EtherTypes behind which scapy finds IP: MPLS, PPPoE, and VLANs inside more than one other."""
_IS_ODD_PROTOCOL = _among((4, 41, 47, 0, 43, 44, 60))
"""IP in IP, GRE, and IPv6's extension headers (www.iana.org/assignments/protocol-numbers)."""
_IS_TUNNEL = _among((4789, 4790, 8472, 6081, 6635))
"""UDP ports of VXLAN (RFC 7348; Linux's own), VXLAN-GPE, Geneve (RFC 8926) and MPLS (RFC 7510)."""
_MAPPED = 0xFFFF << 32
"""Under which IPv4 addresses stand among the IPv6 ones (RFC 4291, 2.5.5.2)."""

RDMA = 1 << 32
"""In `Segments.ports`: this is no pair of ports, but a queue pair."""


@dataclass(frozen=True, slots=True)
class Segments:
    """TCP segments: when seen, between which addresses (index into `addresses`) and ports, bytes `size` from number `seq` on.

    Of an RDMA packet `seq` is its own number, and `ports` RDMA plus the queue pair that it is for. `ident` is IPv4's
    identification, 0 with IPv6.
    """

    addresses: tuple[str, ...]
    at_ns: Ints
    source: Ints
    target: Ints
    ports: Ints
    seq: Ints
    size: Ints
    syn: Bools
    ident: Ints
    packets: Packets


@dataclass(slots=True)
class Packets:
    """How many there were: all, fragments of IP packets, those that scapy looked into, those left out as too many for it.

    `rdma` are those of RoCEv2, `rdma_data` those of them that carry sends and writes, `rdma_reads` reads and atomic operations.
    """

    seen: int = 0
    fragments: int = 0
    odd: int = 0
    too_many: int = 0
    rdma: int = 0
    rdma_data: int = 0
    rdma_reads: int = 0


class Reader:
    """Gathers the segments of several files."""

    def __init__(self) -> None:
        self._addresses: dict[tuple[int, int], int] = {}
        self._columns: list[tuple[Ints, ...]] = []
        self._packets = Packets()

    def add(self, data: bytes, records: Records, file: str) -> None:
        """Raises TraceError for a link type that is not known."""
        self._packets.seen += len(records.at)
        for first in range(0, len(records.at), _AT_ONCE):
            part = slice(first, first + _AT_ONCE)
            for link in Counter(records.link[part].tolist()):
                chosen = np.flatnonzero(records.link[part] == link) + first
                if link in _TYPE_AT or link in _IP_AT:
                    chosen = self._add(data, records, chosen, link)
                if len(chosen):
                    self._odd(data, records, chosen, link, file)

    def segments(self) -> Segments:
        """All that were added, in the order of time."""
        columns = [np.concatenate(c) for c in zip(*self._columns, strict=True)] or [np.zeros(0, np.int64)] * 8
        order = np.argsort(columns[0], kind="stable")
        at_ns, source, target, ports, seq, size, syn, ident = (column[order] for column in columns)
        names = tuple(_name(high, low) for high, low in self._addresses)
        return Segments(names, at_ns, source, target, ports, seq, size, syn.astype(bool), ident, self._packets)

    def _add(self, data: bytes, records: Records, chosen: Ints, link: int) -> Ints:
        """Those of the chosen that scapy has to look into."""
        at, end = records.at[chosen], records.at[chosen] + records.kept[chosen]
        ip, version = _ip(data, at, link)
        odd = version == _ODD
        for number, read in ((4, _ipv4), (6, _ipv6)):
            mine = np.flatnonzero((version == number) & (ip + 20 <= end))
            if len(mine):
                past = at[mine] + records.length[chosen][mine] - ip[mine]
                layer = read(data, ip[mine], past)
                self._packets.fragments += int((layer.inside == _FRAGMENT).sum())
                self._tcp(data, ip[mine], end[mine], records.at_ns[chosen][mine], layer)
                port = words(data, ip[mine] + layer.header + 2, 2)
                self._rdma(data, ip[mine], end[mine], records.at_ns[chosen][mine], layer, port)
                odd[mine] = _IS_ODD_PROTOCOL[layer.inside] | (layer.inside == _UDP) & _IS_TUNNEL[port]
        return np.compress(odd, chosen)

    def _odd(self, data: bytes, records: Records, chosen: Ints, link: int, file: str) -> None:
        from traces.wire import odd  # scapy takes longer to import than most captures to read

        known = odd.link_types()
        if link in known:
            left = _MOST_ODD - self._packets.odd
            found = odd.segments(data, records, chosen[:left], link)
            self._packets.odd += len(chosen[:left])
            self._packets.too_many += len(chosen[left:])
            self._packets.fragments += found.fragments
            at_ns, *others = found.rows.T
            self._columns.append((at_ns, self._known(found.source), self._known(found.target), *others))
        elif link not in _IP_AT:
            mend = f"known: {', '.join(map(str, sorted(known.union(_TYPE_AT, _IP_AT))))}"
            raise TraceError(f"link type {link} is not known", file=file, mend=mend)

    def _tcp(self, data: bytes, ip: Ints, end: Ints, at_ns: Ints, layer: _Layer) -> None:
        tcp = ip + layer.header
        ok = (layer.inside == _TCP) & (tcp + 14 <= end)
        tcp = tcp[ok]
        flags = words(data, tcp + 12, 2)
        size = layer.length[ok] - layer.header[ok] - (flags >> 12) * 4
        whole = size >= 0
        self._append(at_ns, layer, ok, (words(data, tcp, 4), words(data, tcp + 4, 4), size, flags >> 1 & 1), whole)

    def _rdma(self, data: bytes, ip: Ints, end: Ints, at_ns: Ints, layer: _Layer, port: Ints) -> None:
        udp = ip + layer.header
        ok = (layer.inside == _UDP) & (port == rdma.PORT) & (udp + rdma.HEADERS <= end)
        if ok.any():
            found = rdma.packets(data, udp[ok])
            self._packets.rdma += len(found.size)
            self._packets.rdma_data += int(found.counts.sum())
            self._packets.rdma_reads += found.reads
            own = (RDMA | found.queue, found.number, found.size, np.zeros(len(found.size), np.int64))
            self._append(at_ns, layer, ok, own, found.counts)

    def _append(self, at_ns: Ints, layer: _Layer, ok: Bools, own: tuple[Ints, ...], whole: Bools) -> None:
        """Rows of the packets that are `ok`, and of these `whole`: ports, number, bytes and SYN are their own."""
        between = self._known(np.concatenate([layer.source[ok], layer.target[ok]])).reshape(2, -1)
        columns = (at_ns[ok], *between, *own, layer.ident[ok])
        self._columns.append(tuple(column[whole] for column in columns))

    def _known(self, halves: Ints) -> Ints:
        """Numbers for addresses, which are rows of two halves."""
        numbers = np.zeros(len(halves), np.int64)
        highs, of_high = np.unique(halves[:, 0], return_inverse=True)
        lows, of_low = np.unique(halves[:, 1], return_inverse=True)
        pairs, of_pair = np.unique(of_high * (len(lows) + 1) + of_low, return_inverse=True)
        known = [
            self._addresses.setdefault(
                (int(highs[p // (len(lows) + 1)]), int(lows[p % (len(lows) + 1)])), len(self._addresses)
            )
            for p in pairs.tolist()
        ]
        numbers[:] = np.array(known, np.int64)[of_pair] if known else 0
        return numbers


@dataclass(frozen=True, slots=True)
class _Layer:
    """Of each packet: bytes of the IP header and of the whole, the addresses in two halves, and the protocol inside."""

    header: Ints
    length: Ints
    source: Ints
    target: Ints
    ident: Ints
    inside: Ints


def _ip(data: bytes, at: Ints, link: int) -> tuple[Ints, Ints]:
    """Where IP begins, and its version; 0 where it is not IP, _ODD where scapy may find some."""
    if link in _IP_AT:
        ip = at + _IP_AT[link]
        return ip, words(data, ip, 1) >> 4
    type_at, ip_at = _TYPE_AT[link]
    kind, ip = words(data, at + type_at, 2), at + ip_at
    for _ in range(2):
        tagged = np.flatnonzero(_IS_VLAN[kind])
        if len(tagged):
            kind[tagged] = words(data, ip[tagged] + 2, 2)
            ip[tagged] += 4
    version = np.where(kind == _IPV4, 4, np.where(kind == _IPV6, 6, 0))
    return ip, np.where(_IS_ODD_TYPE[kind], _ODD, version)


def _ipv4(data: bytes, ip: Ints, past: Ints) -> _Layer:
    total = words(data, ip + 2, 2)
    source, target = (_halves(words(data, ip + n, 4) | _MAPPED) for n in (12, 16))
    whole = words(data, ip + 6, 2) & 0x3FFF == 0
    header = (words(data, ip, 1) & 15) * 4
    inside = np.where(header < 20, _NOTHING, np.where(whole, words(data, ip + 9, 1), _FRAGMENT))
    return _Layer(header, np.where(total, total, past), source, target, words(data, ip + 4, 2), inside)


def _ipv6(data: bytes, ip: Ints, past: Ints) -> _Layer:
    payload = words(data, ip + 4, 2)
    source, target = (np.stack([words(data, ip + n, 8), words(data, ip + n + 8, 8)], axis=1) for n in (8, 24))
    header = np.full(len(ip), 40)
    inside = words(data, ip + 6, 1)
    return _Layer(header, np.where(payload, payload + 40, past), source, target, np.zeros(len(ip), np.int64), inside)


def _halves(low: Ints) -> Ints:
    return np.stack([np.zeros(len(low), np.int64), low], axis=1)


def _name(high: int, low: int) -> str:
    address = ipaddress.IPv6Address((high % 2**64) << 64 | low % 2**64)
    return str(address.ipv4_mapped or address)
