"""The run folder: what is in it, what its numbers mean, and that a run can be done again from it."""

from __future__ import annotations

from array import array
from pathlib import Path

import msgspec
import numpy as np
import pytest

from emulator.beds.bed import LinkCounters
from emulator.network import Network, load
from replay.control import Flow, Progress, Result
from replay.coordinator import Measurement
from replay.measured import write_measurement
from replay.plan import Plan, lower
from replay.results import RunFolder, read_totals, summarise
from replay.session import load_network, new_folder, read_job, replay
from tests.replay.network import trace_of
from tests.replay.runs import overlapping, rows, run_json, written
from traces.program import Collective, CollectiveKind, Compute, DType, StepMark, Wait

OPERATION = Collective(CollectiveKind.ALL_REDUCE, 0, 250, DType.FLOAT32)


def test_a_steps_row_is_written_when_the_last_rank_has_passed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run", ranks=(0, 1))
    said = [(0, 7, 100, 40), (0, 8, 170, 10), (1, 7, 130, 60), (1, 8, 180, 31)]
    ended = [folder.progress(Progress(rank, step, at, exposed)) for rank, step, at, exposed in said]
    assert ended == [False, False, True, True]
    assert (tmp_path / "run" / "steps.csv").read_text().splitlines() == [
        "step,end_ns,step_ns,exposed_mean_ns,exposed_max_ns,own_mean_ns",
        "7,130,130,50,60,115",
        "8,180,50,20,31,60",
    ]
    assert folder.step_ns() == (130, 50)
    assert folder.exposed_ns() == (50.0, 20.5)
    assert folder.own_step_ns() == (115.0, 60.0)


def test_a_step_that_not_every_rank_has_passed_does_not_count(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, ranks=(0, 1, 2))
    assert not any(folder.progress(Progress(rank, 0, 10, 0)) for rank in (2, 0))
    assert rows(tmp_path / "steps.csv") == []
    assert folder.step_ns() == ()


def test_the_summary_is_of_the_steps_as_the_table_says(tmp_path: Path) -> None:
    """p95 is numpy's: linear between the two steps round it."""
    folder = RunFolder(tmp_path, ranks=(0,))
    end = 0
    for step, took in enumerate((100, 300, 200)):
        end += took
        folder.progress(Progress(0, step, end, took // 2))
    summary = summarise(folder, (400, 500), (50, 70, 60), {"drops": 3, "marks": 1, "retransmits": 2, "verified": 0})
    assert (summary.steps, summary.step_mean_ns, summary.exposed_mean_ns) == (3, 200, 100)
    assert summary.step_p95_ns == pytest.approx(200 + 0.9 * 100)
    assert (summary.recorded_step_ns, summary.ideal_step_ns) == (450, 60)
    assert (summary.drops, summary.marks, summary.retransmits, summary.verified) == (3, 1, 2, 0)


def test_a_recording_without_times_is_compared_with_nothing(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, ranks=(0,))
    folder.progress(Progress(0, 0, 10, 0))
    assert summarise(folder, (), (1,)).recorded_step_ns == 0


def measured() -> tuple[Plan, Network, Measurement]:
    """Two ranks that compute, reduce and pass a mark; times of rank r are 1000 r and up."""
    plan = lower(trace_of(dict.fromkeys((0, 1), (Compute(5), OPERATION, Wait(1), StepMark(0))), steps=1))
    results = {rank: result(rank) for rank in (1, 0)}
    links = (
        LinkCounters("host0", "host0", "switch", 10, 1000, drops=2, overlimits=0, backlog_bytes=0, marks=1),
        LinkCounters("host0", "switch", "host0", 20, 3000, drops=3, overlimits=0, backlog_bytes=0, marks=1),
    )
    return plan, load("ethernet-10g", ranks=2), Measurement(results, links, peaks=(7, 9), readings=4)


def result(rank: int) -> Result:
    issued, began, ended = (array("q", range(at, at + 4)).tobytes() for at in range(rank * 1000, rank * 1000 + 30, 10))
    flow = Flow(rank, 1 - rank, 0, False, 0, "cubic", *range(17))
    return Result(rank, 99, issued, began, ended, flows=(flow,), verified=250)


def test_what_the_end_of_a_run_gives(tmp_path: Path) -> None:
    write_measurement(tmp_path, *measured())
    with np.load(tmp_path / "ops.npz", allow_pickle=False) as ops:
        columns = {name: ops[name].tolist() for name in ops.files}
    assert columns == {
        "rank": [0, 0, 0, 0, 1, 1, 1, 1],
        "op": [0, 1, 2, 3] * 2,
        "kind": ["compute", "all_reduce", "wait", "stepmark"] * 2,
        "group": [-1, 0, -1, -1] * 2,
        "bytes": [0, 1000, 0, 0] * 2,
        "issued": [0, 1, 2, 3, 1000, 1001, 1002, 1003],
        "began": [10, 11, 12, 13, 1010, 1011, 1012, 1013],
        "ended": [20, 21, 22, 23, 1020, 1021, 1022, 1023],
    }
    assert [(row["peak_bytes"], row["readings"]) for row in rows(tmp_path / "links.csv")] == [("7", "4"), ("9", "4")]
    assert [(row["source"], row["packets"], row["bytes"], row["drops"]) for row in rows(tmp_path / "links.csv")] == [
        ("host0", "10", "1000", "2"),
        ("switch", "20", "3000", "3"),
    ]
    flows = rows(tmp_path / "flows.csv")
    assert list(flows[0]) == [field.name for field in msgspec.structs.fields(Flow)]
    assert [(row["rank"], row["peer"], row["congestion"]) for row in flows] == [
        ("0", "1", "cubic"),
        ("1", "0", "cubic"),
    ]
    assert read_totals(tmp_path) == {
        "drops": 5,
        "marks": 2,
        "retransmits": 2 * int(flows[0]["retransmits"]),
        "verified": 500,
    }


def test_the_same_measurement_is_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_measurement(tmp_path / name, *measured())
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()


@pytest.mark.lab
def test_a_run_folder_is_enough_to_run_again(lab: Path, tmp_path: Path) -> None:
    """With a what-if, chosen steps, settings and real tensors."""
    job = read_job(written(overlapping(3, 400_000, steps=4), tmp_path), ("compute=0.5",), "1:3")
    network = load_network("ethernet-10g", job, {"link.loss": "0.5%", "seed": "7"})
    first = replay(job, network, tmp_path / "first", fidelity="packet", verify=True)
    request = run_json(tmp_path / "first").request
    again = read_job(Path(request.trace), request.what_if, request.steps)
    assert again.trace_hash == request.trace_hash
    second = replay(
        again,
        request.resolved_network(),
        tmp_path / "second",
        ground=request.ground,
        fidelity=request.fidelity,
        verify=request.verify,
    )
    assert first == second
    for name in ("steps.csv", "ops.npz", "links.csv", "flows.csv"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()


def test_each_run_has_a_folder_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "my job (1).trace"
    written(overlapping(2, 8, steps=1), tmp_path).rename(path)
    job = read_job(path)
    network = load_network("ethernet-10g", job, {})
    made = [new_folder(tmp_path / "runs", job, network).name for _ in range(3)]
    assert made == ["my_job_1_-ethernet-10g", "my_job_1_-ethernet-10g-2", "my_job_1_-ethernet-10g-3"]
