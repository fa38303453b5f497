"""Replays between containers, with netem, in the lab kernel: in virtual time they are those of the netns bed to the byte; in
real time they come close."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from emulator.kernel.boot import Guest, run
from emulator.ledger import Ledger
from replay import control
from replay.execute import Said
from tests.guest import ROOT
from tests.replay.runs import all_reduces, overlapping, replayed, run_json, step_times, written
from tests.replay.test_lab_determinism import MEASURED

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab")]

BUSY = """
profile: ethernet-10g
topology: {star: {hosts: 4}}
link: {loss: 0.1%, queue: 200 kB}
traffic:
  - constant: {from: host3, to: host0, rate: 1 gbit}
  - incast: {from: [host1, host2, host3], to: host0, every: 5 ms, size: 16 KiB}
"""
REAL_TIME = 0.1
"""What real time may add: the issue's bound."""


@pytest.mark.parametrize("delay", ["10 us", "5 ms"])
@pytest.mark.parametrize("rate", ["1 gbit", "25 gbit"])
def test_the_step_times_of_the_netns_bed(rate: str, delay: str, tmp_path: Path, needs: Callable[..., None]) -> None:
    needs("dockerd")
    trace = written(overlapping(2, 1_000_000, steps=2), tmp_path)
    settings = {"link.rate": rate, "link.delay": delay}
    _, plain = replayed(trace, "ethernet-10g", tmp_path, settings)
    summary, boxed = replayed(trace, "ethernet-10g", tmp_path, settings, bed="docker")
    assert (summary.status, summary.request.bed) == ("complete", "docker")
    for name in MEASURED:
        assert (plain / name).read_bytes() == (boxed / name).read_bytes(), name


def test_the_same_bytes_with_all_that_a_run_has(tmp_path: Path, needs: Callable[..., None]) -> None:
    """Packets lost, queues that overflow, background traffic from hosts with and without ranks, every element checked."""
    needs("dockerd")
    network = tmp_path / "busy.yaml"
    network.write_text(BUSY)
    trace = written(overlapping(3, 500_000, steps=2), tmp_path)
    beds = ("netns", "docker", "docker")
    plain, once, again = (replayed(trace, network, tmp_path, bed=bed, verify=True)[1] for bed in beds)
    for name in (*MEASURED, "traffic.csv"):
        assert (plain / name).read_bytes() == (once / name).read_bytes() == (again / name).read_bytes(), name


@pytest.mark.parametrize(("network", "what_if"), [("roce-25", "ps=2"), ("ethernet-10g", "byteps=2")])
def test_the_same_bytes_by_rdma_and_with_servers(
    network: str, what_if: str, tmp_path: Path, needs: Callable[..., None]
) -> None:
    needs("dockerd")
    trace = written(overlapping(3, 500_000, steps=2), tmp_path)
    plain, boxed = (replayed(trace, network, tmp_path, bed=bed, what_if=[what_if])[1] for bed in ("netns", "docker"))
    for name in MEASURED:
        assert (plain / name).read_bytes() == (boxed / name).read_bytes(), name


def test_in_real_time(tmp_path: Path, needs: Callable[..., None]) -> None:
    """The fastest of its steps, for the machine may be busy in others."""
    needs("dockerd")
    trace = written(all_reduces(2, 1_000_000, steps=6), tmp_path)
    settings = {"link.rate": "50 mbit", "link.delay": "10 ms"}
    _, virtual = replayed(trace, "ethernet-10g", tmp_path, settings, bed="docker")
    real = tmp_path / "real"
    real.mkdir()
    (real / "run.json").write_bytes(msgspec.json.encode(run_json(virtual)))
    assert min(in_real_time(real)) == pytest.approx(min(step_times(virtual)), rel=REAL_TIME)


def in_real_time(folder: Path) -> list[int]:
    """The step times of the run in `folder`, done in the lab kernel with the machine's clock."""
    ends: dict[int, int] = {}
    decoder = msgspec.json.Decoder(Said)

    def listen(line: str) -> None:
        said = decoder.decode(line)
        if isinstance(said, control.Progress):
            ends[said.step] = max(ends.get(said.step, 0), said.at_ns)

    guest = Guest(
        (sys.executable, "-m", "replay.execute", str(folder)), virtual=False, env={"PYTHONPATH": str(ROOT)}, cwd=ROOT
    )
    with Ledger(f"test-{folder.name}") as ledger:
        assert run(guest, ledger, on_output=print, on_progress=listen) == 0
    marks = [0, *(ends[step] for step in sorted(ends))]
    return [after - before for before, after in pairwise(marks)]
