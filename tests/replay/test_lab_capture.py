"""`--pcap` in virtual time: the file as scapy and tshark read it, and the run that it is of."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from replay.session import load_network, new_folder, read_job, replay
from tests.replay.runs import all_reduces, computing, rows, tracebed, written
from traces.program import Trace

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab")]

BUSY = """profile: ethernet-10g
topology: {star: {hosts: 3}}
link: {queue: 200 kB, loss: 0.1%}
links: {host2: {loss: 1%}}
traffic:
  - constant: {from: host2, to: host0, rate: 3 gbit}
"""
IDLE = """profile: ethernet-10g
topology: {star: {hosts: 3}}
link: {queue: 200 kB}
traffic:
  - constant: {from: host2, to: host0, rate: 1 gbit, at: 100 ms, for: 1 ms}
"""
MEASURED = ("steps.csv", "ops.npz", "links.csv", "flows.csv", "traffic.csv")
JOB = all_reduces(2, 2_000_000, steps=1)


class Packet(NamedTuple):
    at_ns: int
    length: int
    data: bytes


def run(folder: Path, job: Trace, network: str, *pcap: str) -> Path:
    file = folder / "net.yaml"
    file.write_text(network)
    read = read_job(written(job, folder))
    resolved = load_network(str(file), read, {})
    made = new_folder(folder / "runs", read, resolved)
    replay(read, resolved, made, pcap=pcap)
    return made


@pytest.fixture(scope="module")
def busy(lab: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the busy network, with captures of two links."""
    return run(tmp_path_factory.mktemp("busy"), JOB, BUSY, "host0", "host2")


def packets(file: Path) -> list[Packet]:
    """As scapy reads them."""
    from scapy.utils import RawPcapReader

    with RawPcapReader(str(file)) as reader:
        assert reader.nano
        return [Packet(meta.sec * 10**9 + meta.usec, meta.wirelen, data) for data, meta in reader]


def test_a_capture_changes_nothing_and_is_the_same_each_time(busy: Path, tmp_path: Path) -> None:
    plain, again = run(tmp_path, JOB, BUSY), run(tmp_path, JOB, BUSY, "host0", "host2")
    for name in MEASURED:
        assert (plain / name).read_bytes() == (busy / name).read_bytes(), name
    for name in ("host0.pcap", "host2.pcap"):
        assert (again / name).read_bytes() == (busy / name).read_bytes(), name
    assert not (plain / "host0.pcap").exists()


def test_it_holds_every_packet_that_has_left_the_link_since_go(busy: Path) -> None:
    """What `links.csv` counts besides are the handshakes of the two connections."""
    found = packets(busy / "host0.pcap")
    assert all(0 <= before.at_ns <= after.at_ns for before, after in pairwise(found))
    assert found[-1].at_ns <= int(rows(busy / "steps.csv")[-1]["end_ns"])
    counted = [row for row in rows(busy / "links.csv") if row["link"] == "host0"]
    assert 0 < sum(int(row["packets"]) for row in counted) - len(found) < 20
    assert 0 < sum(int(row["bytes"]) for row in counted) - sum(packet.length for packet in found) < 20 * 100
    # Nothing came to host2, and what its link lost has not left it.
    (from_host2,) = (row for row in rows(busy / "links.csv") if row["source"] == "host2")
    assert len(packets(busy / "host2.pcap")) == int(from_host2["packets"])
    assert int(from_host2["drops"]) > 0


def test_stamps_are_when_a_packet_has_crossed_the_link(tmp_path: Path) -> None:
    """A packet every 12.304 us, each 1.2304 us on the wire at 10 Gbit/s (which netem cuts to 1.23) and then 2 us under way,
    and nothing in its way: to the nanosecond."""
    folder = run(tmp_path, computing(2, 110_000_000, steps=1), IDLE, "host2")
    times = [packet.at_ns for packet in packets(folder / "host2.pcap")]
    assert times == [100_000_000 + number * 12_304 + 1_230 + 2_000 for number in range(82)]


def test_tshark_and_scapy_read_the_headers(needs: Callable[..., None], busy: Path) -> None:
    from scapy.layers.inet import IP, TCP, UDP
    from scapy.layers.l2 import Ether

    needs("tshark")
    file = busy / "host0.pcap"
    fields = ("frame.time_epoch", "frame.len", "ip.src", "ip.dst", "tcp.dstport", "udp.dstport")
    wanted = [word for field in fields for word in ("-e", field)]
    said = subprocess.run(["tshark", "-r", file, "-T", "fields", *wanted], capture_output=True, text=True, check=True)
    shown = [line.split("\t") for line in said.stdout.splitlines()]
    for cells, packet in zip(shown, packets(file), strict=True):
        layers = Ether(packet.data)
        ports = [str(layers[kind].dport) if kind in layers else "" for kind in (TCP, UDP)]
        seconds, nanoseconds = divmod(packet.at_ns, 10**9)
        assert cells == [
            f"{seconds}.{nanoseconds:09}",
            str(packet.length),
            layers[IP].src,
            layers[IP].dst,
            *ports,
        ]
        assert layers[IP].len == packet.length - 14
    assert {cells[5] for cells in shown} == {"", "20000"}


def test_a_link_that_is_none_is_bad_input(tmp_path: Path) -> None:
    trace = written(all_reduces(2, 1000, steps=1), tmp_path)
    said = tracebed("replay", trace, "--network", "ethernet-10g", "--pcap", "host7", "-o", tmp_path / "runs")
    assert said.returncode == 2
    expected = "tracebed: --pcap host7: network ethernet-10g has no such link: expected one of host0, host1\n"
    assert said.stderr == expected
    assert not (tmp_path / "runs").exists()
