"""Captures whose TCP lies behind headers that scapy has to read: tunnels, other links, extension headers, fragments."""

from __future__ import annotations

from pathlib import Path

import pytest
from scapy.contrib.erspan import ERSPAN_II
from scapy.contrib.geneve import GENEVE
from scapy.contrib.mpls import MPLS
from scapy.layers.dot11 import Dot11, Dot11QoS, RadioTap
from scapy.layers.inet import ICMP, IP, TCP, UDP, fragment
from scapy.layers.inet6 import (
    IPv6,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrFragment,
    IPv6ExtHdrHopByHop,
    IPv6ExtHdrSegmentRouting,
    PadN,
)
from scapy.layers.l2 import GRE, LLC, SNAP, Dot1Q
from scapy.layers.ppp import HDLC, PPP, PPPoE
from scapy.layers.vxlan import VXLAN
from scapy.packet import Packet

from tests.traces.captures import ETHERNET, Job, rings
from tests.traces.test_pcap import codes, collectives
from traces.importer import import_files
from traces.wire import packets

OUTER = ETHERNET / IP(src="192.168.0.1", dst="192.168.0.2")
OUTER6 = ETHERNET / IPv6(src="fd00:1::1", dst="fd00:1::2")
HEADS: dict[str, tuple[int, Packet]] = {
    "vxlan": (1, OUTER / UDP(dport=4789) / VXLAN(vni=7) / ETHERNET),
    "linux-vxlan": (1, OUTER / UDP(dport=8472) / VXLAN(vni=7) / ETHERNET),
    "vxlan-over-6": (1, OUTER6 / UDP(dport=4789) / VXLAN(vni=7) / ETHERNET),
    "geneve": (1, OUTER / UDP(dport=6081) / GENEVE() / ETHERNET),
    "gre": (1, OUTER / GRE()),
    "gretap": (1, OUTER / GRE() / ETHERNET),
    "erspan": (1, OUTER / GRE(proto=0x88BE, seqnum_present=1) / ERSPAN_II() / ETHERNET),
    "ipip": (1, OUTER),
    "4in6": (1, OUTER6),
    "mpls": (1, ETHERNET / MPLS(label=5, s=1)),
    "mpls-in-udp": (1, OUTER / UDP(dport=6635) / MPLS(label=5, s=1)),
    "pppoe": (1, ETHERNET / PPPoE() / PPP()),
    "three-vlans": (1, ETHERNET / Dot1Q(vlan=7) / Dot1Q(vlan=8) / Dot1Q(vlan=9)),
    "ppp": (9, PPP()),
    "hdlc": (50, HDLC() / PPP()),
    "802.11": (105, Dot11(type=2, subtype=8) / Dot11QoS() / LLC() / SNAP()),
    "radiotap": (127, RadioTap() / Dot11(type=2) / LLC() / SNAP()),
}


def six(packet: Packet, *extensions: Packet, layer: type[Packet] = TCP) -> Packet:
    """The same from `layer` on over IPv6, behind extension headers."""
    whole = IPv6(src=f"fd00::{packet[IP].src[-1]}", dst=f"fd00::{packet[IP].dst[-1]}")
    for extension in extensions:
        whole /= extension
    return whole / packet[layer]


def deep(packet: Packet) -> Packet:
    """The same segment in a tunnel in a tunnel, behind extension headers and labels."""
    inner = IPv6(src="fd00::1", dst="fd00::2") / IPv6ExtHdrHopByHop(options=[PadN()]) / GRE() / MPLS(s=1) / packet
    return OUTER[IP] / UDP(dport=4789) / VXLAN(vni=7) / ETHERNET / inner


@pytest.mark.parametrize("name", HEADS)
def test_a_ring_behind_odd_heads_is_the_ring(name: str, tmp_path: Path) -> None:
    job = rings(3, 4_000, 3)
    trace = import_files([job.write(tmp_path / "odd.pcap", *HEADS[name])])

    assert trace.programs == import_files([job.write(tmp_path / "plain.pcap")]).programs
    assert list(trace.hosts.values()) == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    assert codes(trace)["slow-path"].startswith("36 packets")
    assert "left-out" not in codes(trace)


@pytest.mark.parametrize(
    "extensions",
    [(IPv6ExtHdrHopByHop(options=[PadN()]), IPv6ExtHdrDestOpt()), (IPv6ExtHdrFragment(),)],
    ids=["options", "whole fragment"],
)
def test_extension_headers_are_no_payload(extensions: tuple[Packet, ...], tmp_path: Path) -> None:
    job = rings(3, 4_000, 3)
    job.packets = [(at, six(packet, *extensions)) for at, packet in job.packets]
    trace = import_files([job.write(tmp_path / "x.pcap")])

    assert list(trace.hosts.values()) == ["fd00::1", "fd00::2", "fd00::3"]
    assert [op.count for op in collectives(trace)] == [3_000] * 3


def test_the_same_segment_inside_and_outside_of_a_tunnel_counts_once(tmp_path: Path) -> None:
    job = rings(3, 4_000, 3)
    job.packets = [(at, seen) for at, packet in job.packets for seen in (packet, OUTER[IP] / GRE() / packet)]
    trace = import_files([job.write(tmp_path / "x.pcap")])

    assert [op.count for op in collectives(trace)] == [3_000] * 3
    assert "resent" not in codes(trace)


@pytest.mark.parametrize("version", [4, 6])
def test_fragments_are_named_and_their_bytes_missed(version: int, tmp_path: Path) -> None:
    job = rings(3, 4_000, 3)
    at, packet = job.packets[15]
    parts = fragment(packet, 600) if version == 4 else [six(packet, IPv6ExtHdrFragment(m=1))]
    if version == 6:
        job.packets = [(at, six(packet)) for at, packet in job.packets]
    job.packets[15:16] = [(at, part) for part in parts]
    trace = import_files([job.write(tmp_path / "x.pcap")])

    assert codes(trace)["fragments"].startswith(f"{len(parts)} packets")
    assert codes(trace)["missing-packets"].startswith("1000 bytes")
    assert "left-out" not in codes(trace)
    assert [op.count for op in collectives(trace)] == [3_000] * 3


def test_what_only_looks_like_a_segment_is_none(tmp_path: Path) -> None:
    """A packet that ICMP quotes in a tunnel, and one whose address is only a place on the way."""
    job = rings(3, 4_000, 3)
    at, packet = job.packets[0]
    quoted = OUTER[IP] / IP(src="10.0.0.2", dst="10.0.0.1") / ICMP(type=3) / packet
    passing = six(packet, IPv6ExtHdrSegmentRouting(addresses=["fd00::7", "fd00::8"], segleft=1, lastentry=1))
    job.packets += [(at, quoted), (at, passing)]
    trace = import_files([job.write(tmp_path / "x.pcap")])

    assert codes(trace)["slow-path"].startswith("2 packets")
    assert codes(trace)["left-out"].startswith("2 packets")
    assert [op.count for op in collectives(trace)] == [3_000] * 3


def test_too_many_odd_packets_are_left_out_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packets, "_MOST_ODD", 24)
    job: Job = rings(3, 4_000, 3)
    trace = import_files([job.write(tmp_path / "x.pcap", 9, PPP())])

    assert len(collectives(trace)) == 2
    assert codes(trace)["slow-path"].startswith("24 packets")
    assert codes(trace)["too-many-odd"].startswith("12 more")
    assert "left-out" not in codes(trace)
