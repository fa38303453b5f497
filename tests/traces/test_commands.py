"""tracebed import, info, check and scale as a user meets them: exit status, one-line errors, JSON."""

from __future__ import annotations

import gzip
import io
import json
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from replay.cli.main import main
from tests.conftest import ROOT
from tests.traces.build import reduce, sync, trace
from tests.traces.recordings import all_reduce, gloo, kineto, span, step, write_job
from traces import archive
from traces.formats import FORMATS
from traces.program import Compute, Finding, StepMark

SAMPLE = ROOT / "traces" / "samples" / "resnet50-ddp.trace"
EVENTS = [
    step(0, 0, 50),
    span("aten::mm", 1, 9),
    all_reduce(10, 12, 3, 8, is_async=False),
    gloo("all_reduce", 11, 40, 4),
]

Capture = pytest.CaptureFixture[str]


def tracebed(*arguments: object) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["tracebed", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
    assert isinstance(stopped.value.code, int)
    return stopped.value.code


@pytest.fixture
def job(tmp_path: Path) -> Path:
    folder = tmp_path / "job"
    folder.mkdir()
    return write_job(folder, [EVENTS, EVENTS])


def test_import_then_info_then_check(job: Path, tmp_path: Path, capsys: Capture) -> None:
    made = tmp_path / "made.trace"

    assert tracebed("import", job, "-o", made, "--json") == 0
    imported = json.loads(capsys.readouterr().out)
    assert tracebed("info", made, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert tracebed("check", made, "--json") == 0
    checked = json.loads(capsys.readouterr().out)

    assert (imported["world_size"], imported["ranks"], imported["steps"]) == (2, [0, 1], 1)
    assert shown["hash"] == imported["hash"]
    (row,) = shown["operations"]
    assert (row["kind"], row["dtype"], row["ranks"], row["bytes"], row["count"]) == ("all_reduce", "float32", 2, 32, 1)
    assert (row["min_ns"], row["mean_ns"], row["max_ns"]) == (30_000, 30_000, 30_000)
    assert [rank["compute_ns"] for rank in shown["ranks"]] == [[22_000], [22_000]]
    assert [rank["waited_ns"] for rank in shown["ranks"]] == [28_000, 28_000]
    assert [step["recorded_ns"] for step in shown["steps"]] == [50_000]
    assert checked == {"replayable": True, "findings": []}


def test_tables_for_people(capsys: Capture) -> None:
    assert tracebed("info", SAMPLE) == 0
    assert "all_reduce" in capsys.readouterr().out
    assert tracebed("check", SAMPLE) == 0
    assert "can be replayed" in capsys.readouterr().out


def test_many_steps_and_groups_are_summed_up_unless_all_are_asked_for(tmp_path: Path, capsys: Capture) -> None:
    made = tmp_path / "made.trace"
    ops = [op for number in range(21) for op in (Compute((1 + number**2) * 1_000_000), StepMark(number))]
    archive.write(trace(ops, ops, groups=[(0, 1)] * 2), made)

    assert tracebed("info", made) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert tracebed("info", made, "--all") == 0
    whole = [line.split() for line in capsys.readouterr().out.splitlines()]

    assert [line[:3] for line in shown[4:7]] == [
        ["min", "-", "1.000"],
        ["median", "-", "101.000"],
        ["max", "-", "401.000"],
    ]
    assert [line[2] for line in whole[4:25]] == [f"{1 + number**2}.000" for number in range(21)]
    assert ["3", "groups", "of", "2", "0-1", "0", "0", "0.000", "-"] in shown
    assert [line[0] for line in whole if line[1:] == ["0-1", "0", "0", "0.000", "-"]] == ["0", "1", "2"]


def test_a_missing_rank_imports_and_check_says_no(job: Path, tmp_path: Path, capsys: Capture) -> None:
    made = tmp_path / "made.trace"

    assert tracebed("import", job / "rank-0.json", "-o", made) == 0
    assert tracebed("check", made) == 1
    assert "can't be replayed" in capsys.readouterr().out


def test_check_shows_findings_of_a_kind_together(tmp_path: Path, capsys: Capture) -> None:
    made = tmp_path / "made.trace"
    archive.write(trace(*[(*sync(reduce(8)), *sync(reduce(0), 2))] * 3), made)

    assert tracebed("check", made) == 0
    assert capsys.readouterr().out.splitlines() == [
        "warning: zero-bytes (3, rank 0-2): replay is still right",
        "    rank 0, op 2 (all_reduce): 1 operations of 0 bytes: they move nothing; the first: all_reduce",
        f"{made}: can be replayed",
    ]
    assert tracebed("check", made, "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["findings"]) == 3


@pytest.mark.parametrize("pack", ["gz", "tar.gz"])
def test_packed_recordings_are_the_same_job(job: Path, tmp_path: Path, pack: str, capsys: Capture) -> None:
    packed = tmp_path / "packed"
    packed.mkdir()
    if pack == "gz":
        for file in job.iterdir():
            (packed / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
    else:
        with tarfile.open(packed / "job.tar.gz", "w:gz") as bundle:
            bundle.add(job, "job")

    assert tracebed("import", job, "-o", tmp_path / "a.trace", "--json") == 0
    plain = json.loads(capsys.readouterr().out)
    assert tracebed("import", packed, "-o", tmp_path / "b.trace", "--json") == 0
    assert json.loads(capsys.readouterr().out)["hash"] == plain["hash"]


def cut_gzip(events: object) -> bytes:
    return gzip.compress(json.dumps(events).encode())[:-20]


def tar_with_nothing() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as bundle:
        bundle.addfile(tarfile.TarInfo("rank-0.json"))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.json", b"", "the file is empty"),
        ("blank.json", b" \n", "the file holds nothing"),
        ("cut.json.gz", cut_gzip(kineto(EVENTS)), "the gzip is damaged or cut"),
        ("cut.json", json.dumps(kineto(EVENTS)).encode()[:60], "not a Kineto trace: Input data was truncated"),
        (
            "shape.json",
            b'{"schemaVersion": 1, "traceEvents": {"a": 1}}',
            "Expected `array`, got `object` - at `$.traceEvents`",
        ),
        ("more.json", b'{"schemaVersion": 1, "traceEvents": []} more', "trailing characters (byte 41)"),
        ("list.json", b"[1, 2]", "not a recording in a known format"),
        ("et.json", b'{"schema": "1.1.1", "nodes": [{"id": 1}]}', "missing required field `name` - at `$.nodes[0]`"),
        ("deep.json", b'{"schema": "1", "nodes": [{"id": 1, "name": "x", "inputs": ' + b"[" * 100_000, "recursion"),
        ("utf.json", b'{"schemaVersion": 1, "traceEvents": [{"name": "\xff"}]}', "Invalid UTF-8"),
        ("far.json", json.dumps(kineto([step(0, 0, 1e306)])).encode(), "infinity"),
        (
            "args.json",
            json.dumps(kineto([span("c10d::send", 1, 2, args={"Input type": 5})])).encode(),
            "event 'c10d::send' at ts 1",
        ),
        (
            "node.json",
            b'{"schema":"1.0.1","nodes":[{"name":"record_param_comms","id":3,"inputs":[{},0,0,"allreduce"],'
            b'"input_types":["Int","Int","Int","String"]}]}',
            "node 3: record_param_comms can't be read",
        ),
        ("job.tar.gz", b"not a tar", "the tar archive is damaged or cut"),
        ("hollow.tar.gz", tar_with_nothing(), "hollow.tar.gz, rank-0.json: the file is empty"),
    ],
)
def test_bad_input_is_one_line_that_names_the_file(
    tmp_path: Path, capsys: Capture, name: str, content: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(content)

    assert tracebed("import", tmp_path / name, "-o", tmp_path / "out.trace") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert name in error
    assert said in error
    assert not (tmp_path / "out.trace").exists()


def test_files_that_are_not_there(tmp_path: Path, capsys: Capture) -> None:
    for arguments in (
        ["import", tmp_path / "no.json", "-o", "x"],
        ["info", tmp_path / "no.json"],
        ["check", tmp_path / "no.json"],
    ):
        assert tracebed(*arguments) == 2
        error = capsys.readouterr().err
        assert error == f"tracebed: {tmp_path / 'no.json'}: No such file or directory\n"


def test_a_format_that_is_not_known(job: Path, tmp_path: Path, capsys: Capture) -> None:
    assert tracebed("import", job, "-o", tmp_path / "x", "--format", "paje") == 2
    known = ", ".join(FORMATS)
    assert capsys.readouterr().err == f"tracebed: unknown format 'paje' (known: {known})\n"


def test_a_rank_that_is_given_twice(job: Path, tmp_path: Path, capsys: Capture) -> None:
    assert tracebed("import", job, job / "rank-1.json", "-o", tmp_path / "x") == 2
    assert "rank 1 is given twice" in capsys.readouterr().err


def test_files_of_no_known_format_in_a_folder_are_left_out_and_said(job: Path, tmp_path: Path, capsys: Capture) -> None:
    (job / "notes.json").write_text("{}")

    assert tracebed("import", job, "-o", tmp_path / "x.trace", "--json") == 0
    assert [finding["code"] for finding in json.loads(capsys.readouterr().out)["findings"]] == ["skipped-file"]


def test_scale_says_what_it_assumes_and_keeps_it_in_the_file(tmp_path: Path, capsys: Capture) -> None:
    made = tmp_path / "made.trace"
    arguments = ("--ranks", 6, "--drop-warm-up", 2, "--repeat", 3, "--anonymise", "-o", made)

    assert tracebed("scale", SAMPLE, *arguments) == 0
    *assumed, last = capsys.readouterr().out.splitlines()
    assert [line.split(" recorded")[0] for line in assumed] == ["assumed: 6 ranks from 4", "assumed: 2"]
    assert last == f"{made}: 6 ranks, 6 steps"
    assert tracebed("scale", SAMPLE, *arguments, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["world_size"], said["steps"]) == (6, 6)
    assert [finding["code"] for finding in said["assumed"]] == ["assumed-ranks", "repeated-steps"]
    assert said["hash"] == archive.trace_hash(made)
    assert [finding.code for finding in archive.read(made).findings][-2:] == ["assumed-ranks", "repeated-steps"]
    assert tracebed("check", made) == 0


def test_scale_says_nothing_of_what_the_recording_assumed(tmp_path: Path, capsys: Capture) -> None:
    recorded = tmp_path / "recorded.trace"
    said = (Finding("assumed-wait", "x", rank=0, op=1), Finding("assumed-wait", "y", rank=3))
    archive.write(replace(trace(*[(*sync(reduce()), StepMark(0))] * 4), findings=said), recorded)

    assert tracebed("scale", recorded, "--ranks", 2, "-o", tmp_path / "made.trace", "--json") == 0
    assert [finding["code"] for finding in json.loads(capsys.readouterr().out)["assumed"]] == ["assumed-ranks"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--drop-warm-up", 4], "tracebed: no steps 4:4 (the trace has steps 0:4)"),
        (["--ranks", 1], "Error: Invalid value for '--ranks': 1 is not in the range x>=2."),
    ],
)
def test_scale_refuses_in_one_line(tmp_path: Path, capsys: Capture, arguments: list[object], said: str) -> None:
    assert tracebed("scale", SAMPLE, *arguments, "-o", tmp_path / "made.trace") == 2
    assert capsys.readouterr().err.splitlines()[-1] == said
    assert not (tmp_path / "made.trace").exists()
