"""Damaged schedules are one-line errors, or traces that can be kept: never a traceback."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from replay.export import export
from tests.traces import test_pcap_odd, test_pcap_rdma
from tests.traces.captures import as_pcapng, headers, rings
from tests.traces.test_commands import SAMPLE
from traces import archive
from traces.errors import TraceError
from traces.files import Opened, open_all
from traces.formats import FORMATS, ProgramFormat
from traces.program import Trace

MUTATIONS = 20_000


def damaged(data: bytes, dice: random.Random) -> bytes:
    """`data` with some lines or bytes changed, doubled, swapped or left out."""
    lines = data.split(b"\n")
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(lines))
        lines[at] = dice.choice(_WAYS)(lines[at], dice.choice(lines), dice)
    return b"\n".join(lines)


_NUMBERS = (b"-1", b"99999999999999999", b"1e400", b"x", b"\xff")
_ENDS = (b"/*", b" //", b"{", b"}", b" 5", b"\x00")
_WAYS: tuple[Callable[[bytes, bytes, random.Random], bytes], ...] = (
    lambda line, other, dice: b"",
    lambda line, other, dice: other,
    lambda line, other, dice: line[: dice.randint(0, 20)],
    lambda line, other, dice: line.replace(b"1", dice.choice(_NUMBERS)),
    lambda line, other, dice: b" ".join(sorted(line.split(b" "), key=lambda word: dice.random())),
    lambda line, other, dice: line + dice.choice(_ENDS),
)


@pytest.mark.parametrize("name", ["goal", "smpi-ti", "param"])
def test_damage_is_never_a_traceback(name: str, tmp_path: Path) -> None:
    known = FORMATS[name]
    assert isinstance(known, ProgramFormat)
    written = export(archive.read(SAMPLE), name)[0]
    data = _short(written if isinstance(written, bytes) else written["rank-0.json"], name)
    dice = random.Random(f"damage {name}")
    kept = refused = 0
    for _ in range(MUTATIONS):
        try:
            trace: Trace = known.read([Opened("x", damaged(data, dice), "", True)])
            if kept % 20 == 0:  # writing takes longer than reading
                archive.write(trace, tmp_path / "x.trace")
            kept += 1
        except TraceError:
            refused += 1
    assert kept > MUTATIONS // 100
    assert refused > MUTATIONS // 10


@pytest.mark.corpus
def test_a_damaged_chakra_file_is_never_a_traceback(corpus: Path) -> None:
    name = "astra-sim/examples/system/custom_collectives/custom_ring_allreduce_8npus_1MB/custom_allreduce.1.et"
    data = (corpus / name).read_bytes()
    known, dice = FORMATS["chakra"], random.Random("damage chakra")
    assert isinstance(known, ProgramFormat)
    nodes = b"\x07\x0a\x050.0.4" + data[26_717:]  # what lies behind the metadata, which holds the whole MSCCL program
    kept = refused = 0
    for _ in range(MUTATIONS):
        bad = bytearray(nodes)
        for _ in range(dice.randint(1, 4)):
            bad[dice.randrange(len(bad))] = dice.randrange(256)
        try:
            known.read([Opened("x.1.et", bytes(bad[: dice.choice((len(bad), dice.randrange(len(bad))))]), "", True)])
            kept += 1
        except TraceError:
            refused += 1
    assert kept > MUTATIONS // 100
    assert refused > MUTATIONS // 10


@pytest.mark.corpus
def test_a_damaged_chakra_json_is_never_a_traceback(corpus: Path) -> None:
    """A rank of the recorded JSON, and one with every field."""
    recorded = min((file.whole().data for file in open_all([corpus / "chakra/tests/data/json_trace.tar.gz"])), key=len)
    message = (
        b'{"Id": 9,\n"NodeType": 5,\n"comm_dst": 1,\n"comm_tag": 1,\n"comm_size": 11,\n"data_deps": [216,\n217]\n}'
    )
    known, dice = FORMATS["chakra"], random.Random("damage chakra json")
    assert isinstance(known, ProgramFormat)
    data = recorded.replace(b'"workload_graph": [', b'"workload_graph": [\n' + message + b",")
    kept = refused = 0
    for _ in range(MUTATIONS):
        try:
            known.read([Opened("x.1.json", damaged(data, dice), "", True)])
            kept += 1
        except TraceError:
            refused += 1
    assert kept > MUTATIONS // 100
    assert refused > MUTATIONS // 10


def _short(data: bytes, name: str) -> bytes:
    """The first lines of each rank, so that many can be tried."""
    lines = data.decode().split("\n")
    if name == "goal":
        blocks = "\n".join(lines).split("\n}")
        return "\n}".join(["\n".join(block.split("\n")[:40]) for block in blocks]).encode()
    if name == "param":
        return "\n".join([*lines[:40], lines[-3], "]"]).encode()
    return "\n".join(line for rank in range(4) for line in [x for x in lines if x.startswith(f"{rank} ")][:25]).encode()


_CAPTURES = {
    "pcap": 5_000,
    "pcapng": 10_000,
    "rdma": 3_000,
    "tunnel": 2_000,
}  # MUTATIONS in all; scapy takes the longest


@pytest.mark.parametrize("name", _CAPTURES)
def test_a_damaged_capture_is_never_a_traceback(name: str, tmp_path: Path) -> None:
    data = _capture(name, tmp_path / "x.pcap")
    known, dice = FORMATS["pcap"], random.Random(f"damage {name}")
    assert isinstance(known, ProgramFormat)
    kept = refused = 0
    for _ in range(_CAPTURES[name]):
        bad = bytearray(data)
        for _ in range(dice.randint(1, 12)):
            bad[dice.choice((dice.randrange(120), dice.randrange(len(bad))))] = dice.choice(
                (0, 255, dice.randrange(256))
            )
        try:
            trace = known.read([Opened("x", bytes(bad[: dice.choice((len(bad), dice.randrange(len(bad))))]), "", True)])
            if kept % 20 == 0:
                archive.write(trace, tmp_path / "x.trace")
            kept += 1
        except TraceError:
            refused += 1
    assert kept > _CAPTURES[name] // 50
    assert refused > _CAPTURES[name] // 50


def _capture(name: str, file: Path) -> bytes:
    """A small capture's headers: of TCP, of TCP with a packet in a tunnel behind extension headers, or of RDMA."""
    job = rings(2, 1_000, 2)
    if name == "rdma":
        job = test_pcap_rdma.over_rdma(job, test_pcap_rdma.WRITES, {}, 0, 100)
    if name == "tunnel":
        at_us, packet = job.packets[1]
        job.packets[1] = at_us, test_pcap_odd.deep(packet)
    data = job.write(file).read_bytes()
    return as_pcapng(data) if name == "pcapng" else headers(data, 160 if name == "tunnel" else 54)
