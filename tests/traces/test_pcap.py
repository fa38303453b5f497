"""Captures built by scapy and written by tshark: what is in them, by link type and format, and what is wrong with a bad one."""

from __future__ import annotations

import random
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import CookedLinux, CookedLinuxV2, Dot1AD, Dot1Q, Loopback
from scapy.packet import Packet

from tests.traces.captures import ETHERNET, Job, rings
from traces.errors import TraceError
from traces.files import Opened
from traces.formats import pcap
from traces.importer import import_files
from traces.program import Collective, CollectiveKind, Compute, Recv, Send, StepMark, Trace, Wait

HEADS: dict[str, tuple[int, Packet | None]] = {
    "ethernet": (1, ETHERNET),
    "vlan": (1, ETHERNET / Dot1Q(vlan=7)),
    "qinq": (1, ETHERNET / Dot1AD(vlan=7) / Dot1Q(vlan=8)),
    "raw": (101, None),
    "cooked": (113, CookedLinux()),
    "cooked2": (276, CookedLinuxV2()),
    "loopback": (108, Loopback(type=2)),
}


def codes(trace: Trace) -> dict[str, str]:
    return {finding.code: finding.message for finding in trace.findings}


def collectives(trace: Trace) -> list[Collective]:
    return [op for op in trace.programs[0].ops if isinstance(op, Collective)]


@pytest.mark.parametrize("name", HEADS)
def test_a_ring_behind_every_head(name: str, tmp_path: Path) -> None:
    trace = import_files([rings(4, 9_000, 4).write(tmp_path / "x.pcap", *HEADS[name])])

    assert (trace.world_size, trace.step_count) == (4, 4)
    assert [(op.kind, op.count) for op in collectives(trace)] == [(CollectiveKind.ALL_REDUCE, 6_000)] * 4
    # From the last packet of one step, 2 us before the clock's stand, to the first of the next: of rank 0 to rank 1.
    assert [op.ns for op in trace.programs[0].ops if isinstance(op, Compute)] == [5_002_000] * 3
    assert trace.hosts[3] == "10.0.0.4"
    assert "ring of ranks 0 1 2 3: taken to be an all_reduce of 6000 bytes" in codes(trace)["recognised"]


def test_ipv6(tmp_path: Path) -> None:
    job = rings(3, 4_000, 3)
    job.packets = [
        (at, IPv6(src=f"fd00::{p[IP].src[-1]}", dst=f"fd00::{p[IP].dst[-1]}") / p[TCP]) for at, p in job.packets
    ]
    trace = import_files([job.write(tmp_path / "x.pcap")])

    assert list(trace.hosts.values()) == ["fd00::1", "fd00::2", "fd00::3"]
    assert [op.count for op in collectives(trace)] == [3_000] * 3


def test_all_to_all_has_its_splits(tmp_path: Path) -> None:
    job = Job()
    for _ in range(3):
        job.send([(a, b) for a in range(3) for b in range(3) if a != b], 5_500)
        job.rest(3000)
    trace = import_files([job.write(tmp_path / "x.pcap")])

    assert [(op.kind, op.send_splits, op.recv_splits) for op in collectives(trace)] == [
        (CollectiveKind.ALL_TO_ALL, (0, 5_500, 5_500), (0, 5_500, 5_500))
    ] * 3


def test_a_parameter_server_stays_messages(tmp_path: Path) -> None:
    job, workers = Job(), (1, 2, 3)
    for _ in range(3):
        job.send([(worker, 0) for worker in workers], 20_000)
        job.rest(1000)
        job.send([(0, worker) for worker in workers], 20_000)
        job.rest(4000)
    trace = import_files([job.write(tmp_path / "x.pcap")])

    assert "parameter server: rank 0 serves 3 workers" in codes(trace)["recognised"]
    assert trace.step_count == 3
    assert [type(op) for op in trace.programs[1].ops[:5]] == [Send, Wait, Recv, Wait, StepMark]
    assert [op.count for op in trace.programs[0].ops if isinstance(op, Send | Recv)] == [20_000] * 18
    assert [op.ns for op in trace.programs[0].ops if isinstance(op, Compute)] == [1_002_000] * 3


def test_a_pipeline_there_and_back(tmp_path: Path) -> None:
    job = Job()
    for _ in range(3):
        for flow in ((0, 1), (1, 2), (2, 3), (3, 2), (2, 1), (1, 0)):
            job.send([flow], 8_000)
            job.rest(1000)
        job.rest(5000)
    trace = import_files([job.write(tmp_path / "x.pcap")])

    assert "pipeline of ranks 0 1 2 3" in codes(trace)["recognised"]
    assert [op.peer for op in trace.programs[1].ops if isinstance(op, Send)] == [2, 0] * 3


def test_two_rings_are_two_groups(tmp_path: Path) -> None:
    job = Job()
    for _ in range(3):
        job.send([(0, 2), (2, 4), (4, 0), (1, 3), (3, 5), (5, 1)], 6_000)
        job.rest(5000)
    trace = import_files([job.write(tmp_path / "x.pcap")])

    assert [group.ranks for group in trace.groups[1:]] == [(0, 2, 4), (1, 3, 5)]


