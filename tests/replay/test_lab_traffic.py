"""Background traffic beside a job, in virtual time: what it carries, and what it takes from the job."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.replay.runs import all_reduces, computing, replayed, rows, step_times, written
from traces.program import Trace

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab")]

MS = 10**6
PAYLOAD, WIRE, COUNTED = 1472, 1538, 1514  # bytes of UDP in a packet of 1500; on the wire; as qdiscs count it


def run(trace: Trace, hosts: int, folder: Path, *traffic: str, more: str = "") -> Path:
    """The run folder of a job on the first of `hosts` round a switch at 10 Gbit/s."""
    network = folder / "net.yaml"
    entries = "".join(f"  - {entry}\n" for entry in traffic)
    network.write_text(f"profile: ethernet-10g\ntopology: {{star: {{hosts: {hosts}}}}}\n{more}traffic:\n{entries}")
    return replayed(written(trace, folder), network, folder)[1]


def test_constant_udp_carries_exactly_what_it_should(tmp_path: Path) -> None:
    """One packet every 12.304 us for 100 ms, from a host without ranks; the job is at rest meanwhile."""
    entry = "constant: {from: host2, to: host0, rate: 1 gbit, at: 10 ms, for: 100 ms}"
    folder = run(computing(2, 120 * MS, steps=1), 3, tmp_path, entry)
    packets = math.ceil(100 * MS / (WIRE * 8))
    (row,) = rows(folder / "traffic.csv")
    assert (row["kind"], row["transport"], row["source"], row["target"]) == ("constant", "udp", "host2", "host0")
    assert (int(row["flows"]), int(row["sent_bytes"])) == (1, packets * PAYLOAD)
    assert row["received_bytes"] == row["sent_bytes"]
    (up,) = (link for link in rows(folder / "links.csv") if link["source"] == "host2")
    assert (int(up["packets"]), int(up["bytes"]), up["drops"]) == (packets, packets * COUNTED, "0")


def test_half_the_rate_taken_on_a_downlink_halves_what_the_ring_gets(tmp_path: Path) -> None:
    """UDP keeps its pace, so TCP gets the rest: 5 of 10 Gbit/s. Of the later steps, which don't hold TCP's start."""
    job = all_reduces(2, 5_000_000, steps=5)
    alone = step_times(run(job, 3, tmp_path, "constant: {from: host2, to: host0, rate: 1 kbit}"))
    shared = step_times(run(job, 3, tmp_path, "constant: {from: host2, to: host0, rate: 5 gbit}"))
    assert sum(shared[1:]) / sum(alone[1:]) == pytest.approx(2, rel=0.05)


def test_incast_into_a_finite_queue_drops_and_tcp_sends_again(tmp_path: Path) -> None:
    """Seven times 64 KiB at once into 100 kB of queue, while the job does nothing on the network; each flow ends all the
    same."""
    sources = ", ".join(f"host{number}" for number in range(1, 8))
    entry = f"incast: {{from: [{sources}], to: host0, every: 400 ms, size: 64 KiB, at: 1 ms, for: 500 ms}}"
    folder = run(computing(2, 1000 * MS, steps=1), 8, tmp_path, entry, more="links: {host0: {queue: 100 kB}}\n")
    drops = {link["source"]: int(link["drops"]) for link in rows(folder / "links.csv") if link["link"] == "host0"}
    assert drops["switch"] > 0 == drops["host0"]
    pairs = rows(folder / "traffic.csv")
    assert [row["source"] for row in pairs] == [f"host{number}" for number in range(1, 8)]
    assert all(
        (row["flows"], row["sent_bytes"]) == ("2", "131072") == (row["flows"], row["received_bytes"]) for row in pairs
    )


def test_a_run_with_traffic_of_every_kind_repeats_to_the_byte(tmp_path: Path) -> None:
    traffic = (
        "constant: {from: host2, to: host0, rate: 1 gbit, transport: tcp}",
        "on_off: {from: [host0, host2], to: [host1, host3], rate: 2 gbit, on: 1 ms, off: 2 ms, times: exponential}",
        "heavy_tailed: {from: host3, to: [host0, host2], rate: 3 gbit, sizes: {pareto: {shape: 1.2, mean: 100 kB}}}",
        "incast: {from: [host1, host2], to: host3, every: 5 ms, size: 40 kB, transport: udp}",
    )
    job = all_reduces(2, 4_000_000, steps=3)
    once, again = (run(job, 4, tmp_path, *traffic, more="link: {queue: 200 kB}\n") for _ in range(2))
    for name in ("steps.csv", "ops.npz", "links.csv", "flows.csv", "traffic.csv"):
        assert (once / name).read_bytes() == (again / name).read_bytes(), name
    found = rows(once / "traffic.csv")
    assert [row["entry"] for row in found] == ["0", "1", "1", "1", "1", "2", "2", "3", "3"]
    assert all(int(row["sent_bytes"]) > 0 < int(row["received_bytes"]) for row in found)
