"""Captures read: packets a second of CPU time, by the reader behind `tracebed import *.pcap` and by scapy, in turns on one file.

The file is a capture of full TCP packets, 128 bytes kept of each, as `tracebed replay --pcap` makes it. Ours goes on to the
bytes of each flow and to the whole trace; scapy's RawPcapReader only hands out packets as bytes, its PcapReader looks inside.
"""

from __future__ import annotations

import argparse
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
from scapy.layers import inet, l2  # noqa: F401 - what PcapReader looks inside with
from scapy.utils import PcapReader, RawPcapReader

from traces.importer import import_files
from traces.wire import flows, records
from traces.wire.packets import Reader

RANKS, BURST, KEPT = 8, 4096, 128
SCAPY_LOOKS_INSIDE = 20_000  # packets: it takes long


def capture(packets: int) -> bytes:
    """A ring of RANKS, each sending BURST packets of 1448 bytes a step and then resting for 10 ms."""
    number = np.arange(packets)
    source, count = number % RANKS, number // RANKS
    fields = [("record", "<u4", 4), ("ether", ">u2", 7), ("ip", ">u2", 6), ("from", ">u4"), ("to", ">u4")]
    fields += [("ports", ">u2", 2), ("seq", ">u4"), ("ack", ">u4"), ("flags", ">u2", 4), ("rest", "u1", KEPT - 54)]
    rows = np.zeros(packets, fields)
    at_ns = count * 1230 * RANKS + count // BURST * 10_000_000
    rows["record"] = np.stack([at_ns // 10**9, at_ns % 10**9, np.full(packets, KEPT), np.full(packets, 1502)], axis=1)
    rows["ether"][:, 6] = 0x0800
    rows["ip"] = np.stack([np.full(packets, v) for v in (0x4500, 1488, 0, 0x4000, 0x4006, 0)], axis=1)
    rows["ip"][:, 2] = number
    rows["from"], rows["to"] = 0x0A000001 + source, 0x0A000001 + (source + 1) % RANKS
    rows["ports"], rows["seq"], rows["flags"][:, 0] = (20_000, 40_000), count * 1448, 0x5010
    return struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, KEPT, 1) + rows.tobytes()


def ours(path: Path) -> None:
    data, reader = path.read_bytes(), Reader()
    reader.add(data, records.read(data, path.name), path.name)
    pieces = flows.pieces(reader.segments())
    assert pieces.missing == 0


def scapys(kind: Callable[[str], RawPcapReader], packets: int) -> Callable[[Path], None]:
    def run(path: Path) -> None:
        with kind(str(path)) as reader:
            for _ in zip(range(packets), reader, strict=False):
                pass

    return run


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--packets", type=int, default=1_000_000, help="in the capture (default: 1,000,000)")
    options.add_argument("--rounds", type=int, default=3, help="of all, in turns (default: 3)")
    chosen = options.parse_args()
    inside = min(SCAPY_LOOKS_INSIDE, chosen.packets)
    ways: dict[str, tuple[Callable[[Path], object], int]] = {
        "ours, bytes by flow": (ours, chosen.packets),
        "ours, whole import": (lambda path: import_files([path]), chosen.packets),
        "scapy, raw packets": (scapys(RawPcapReader, chosen.packets), chosen.packets),
        "scapy, looked inside": (scapys(PcapReader, inside), inside),
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "ring.pcap")
        path.write_bytes(capture(chosen.packets))
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(chosen.rounds):
            for name, (run, packets) in ways.items():
                began = time.process_time()
                run(path)
                rates[name].append(packets / (time.process_time() - began))
    found = {name: median(values) for name, values in rates.items()}
    for name, rate in found.items():
        print(f"{name:<22}{rate:>12,.0f} packets/s")
    whole = found["ours, whole import"]
    print(f"the whole import is {whole / found['scapy, looked inside']:.0f} times as fast as scapy looking inside")
    if whole < 300_000:
        sys.exit("expected at least 300,000 packets/s")


if __name__ == "__main__":
    main()
