"""A trace made from a description, replayed in the lab kernel."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from replay.ideal import ideal_step_ns
from replay.plan import lower
from tests.traces.test_commands import tracebed
from traces import archive

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab")]


def test_what_is_exposed_of_a_made_ddp_step_is_its_last_bucket(tmp_path: Path) -> None:
    made, runs = tmp_path / "resnet50.trace", tmp_path / "runs"
    assert tracebed("synth", "resnet50", "--ranks", 4, "--steps", 2, "-o", made) == 0
    assert tracebed("replay", made, "--network", "ethernet-25g", "--set", "costs=none", "-o", runs) == 0

    (table,) = runs.glob("*/steps.csv")
    steps = [int(row["step_ns"]) for row in csv.DictReader(table.read_text().splitlines())]
    ideal = ideal_step_ns(lower(archive.read(made)))
    ring_ns = 2 * 3 / 4 * 2_431_040 * 4 * 8 / 25  # nothing but the wire's time of the last of the five buckets
    for step_ns, ideal_ns in zip(steps, ideal, strict=True):
        assert ring_ns < step_ns - ideal_ns < 1.2 * ring_ns
