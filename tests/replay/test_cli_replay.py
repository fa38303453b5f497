"""tracebed replay as its user meets it: the table, the JSON, the run folders, the exit status."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from replay.results import Run
from tests.conftest import ROOT
from tests.replay.runs import all_reduces, run_json, step_times, tracebed, written

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab")]

SAMPLE = ROOT / "traces" / "samples" / "resnet50-ddp.trace"
NETWORKS = ("--network", "ethernet-100g,wan-transatlantic")
COLUMNS = ("network", "step mean", "±95%", "median", "p95", "exposed", "vs recorded", "ideal", "drops")


def test_json_is_what_each_run_json_says(tmp_path: Path) -> None:
    trace = written(all_reduces(2, 400_000, steps=3), tmp_path)
    said = tracebed("replay", trace, *NETWORKS, "--set", "link.queue=200 packets", "-o", tmp_path / "runs", "--json")
    assert said.returncode == 0
    runs = msgspec.json.decode(said.stdout, type=list[Run])
    folders = [tmp_path / "runs" / f"job-{name}" for name in ("ethernet-100g", "wan-transatlantic")]
    assert runs == [run_json(folder) for folder in folders]
    for run in runs:
        assert (run.status, run.error, run.fidelity) == ("complete", "", "packet")
        assert run.kernel["clock"] == "virtual"
        assert {link["up"]["queue"] for link in run.request.network["links"].values()} == {"200 packets"}
        assert run.summary is not None
        assert (run.summary.steps, run.summary.ideal_step_ns, run.summary.recorded_step_ns) == (3, 0, 0)


def test_the_table_fits_100_columns_and_says_what_was_assumed(tmp_path: Path) -> None:
    said = tracebed(
        "replay", SAMPLE, *NETWORKS, "--what-if", "compute=0.01", "--steps", "1:3",
        "--set", "link.delay=1 us", "--fidelity", "burst", "-o", tmp_path, env={"COLUMNS": "100"},
    )  # fmt: skip
    assert said.returncode == 0
    lines = said.stdout.splitlines()
    assert lines[0].startswith("resnet50-ddp; ranks: 4, steps: 2, on virtual; times in ms")
    heading = " ".join(lines[1:4])  # a name may take two lines
    assert all(word in heading for name in COLUMNS for word in name.split())
    for name in ("ethernet-100g", "wan-transatlantic"):
        run = run_json(tmp_path / f"resnet50-ddp-{name}")
        row, path = (line for line in lines if line.startswith(f" {name} "))
        assert len(row) <= 100
        assert run.summary is not None
        cells = re.split(r"\s{2,}", row.strip())
        assert len(cells) == len(COLUMNS)
        shown = [float(cells[at].replace(",", "")) for at in (1, 3, 4, 7)]
        meant = [
            run.summary.step_mean_ns,
            run.summary.step_median_ns,
            run.summary.step_p95_ns,
            run.summary.ideal_step_ns,
        ]
        assert shown == pytest.approx([ns / 1e6 for ns in meant], rel=1e-3)
        assert run.summary.ideal_step_ns < run.summary.step_mean_ns <= run.summary.step_p95_ns
        assert run.summary.exposed_mean_ns <= run.summary.step_mean_ns
        low, high = run.summary.step_low_ns, run.summary.step_high_ns
        assert low <= run.summary.step_mean_ns <= high
        half = max(high - run.summary.step_mean_ns, run.summary.step_mean_ns - low)
        assert float(cells[2].replace(",", "")) == pytest.approx(half / 1e6, rel=1e-3)
        assert cells[5] == f"{run.summary.exposed_mean_ns / run.summary.step_mean_ns:.0%}"
        assert cells[6] == f"{run.summary.step_mean_ns / run.summary.recorded_step_ns:.2f}x"
        assert cells[8] == f"{run.summary.drops:,}"
        assert run.summary.held[0].name in path
        assert any(f"link {run.summary.held[-1].name} " in line for line in lines)
        assert str(tmp_path / f"resnet50-ddp-{name}") in lines[-1] + lines[-2]
    assert "set in every network: link.delay=1 us" in lines
    assert any(line.startswith("what if: compute x 0.01: ") for line in lines)
    assert any(line.startswith("vs recorded: against the job as it was recorded") for line in lines)


def test_what_hosts_take_is_said(tmp_path: Path) -> None:
    trace = written(all_reduces(2, 400_000, steps=1), tmp_path)
    said = tracebed("replay", trace, "--network", "roce-100", "--network", "nvlink-a100", "-o", tmp_path / "runs")
    assert said.returncode == 0
    costs = "host costs, as timed work: 530 ns a message, half on each host"
    lines = said.stdout.splitlines()
    assert f"roce-100: {costs}" in lines
    assert run_json(tmp_path / "runs" / "job-roce-100").assumed == (costs,)
    assert run_json(tmp_path / "runs" / "job-nvlink-a100").assumed == ()


def test_what_was_verified_is_said(tmp_path: Path) -> None:
    trace = written(all_reduces(2, 400_000, steps=3), tmp_path)
    said = tracebed("replay", trace, "--network", "ethernet-1g", "--verify", "-o", tmp_path / "runs")
    assert said.returncode == 0
    assert "verified: 600,000 elements, all right" in said.stdout.splitlines()


def test_the_job_is_slower_on_a_slower_network(tmp_path: Path) -> None:
    """The sample, its compute scaled away: what is left is 25.6 million float32 gradients a step round four ranks. The last
    network is not faster than the 16.5 Gbit/s that a host's core copies.
    """
    names = ("ethernet-1g", "ethernet-10g", "ethernet-100g")
    networks = [word for name in names for word in ("--network", name)]
    said = tracebed("replay", SAMPLE, *networks, "--what-if", "compute=0", "--steps", "1:4", "-o", tmp_path, "--json")
    means = [run.summary.step_mean_ns for run in msgspec.json.decode(said.stdout, type=list[Run]) if run.summary]
    bits = 1.5 * 25_557_032 * 32  # 2 (N-1) / N of the gradients
    headers = 1538 / 1448
    for mean, needed in zip(means, (bits * headers, bits * headers / 10, bits / 16.5), strict=True):
        assert needed < mean < 1.1 * needed


def test_a_first_step_in_which_tcp_finds_its_rate_is_left_out_and_said(tmp_path: Path) -> None:
    """At a delay of 10 ms it takes nearly three times as long; the others are alike to the ns or two."""
    trace = written(all_reduces(2, 8_000_000, steps=8), tmp_path)
    network = ["--network", "ethernet-1g", "--set", "link.delay=5 ms", "--set", "costs=none", "--fidelity", "burst"]
    said = tracebed("replay", trace, *network, "-o", tmp_path / "runs")
    assert said.returncode == 0
    folder = tmp_path / "runs" / "job-ethernet-1g"
    first, *others = step_times(folder)
    summary = run_json(folder).summary
    assert summary is not None
    assert first > 2 * max(others), (first, others)
    assert (summary.steps, summary.warmup_steps) == (8, 1)
    assert summary.step_mean_ns == pytest.approx(sum(others) / 7)
    assert min(others) <= summary.step_low_ns <= summary.step_mean_ns <= summary.step_high_ns <= max(others)
    line = "ethernet-1g: the first step is unlike the rest (warm-up) and left out of all times; steps.csv has all"
    assert line in said.stdout.splitlines()
