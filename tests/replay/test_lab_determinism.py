"""The same replay gives the same bytes, whatever else the machine does meanwhile; another seed gives others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.replay.runs import overlapping, replayed, run_json, step_times, written

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab")]

MEASURED = (
    "steps.csv", "ops.npz", "links.csv", "flows.csv", "totals.json", "collectives.csv", "critical.json", "timeline.json",
)  # fmt: skip
LOSSY = {"link.loss": "0.1%"}
BURN = "import os, signal\nsignal.alarm(120)\nwhile os.getppid() == {}: pass"


@contextmanager
def busy_processors() -> Iterator[None]:
    """Every processor has other work for as long as this lasts, or as this process lives."""
    burners = [subprocess.Popen([sys.executable, "-c", BURN.format(os.getpid())]) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


@pytest.mark.parametrize(
    ("network", "settings", "fidelity"),
    [("ethernet-10g", LOSSY, "packet"), ("wan-continental", {}, "packet"), ("ethernet-10g", {}, "burst")],
    ids=["loss", "wan", "burst"],
)
@pytest.mark.parametrize("ranks", [2, 8])
def test_the_same_bytes_on_a_busy_machine(
    ranks: int, network: str, settings: Mapping[str, str], fidelity: str, tmp_path: Path
) -> None:
    trace = written(overlapping(ranks, 2_000_000, steps=3), tmp_path)
    once, idle = replayed(trace, network, tmp_path, settings, fidelity=fidelity)
    with busy_processors():
        again, busy = replayed(trace, network, tmp_path, settings, fidelity=fidelity)
    assert idle != busy
    for name in MEASURED:
        assert (idle / name).read_bytes() == (busy / name).read_bytes(), name
    assert once == again == run_json(busy)
    assert (once.fidelity, once.status) == (fidelity, "complete")
    assert bool(settings) <= (once.summary is not None and once.summary.retransmits > 0)


def test_the_same_bytes_where_ranks_share_what_their_host_copies(tmp_path: Path) -> None:
    trace = written(overlapping(4, 2_000_000, steps=2), tmp_path)
    network = tmp_path / "pods.yaml"
    network.write_text("profile: ethernet-100g\ntopology: {star: {hosts: 2, ranks_per_host: 2}}\ntcp: {streams: 2}\n")
    _, once = replayed(trace, network, tmp_path, costs=True)
    with busy_processors():
        _, again = replayed(trace, network, tmp_path, costs=True)
    for name in MEASURED:
        assert (once / name).read_bytes() == (again / name).read_bytes(), name


def test_another_seed_loses_other_packets(tmp_path: Path) -> None:
    trace = written(overlapping(2, 2_000_000, steps=2), tmp_path)
    _, one = replayed(trace, "ethernet-10g", tmp_path, LOSSY)
    _, other = replayed(trace, "ethernet-10g", tmp_path, {**LOSSY, "seed": "2"})
    assert step_times(one) != step_times(other)