def test_uneven_traffic_is_not_called_anything(tmp_path: Path) -> None:
    job = Job()
    for _ in range(3):
        job.send([(0, 1), (1, 2)], 9_000)
        job.send([(1, 0), (2, 0)], 3_000)
        job.send([(0, 2)], 1_000)
        job.rest(5000)
    trace = import_files([job.write(tmp_path / "x.pcap")])

    assert "not-recognised" in codes(trace)
    assert not collectives(trace)


def test_disorder_repeats_and_a_wrap_change_no_byte(tmp_path: Path) -> None:
    """Segments swapped, sent again (another identification), seen twice (the same), and numbers that pass 2^32."""
    job = rings(4, 9_000, 4, first_seq=2**32 - 12_345)
    dice = random.Random(5)
    again = dice.sample(job.packets, 7)
    for at_us, packet in again:
        resent = packet.copy()
        resent.id += 30_000
        job.packets.append((at_us + 40, resent))
    job.packets += [(at_us + 3, packet) for at_us, packet in job.packets[::2]]
    job.packets = sorted(((at_us + dice.randrange(20), p) for at_us, p in job.packets), key=lambda seen: seen[0])
    trace = import_files([job.write(tmp_path / "x.pcap")])

    assert [op.count for op in collectives(trace)] == [6_000] * 4
    assert codes(trace)["resent"].startswith("7 segments")
    assert "missing-packets" not in codes(trace)


def test_what_the_capture_missed_is_counted_and_said(tmp_path: Path) -> None:
    job = rings(4, 9_000, 4)
    del job.packets[8]
    trace = import_files([job.write(tmp_path / "x.pcap")])

    assert [op.count for op in collectives(trace)] == [6_000] * 4
    assert codes(trace)["missing-packets"].startswith("1000 bytes")


def test_files_of_two_hosts_are_one_job(tmp_path: Path) -> None:
    whole, halves = rings(4, 9_000, 4), (rings(4, 9_000, 0), rings(4, 9_000, 0))
    for half, own in zip(halves, ("10.0.0.1", "10.0.0.3"), strict=True):
        half.packets = [seen for seen in whole.packets if own in (seen[1].src, seen[1].dst)]
    files = [half.write(tmp_path / f"{number}.pcap") for number, half in enumerate(halves)]
    one = import_files([whole.write(tmp_path / "whole.pcap")])

    assert import_files(files).programs == one.programs


@pytest.mark.parametrize("form", ["pcapng", "nsecpcap", "pcap"])
def test_tshark_writes_the_same(needs: Callable[..., None], form: str, tmp_path: Path) -> None:
    needs("tshark")
    file = rings(4, 9_000, 4).write(tmp_path / "x.pcap")
    subprocess.run(["tshark", "-r", file, "-F", form, "-w", tmp_path / "y"], check=True, capture_output=True)

    assert import_files([tmp_path / "y"]).programs == import_files([file]).programs


def test_big_endian_and_headers_only(tmp_path: Path) -> None:
    data = rings(4, 9_000, 4).write(tmp_path / "x.pcap").read_bytes()
    swapped, at = struct.pack(">IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 64, 1), 24
    while at < len(data):
        seconds, us, kept, length = struct.unpack_from("<IIII", data, at)
        swapped += struct.pack(">IIII", seconds, us, 54, length) + data[at + 16 : at + 16 + 54]
        at += 16 + kept
    trace = pcap.read([Opened("x", swapped, "", True)])

    assert [op.count for op in collectives(trace)] == [6_000] * 4


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data[:20], "x: the file ends inside its header"),
        (lambda data: data[:20] + b"\x93\x00\x00\x00" + data[24:], "x: link type 147 is not known (known: 0, 1, "),
        (lambda data: data[:32] + b"\xff\xff\xff\x7f" + data[36:], "x, packet 0 at byte 24: says it has 2147483647 bytes"),
        (lambda data: data[:24], "x: no bytes of TCP or RDMA between two addresses"),
        (lambda data: data.replace(b"\x0a\x00\x00\x02", b"\x0a\x00\x00\x01"), "x: no bytes of TCP or RDMA between two addresses"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(change: Callable[[bytes], bytes], said: str, tmp_path: Path) -> None:
    data = rings(2, 9_000, 2).write(tmp_path / "x.pcap").read_bytes()
    with pytest.raises(TraceError) as caught:
        pcap.read([Opened("x", change(data), "", True)])
    assert said in str(caught.value)


def test_a_file_that_ends_inside_a_packet_keeps_the_others(tmp_path: Path) -> None:
    data = rings(4, 9_000, 4).write(tmp_path / "x.pcap").read_bytes()
    trace = pcap.read([Opened("x", data[:-7], "", True)])

    assert "cut-file" in codes(trace)
    assert [op.count for op in collectives(trace)][:3] == [6_000] * 3
