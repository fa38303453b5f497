"""tracebed why: what holds the steps of runs that were made, and what their timeline shows."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from replay.critical import Holder
from replay.results import read_holders
from tests.replay.runs import overlapping, replayed, run_json, tracebed, written

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("why")
    return replayed(written(overlapping(3, 4_000_000, steps=2), base), "ethernet-1g", base)[1]


def test_the_table_says_what_critical_json_does(folder: Path) -> None:
    said = tracebed("why", folder, env={"COLUMNS": "80"})
    assert said.returncode == 0, said.stderr
    title, *lines = said.stdout.splitlines()
    summary = run_json(folder).summary
    assert summary is not None
    assert title.startswith(f"job-ethernet-1g; a step: {summary.step_mean_ns / 1e6:.4g}; times in ms")
    found = read_holders(folder)
    kinds = {"compute": "compute of ", "operation": "", "link": "link "}
    names = [f" {kinds[each.kind]}{each.name} " for each in found]
    rows = [line for line in lines if line.startswith(tuple(names))]
    assert len(rows) == len(found) >= 5
    for row, each in zip(rows, found, strict=True):
        cells = row.split()[-3:]
        part = f"{each.path_ns / summary.step_mean_ns:.0%}"
        assert cells == [f"{each.path_ns / 1e6:.4g}", part, f"{each.free_step_ns / 1e6:.4g}"]
    assert all(each.free_step_ns <= summary.step_mean_ns for each in found)


def test_json_is_a_list_for_each_folder(folder: Path) -> None:
    said = tracebed("why", folder, folder, "--json")
    assert msgspec.json.decode(said.stdout, type=list[tuple[Holder, ...]]) == [read_holders(folder)] * 2


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    said = tracebed("why", tmp_path)
    assert (said.returncode, said.stderr) == (2, f"tracebed: {tmp_path}: is no run folder: it has no run.json\n")


def test_a_run_that_did_not_come_to_its_end(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes((folder / "run.json").read_bytes())
    said = tracebed("why", tmp_path)
    assert said.returncode == 2
    assert "did not come to its end, so what holds it is not known (run.json says how it ended)" in said.stderr


def test_the_timeline_has_every_operation_when_it_was_measured(folder: Path) -> None:
    events = json.loads((folder / "timeline.json").read_text())["traceEvents"]
    drawn = {(event["pid"], event["name"]) for event in events if event["ph"] == "X"}
    names = ("compute", "all_reduce", "all_to_all", "wait: all_reduce", "wait: all_to_all")
    assert drawn == {(rank, name) for rank in range(3) for name in names}
    ends = [event["ts"] * 1000 for event in events if event.get("name") == "step 1 ends"]
    last = int((folder / "steps.csv").read_text().splitlines()[-1].split(",")[1])
    assert len(ends) == 3
    assert max(ends) == pytest.approx(last)
