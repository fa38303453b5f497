"""What is written to be looked at: Perfetto's JSON and the tables."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas
import pytest

from emulator.errors import MachineError
from replay.export import export
from tests.traces.build import exchange, reduce, sync, trace
from tests.traces.test_commands import SAMPLE, tracebed
from traces import archive
from traces.errors import TraceError
from traces.formats import perfetto, table
from traces.program import Collective, Communication, Compute, Op, Recv, Send, StepMark, Trace, Wait

UNTIMED = trace(
    [Compute(3000, "forward"), reduce(8), Compute(500), Wait(1), *sync(Send(1, 9, tag=4), 4), StepMark(0), StepMark(1)],
    [Compute(1000), reduce(8), Wait(1), *sync(Recv(0, 9, tag=4), 3), StepMark(0), StepMark(1)],
)


def drawn(job: Trace) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(perfetto.write(job)[0])["traceEvents"]
    return events


def test_without_times_compute_alone_lays_out() -> None:
    events = drawn(UNTIMED)

    of_0 = [(e["tid"], e["ph"], e["name"], e["ts"], e.get("dur")) for e in events if e["ph"] in "Xi" and not e["pid"]]
    assert of_0 == [
        (0, "X", "forward", 0, 3.0),
        (1, "X", "all_reduce", 3.0, 0.5),
        (0, "X", "compute", 3.0, 0.5),
        (0, "X", "wait: all_reduce", 3.5, 0),
        (1, "X", "send", 3.5, 0),
        (0, "X", "wait: send", 3.5, 0),
        (0, "i", "step 0 ends", 3.5, None),
        (0, "i", "step 1 ends", 3.5, None),
    ]
    assert [finding.code for finding in perfetto.write(UNTIMED)[1]] == ["laid-out"]


def test_recorded_times_are_drawn_and_no_two_of_a_thread_overlap() -> None:
    job = archive.read(SAMPLE)
    events = drawn(job)
    by_thread: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            by_thread[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))

    assert perfetto.write(job)[1] == ()
    assert by_thread.keys() == {(rank, thread) for rank in range(4) for thread in (0, 1)}
    for spans in by_thread.values():
        assert all(end <= start + 1e-6 for (_, end), (start, _) in pairwise(spans))
    for rank, program in job.programs.items():
        own = {e["args"]["op"]: e for e in events if e["pid"] == rank and e["ph"] in "Xi"}
        assert own.keys() == set(range(len(program.ops)))
        for index, op in enumerate(program.ops):
            if isinstance(op, Communication):
                assert own[index]["args"]["called_ns"] == op.origin.start_ns
                assert own[index]["args"]["ended_ns"] == op.origin.end_ns
                assert own[index]["ts"] + own[index]["dur"] >= op.origin.end_ns / 1000 - 1e-6
            elif isinstance(op, Wait):
                assert own[index]["args"]["stopped_ns"] == op.origin.start_ns
                assert own[index]["ts"] >= op.origin.start_ns / 1000
            else:
                assert own[index]["ts"] == op.origin.start_ns / 1000
    heads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert heads[2, 0] == "program"
    assert heads[2, 1] == "group 0"


def test_the_table_has_a_row_an_operation() -> None:
    job = trace(
        [*sync(exchange([1, 2], [1, 5])), Compute(1 << 60, "a, b"), StepMark(3)],
        [*sync(exchange([5, 4], [2, 4])), StepMark(3)],
    )
    rows = list(csv.DictReader(io.StringIO(table.csv(job).decode())))

    assert list(rows[0]) == list(table.COLUMNS)
    assert [(row["rank"], row["op"], row["kind"]) for row in rows[:5]] == [
        ("0", "0", "all_to_all"), ("0", "1", "wait"), ("0", "2", "compute"), ("0", "3", "step"), ("1", "0", "all_to_all"),
    ]  # fmt: skip
    first, wait, compute, mark = rows[:4]
    assert {name: value for name, value in first.items() if value} == {
        "rank": "0", "op": "0", "kind": "all_to_all", "step": "3", "group": "0", "group_ranks": "0 1", "lane": "0",
        "count": "3", "dtype": "int32", "bytes": "12", "send_splits": "1 2", "recv_splits": "1 5",
    }  # fmt: skip
    assert (wait["waits_for"], compute["compute_ns"], compute["name"], mark["step"]) == ("0", str(1 << 60), "a, b", "3")


def test_csv_and_parquet_hold_the_same_and_all_of_the_programs() -> None:
    job = archive.read(SAMPLE)
    as_csv = pandas.read_csv(io.BytesIO(table.csv(job)), dtype=table.COLUMNS)
    as_parquet = pandas.read_parquet(io.BytesIO(table.parquet(job)))

    pandas.testing.assert_frame_equal(as_csv, as_parquet, check_dtype=False)
    assert len(as_parquet) == sum(len(p.ops) for p in job.programs.values())
    for rank, program in job.programs.items():
        mine = as_parquet[as_parquet["rank"] == rank]
        assert mine["compute_ns"].sum() == sum(op.ns for op in program.ops if isinstance(op, Compute))
        counts = [op.count for op in program.ops if isinstance(op, Collective)]
        assert mine[mine["kind"].isin(["all_reduce", "broadcast"])]["count"].tolist() == counts
        assert mine[mine["kind"] == "step"]["step"].tolist() == [
            op.step for op in program.ops if isinstance(op, StepMark)
        ]


def test_parquet_without_pyarrow_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MachineError, match=r"Parquet takes pyarrow, .*; mend: pip install 'tracebed\[parquet\]'"):
        export(UNTIMED, "parquet")


@pytest.mark.parametrize("name", ["perfetto", "csv", "parquet"])
def test_the_command(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"

    assert tracebed("export", SAMPLE, "--to", name, "-o", out, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["format"], said["bytes"], said["findings"]) == (name, out.stat().st_size, [])


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("perfetto", "was drawn by `tracebed export --to perfetto`: it is to look at, no recording (use the .trace"),
        ("csv", "not a recording in a known format"),
        ("parquet", "not a recording in a known format"),
    ],
)
def test_what_is_written_to_look_at_is_not_imported(
    name: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    assert tracebed("export", SAMPLE, "--to", name, "-o", out) == 0
    capsys.readouterr()

    assert tracebed("import", out, "-o", tmp_path / "x.trace") == 2
    assert capsys.readouterr().err.startswith(f"tracebed: out.json: {reason}")


def test_operations_of_one_lane_are_drawn_one_behind_the_other() -> None:
    def at(op: Collective, start: int, end: int) -> Op:
        return Collective(**{**_fields(op), "origin": type(op.origin)(0, -1, start, end)})

    late = at(reduce(8), 0, 100), at(reduce(8), 10, 300), at(reduce(8), 20, 200)
    events = [e for e in drawn(trace([*late])) if e["ph"] == "X"]

    assert [(e["ts"], e["dur"], e["args"]["called_ns"]) for e in events] == [
        (0, 0.1, 0), (0.1, 0.2, 10), (0.3, 0, 20),
    ]  # fmt: skip


def _fields(op: Collective) -> dict[str, Any]:
    return {name: getattr(op, name) for name in op.__slots__}


@pytest.mark.parametrize(
    ("name", "expected"), [("chakra", "of 9223372036854775808 bytes is more than"), ("csv", "rank 0, op 0: ")]
)
def test_sizes_beyond_64_bits_are_refused(name: str, expected: str) -> None:
    huge = trace([*sync(reduce(1 << 61)), StepMark(0)], [*sync(reduce(1 << 61)), StepMark(0)])

    with pytest.raises(TraceError, match=expected):
        export(huge, name)


def test_chakra_has_tags_of_31_bits() -> None:
    far = trace([*sync(Send(1, 5, tag=1 << 31)), StepMark(0)], [*sync(Recv(0, 5, tag=1 << 31)), StepMark(0)])

    with pytest.raises(TraceError, match=r"send has tag 2147483648 \(the format's tags are from 0 to 2147483647\)"):
        export(far, "chakra")
