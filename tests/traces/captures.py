"""Captures made by scapy, for tests."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw
from scapy.utils import PcapWriter

MSS = 1000
ETHERNET = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")  # or scapy looks for neighbours


class Job:
    """Packets of a made-up job. `now_us` is its clock; each packet takes 2 us, and each has an identification of its own."""

    def __init__(self) -> None:
        self.packets: list[tuple[int, Packet]] = []
        self.now_us = 0
        self.sent = 0
        self._next: dict[tuple[int, int], int] = {}

    def send(self, flows: Sequence[tuple[int, int]], nbytes: int, first_seq: int = 100) -> None:
        """`nbytes` on each of `flows` (source, target) at the same time, full packet by full packet."""
        for done in range(0, nbytes, MSS):
            for flow in flows:
                size = min(MSS, nbytes - done)
                seq = self._next.setdefault(flow, first_seq)
                self._next[flow] = (seq + size) % 2**32
                self.sent += 1
                tcp = TCP(sport=40_000, dport=20_000, seq=seq, flags="A")
                ip = IP(src=address(flow[0]), dst=address(flow[1]), id=self.sent % 65536)
                self.packets.append((self.now_us, ip / tcp / Raw(bytes(size))))
                self.now_us += 2

    def rest(self, us: int) -> None:
        """Nobody sends."""
        self.now_us += us

    def write(self, path: Path, linktype: int = 1, head: Packet | None = None) -> Path:
        """As pcap, behind `head` (Ethernet if not given; none of raw IP)."""
        with PcapWriter(str(path), linktype=linktype, sync=True) as writer:
            writer.write_header(None)
            for at_us, packet in self.packets:
                whole = packet if linktype == 101 else (head or ETHERNET).copy() / packet
                writer.write_packet(bytes(whole), sec=at_us // 10**6, usec=at_us % 10**6)
        return path


def address(rank: int) -> str:
    return f"10.0.0.{rank + 1}"


def rings(ranks: int, nbytes: int, steps: int, first_seq: int = 100) -> Job:
    """Steps of 5 ms of compute and a ring in which each sends `nbytes`."""
    job = Job()
    for _ in range(steps):
        job.send([(rank, (rank + 1) % ranks) for rank in range(ranks)], nbytes, first_seq)
        job.rest(5000)
    return job


def headers(pcap: bytes, most: int = 54) -> bytes:
    """The packets of a little-endian pcap with no more than so many bytes kept: with 54, Ethernet, IPv4 and TCP."""
    cut, at = pcap[:24], 24
    while at < len(pcap):
        seconds, us, kept, length = struct.unpack_from("<IIII", pcap, at)
        cut += struct.pack("<IIII", seconds, us, min(kept, most), length) + pcap[at + 16 : at + 16 + min(kept, most)]
        at += 16 + kept
    return cut


def as_pcapng(pcap: bytes) -> bytes:
    """The packets of a little-endian pcap of Ethernet with stamps in us, with headers only."""
    blocks = [_block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1)), _block(1, struct.pack("<HHI", 1, 0, 64))]
    at = 24
    while at < len(pcap):
        seconds, us, kept, length = struct.unpack_from("<IIII", pcap, at)
        head = struct.pack("<IIIII", 0, *divmod(seconds * 10**6 + us, 2**32), 54, length)
        blocks.append(_block(6, head + pcap[at + 16 : at + 16 + 54] + bytes(2)))
        at += 16 + kept
    return b"".join(blocks)


def _block(kind: int, body: bytes) -> bytes:
    return struct.pack("<II", kind, len(body) + 12) + body + struct.pack("<I", len(body) + 12)
