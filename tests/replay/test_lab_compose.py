"""Compose files brought up in the lab kernel, with netem: in virtual time they give what the netns bed gives, to the byte; in
real time they come close."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.composed import IMAGE, use_this_machine
from tests.guest import run_guest
from tests.replay.runs import all_reduces, overlapping, replayed, run_json, step_times, tracebed, written
from tests.replay.test_lab_determinism import MEASURED
from traces.program import Trace

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab")]

PROGRAMS = ("dockerd", "docker", "docker-compose")
NETWORK = "ethernet-10g"
REAL_TIME = 0.1
"""What real time may add: the issue's bound."""


def made(folder: Path, trace: Trace, settings: Mapping[str, str], network: str = NETWORK, what_if: str = "") -> Path:
    """The folder of a compose file, FOLDER/bed."""
    folder.mkdir()
    options = [option for key, value in settings.items() for option in ("--set", f"{key}={value}")]
    options += ["--what-if", what_if] if what_if else []
    asked = ("--network", network, *options, "--image", IMAGE)
    said = tracebed("compose", written(trace, folder), *asked, "-o", folder / "bed")
    assert said.returncode == 0, said.stderr
    use_this_machine(folder / "bed")
    return folder / "bed"


def test_the_bytes_of_the_netns_bed(tmp_path: Path, needs: Callable[..., None]) -> None:
    """At two rates, two delays and two congestion controls, and once again in the same containers.

    Unprivileged ranks may not choose dctcp themselves.
    """
    needs(*PROGRAMS)
    asked = [
        {"link.rate": "1 gbit", "link.delay": "5 ms"},
        {"link.rate": "25 gbit", "link.delay": "10 us", "tcp.congestion": "dctcp"},
    ]
    trace = overlapping(2, 1_000_000, steps=2)
    beds = [made(tmp_path / str(number), trace, settings) for number, settings in enumerate(asked)]
    ended = run_guest("composed", *map(str, (*beds, beds[0])))
    assert [said["statuses"] for said in ended] == [{"tracebed": 0, "host0": 0, "host1": 0}] * 3, ended
    for bed, settings, runs in zip(beds, asked, (2, 1), strict=True):
        _, plain = replayed(bed / "job.trace", NETWORK, tmp_path, settings)
        composed = sorted((bed / "runs").iterdir())
        assert len(composed) == runs
        for run in composed:
            assert run_json(run).request.bed == "compose"
            for name in MEASURED:
                assert (run / name).read_bytes() == (plain / name).read_bytes(), (run, name)


def test_servers_and_rdma(tmp_path: Path, needs: Callable[..., None]) -> None:
    """Also of ranks without privileges. Costs are left out, as ranks that share no memory have none."""
    needs(*PROGRAMS)
    bed = made(tmp_path / "made", overlapping(2, 1_000_000, steps=2), {}, "roce-25", "ps=1")
    (ended,) = run_guest("composed", str(bed))
    assert set(ended["statuses"].values()) == {0}, ended
    _, plain = replayed(bed / "job.trace", "roce-25", tmp_path, what_if=["ps=1"])
    (composed,) = (bed / "runs").iterdir()
    for name in MEASURED:
        assert (composed / name).read_bytes() == (plain / name).read_bytes(), name


def test_in_real_time(tmp_path: Path, needs: Callable[..., None]) -> None:
    """The fastest of its steps, for the machine may be busy in others."""
    needs(*PROGRAMS)
    settings = {"link.rate": "50 mbit", "link.delay": "10 ms"}
    bed = made(tmp_path / "real", all_reduces(2, 1_000_000, steps=6), settings)
    (ended,) = run_guest("composed", str(bed), virtual=False)
    (real,) = (bed / "runs").iterdir()
    assert ended["statuses"] == {"tracebed": bool(run_json(real).doubts), "host0": 0, "host1": 0}, ended
    _, virtual = replayed(bed / "job.trace", NETWORK, tmp_path, settings)
    assert min(step_times(real)) == pytest.approx(min(step_times(virtual)), rel=REAL_TIME)
