"""RoCEv2 in captures: which bytes count, by packet number and queue pair, whatever else is there."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from scapy.contrib.roce import AETH, BTH
from scapy.layers.inet import IP, UDP
from scapy.packet import Packet, Raw

from tests.traces.captures import MSS, Job, rings
from tests.traces.test_pcap import codes, collectives
from tests.traces.test_pcap_odd import six
from traces.importer import import_files

SENDS, WRITES = (0, 1, 2, 4), (6, 7, 8, 10)  # the first packet of a message, those in the middle, the last, an only one
IMMEDIATE = {2: 3, 4: 5, 8: 9, 10: 11}
INVALIDATE = {2: 22, 4: 23}
HEADERS = {3: 4, 5: 4, 22: 4, 23: 4, 9: 4, 6: 16, 10: 16, 11: 20}
XRC = 0xA0


def roce(packet: Packet, opcode: int, number: int, size: int, queue: int = 7) -> Packet:
    """Between the addresses of `packet`."""
    headers = HEADERS.get(opcode & 0x1F, 0) + (4 if opcode >= XRC else 0)
    base = BTH(opcode=opcode, dqpn=queue, psn=number % 2**24, padcount=-size % 4)
    ip = IP(src=packet[IP].src, dst=packet[IP].dst, id=packet[IP].id)
    return ip / UDP(sport=50_000, dport=4791) / base / Raw(bytes(headers + size + -size % 4))


def over_rdma(job: Job, operation: tuple[int, int, int, int], last: dict[int, int], transport: int, first: int) -> Job:
    """The same bytes, each flow's in messages of four packets, and one of what is left."""
    sent: dict[tuple[str, str], list[tuple[int, int, Packet]]] = {}
    for at, packet in job.packets:
        sent.setdefault((packet[IP].src, packet[IP].dst), []).append((at, len(packet[Raw]), packet))
    job.packets = []
    begin, middle, end, only = operation
    for flow in sent.values():
        for number, (at, size, packet) in enumerate(flow):
            place = number % 4
            is_only = place == 0 and number == len(flow) - 1
            kind = only if is_only else end if place == 3 or number == len(flow) - 1 else middle if place else begin
            job.packets.append((at, roce(packet, transport | last.get(kind, kind), first + number, size)))
    job.packets.sort(key=lambda seen: seen[0])
    return job


def written(nbytes: int = 8_502, first: int = 100) -> Job:
    return over_rdma(rings(4, nbytes, 4), WRITES, {}, 0, first)


@pytest.mark.parametrize("transport", [0, 0x20, XRC], ids=["reliable", "unreliable", "extended"])
@pytest.mark.parametrize(
    ("operation", "last"),
    [(SENDS, {}), (SENDS, IMMEDIATE), (SENDS, INVALIDATE), (WRITES, {}), (WRITES, IMMEDIATE)],
    ids=["sends", "sends with data", "sends that invalidate", "writes", "writes with data"],
)
def test_what_sends_and_writes_carry_counts(
    operation: tuple[int, int, int, int], last: dict[int, int], transport: int, tmp_path: Path
) -> None:
    trace = import_files([over_rdma(rings(4, 8_502, 4), operation, last, transport, 100).write(tmp_path / "x.pcap")])

    assert trace.programs == import_files([rings(4, 8_502, 4).write(tmp_path / "tcp.pcap")]).programs
    assert codes(trace)["rdma"].startswith("144 packets")
    assert "left-out" not in codes(trace)
    assert "missing-packets" not in codes(trace)


