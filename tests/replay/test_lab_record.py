"""A real job, recorded, replayed in the lab kernel on a network that is not shaped: the step takes what it took."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.traces.test_commands import tracebed
from tests.traces.test_record import JOB, record, torchrun
from traces import archive
from traces.steps import recorded_step_ns

pytestmark = [pytest.mark.lab, pytest.mark.torch, pytest.mark.usefixtures("lab", "torch")]


def test_a_replayed_step_takes_what_the_recorded_one_took(tmp_path: Path) -> None:
    made, network, runs = tmp_path / "job.trace", tmp_path / "plain.yaml", tmp_path / "runs"
    record(made, *torchrun(2, str(JOB), "heavy", "8"))
    network.write_text("link: {rate: unlimited}\n")
    assert tracebed("replay", made, "--network", network, "-o", runs) == 0

    (table,) = runs.glob("*/steps.csv")
    steps = [int(row["step_ns"]) for row in csv.DictReader(table.read_text().splitlines())]
    recorded = recorded_step_ns(archive.read(made))
    assert len(steps) == len(recorded) == 7
    assert sum(steps) == pytest.approx(sum(recorded), rel=0.05)