def test_disorder_repeats_and_a_wrap_change_no_byte(tmp_path: Path) -> None:
    job, dice = written(34_002, first=2**24 - 5), random.Random(6)
    for at, packet in dice.sample(job.packets, 7):
        again = packet.copy()
        again[IP].id += 30_000
        job.packets.append((at + 40, again))
    job.packets += [(at + 3, packet) for at, packet in job.packets[::2]]
    job.packets = sorted(((at + dice.randrange(20), packet) for at, packet in job.packets), key=lambda seen: seen[0])
    trace = import_files([job.write(tmp_path / "x.pcap")])

    assert [op.count for op in collectives(trace)] == [22_668] * 4
    assert codes(trace)["resent"].startswith("7 segments")
    assert "missing-packets" not in codes(trace)


def test_two_queue_pairs_of_one_pair_have_numbers_of_their_own(tmp_path: Path) -> None:
    job = written()
    job.packets += [(at + 1, roce(packet, 10, packet[BTH].psn, 500, queue=8)) for at, packet in job.packets]
    trace = import_files([job.write(tmp_path / "x.pcap")])

    bytes_each = 8_502 + 9 * 500
    assert [op.count for op in collectives(trace)] == [round(bytes_each * 2 / 3)] * 4


def test_acknowledgements_reads_and_datagrams_carry_nothing(tmp_path: Path) -> None:
    job = written()
    for at, packet in job.packets[::6]:
        back = IP(src=packet[IP].dst, dst=packet[IP].src) / UDP(dport=4791)
        job.packets.append((at + 1, back / BTH(opcode=17, dqpn=7, psn=packet[BTH].psn) / AETH(syndrome=0, msn=1)))
        job.packets.append((at + 1, back / BTH(opcode=14, dqpn=7, psn=packet[BTH].psn) / Raw(bytes(MSS))))
        job.packets.append((at + 1, back / BTH(opcode=0x64, dqpn=1, psn=1) / Raw(bytes(8 + 256))))
    trace = import_files([job.write(tmp_path / "x.pcap")])

    assert [op.count for op in collectives(trace)] == [5_668] * 4
    assert codes(trace)["rdma"].startswith("216 packets")
    assert codes(trace)["rdma-reads"].startswith("24 packets")


def test_numbers_that_were_not_seen_are_said(tmp_path: Path) -> None:
    job = written()
    del job.packets[8:10]
    trace = import_files([job.write(tmp_path / "x.pcap")])

    assert codes(trace)["missing-packets"].startswith("2 numbers")


def test_ipv6_and_tcp_beside(tmp_path: Path) -> None:
    """RDMA over IPv6, and TCP of the same job's set-up between other addresses."""
    job = written()
    job.packets = [(at, six(packet, layer=UDP)) for at, packet in job.packets]
    job.packets += [(at, packet) for at, packet in rings(4, 50, 1).packets]
    trace = import_files([job.write(tmp_path / "x.pcap")])

    assert list(trace.hosts.values()) == ["fd00::1", "fd00::2", "fd00::3", "fd00::4"]
    assert [op.count for op in collectives(trace)] == [5_668] * 4


def test_tshark_reads_the_same_sizes(needs: Callable[..., None], tmp_path: Path) -> None:
    """What these tests write is RoCEv2 to another reader."""
    needs("tshark")
    file = over_rdma(rings(2, 8_502, 1), WRITES, IMMEDIATE, 0, 100).write(tmp_path / "x.pcap")
    names = ("infiniband.bth.opcode", "infiniband.bth.psn", "data.len", "infiniband.bth.padcnt")
    fields = [word for name in names for word in ("-e", name)]
    said = subprocess.run(["tshark", "-r", file, "-T", "fields", *fields], check=True, capture_output=True, text=True)

    cells = [[int(cell) for cell in line.split("\t")] for line in said.stdout.splitlines()]
    rows = [[opcode, number, size - padding] for opcode, number, size, padding in cells]
    sizes = [(6, 1000), (7, 1000), (7, 1000), (9, 1000), (6, 1000), (7, 1000), (7, 1000), (9, 1000), (11, 502)]
    assert rows[::2] == [[opcode, 100 + number, size] for number, (opcode, size) in enumerate(sizes)]
