"""The .trace file: what is written is read, the same trace is the same bytes, and nothing wrong gets through."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import ROOT
from tests.traces.build import exchange, reduce, sync, trace
from traces import archive
from traces.checks import check
from traces.errors import TraceError
from traces.program import (
    Collective,
    CollectiveKind,
    Compute,
    DType,
    Finding,
    Origin,
    Recv,
    Send,
    Source,
    StepMark,
    Trace,
    Wait,
)

SAMPLE = ROOT / "traces" / "samples" / "resnet50-ddp.trace"


def everything() -> Trace:
    ops = (
        Compute(123, "forward", Origin(0, 4, 5, 6)),
        *sync(exchange([1, 2], [1, 3]), 1),
        *sync(reduce(1 << 40), 3),
        Collective(CollectiveKind.BROADCAST, 0, 4, DType.BFLOAT16, root=1, reduce_op="max", name="b"),
        Send(peer=1, count=3, dtype=DType.INT64, tag=9, name="s"),
        Recv(peer=1, count=3, tag=2, group=0),
        StepMark(17),
    )
    return replace(
        trace(ops, ops),
        sources=(Source("rank-0.json", "ab", "kineto", 0),),
        findings=(Finding("assumed-root", "why", "info", 1, 2, True),),
        hosts={0: "a", 1: "b"},
        clock_residual_ns={0: 1, 1: 2},
        provenance={"tracebed": "0"},
    )


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "job.trace"
    archive.write(everything(), path)
    return path


def test_what_is_written_is_read(written: Path) -> None:
    assert archive.read(written) == everything()
    assert archive.read_rank(written, 1) == everything().programs[1]
    assert archive.read_header(written).world_size == 2
    assert [path.name for path in written.parent.iterdir()] == ["job.trace"]


def test_what_ranks_say_alike_is_made_once(tmp_path: Path) -> None:
    alike, recorded = (Compute(5), Wait(1)), Compute(5, origin=Origin(0, 1, 2, 3))
    ranks = (
        (exchange([1, 2], [1, 3]), exchange([1, 2], [2, 2]), *alike, recorded, *alike),
        (recorded, exchange([3, 4], [2, 4]), *alike),
    )
    archive.write(trace(*ranks), tmp_path / "job.trace")
    first, second = (program.ops for program in archive.read(tmp_path / "job.trace").programs.values())

    assert (first, second) == ranks
    assert all(one is other is third for one, other, third in zip(first[2:4], first[5:7], second[2:4], strict=True))


def test_a_wait_that_is_right_at_one_rank_is_refused_where_it_is_not(tmp_path: Path) -> None:
    start, wait = Collective(CollectiveKind.BARRIER, 0, 0), Wait(1)
    archive.write(trace((start, start, wait), (start, wait, start)), tmp_path / "bad.trace")

    with pytest.raises(TraceError, match="ranks/1: operations can't be read: operation 1 waits for operation 1"):
        archive.read(tmp_path / "bad.trace")


def test_the_same_trace_is_the_same_bytes(written: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.trace"
    archive.write(archive.read(written), again)

    assert again.read_bytes() == written.read_bytes()
    assert archive.trace_hash(again) == archive.trace_hash(written)


def test_the_hash_is_of_the_content_not_of_its_compression(written: Path, tmp_path: Path) -> None:
    stored = rewritten(written, tmp_path / "stored.trace", lambda name, data: data, zipfile.ZIP_STORED)
    other = tmp_path / "other.trace"
    archive.write(replace(everything(), provenance={"tracebed": "1"}), other)

    assert stored.read_bytes() != written.read_bytes()
    assert archive.trace_hash(stored) == archive.trace_hash(written)
    assert archive.trace_hash(other) != archive.trace_hash(written)


def test_the_sample_of_version_1_stays_readable() -> None:
    sample = archive.read(SAMPLE)

    assert archive.read_header(SAMPLE).version == 1
    assert (sample.world_size, sample.step_count) == (4, 4)
    assert all(finding.replayable for finding in check(sample))
    assert SAMPLE.stat().st_size < 200_000


def test_the_sample_is_what_import_makes_of_the_recordings(corpus: Path) -> None:
    from traces.importer import import_files

    sample = archive.read(SAMPLE)
    made = import_files([corpus / "self-recorded-gloo/resnet50-ddp"], provenance=sample.provenance)
    assert replace(made, provenance=sample.provenance) == sample  # which is older than started_ns


def rewritten(
    source: Path, target: Path, change: Callable[[str, bytes], bytes | None], compression: int = zipfile.ZIP_DEFLATED
) -> Path:
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", compression) as new:
        for name in old.namelist():
            data = change(name, old.read(name))
            if data is not None:
                new.writestr(name, data)
    return target


def with_header(source: Path, target: Path, **values: Any) -> Path:
    def change(name: str, data: bytes) -> bytes:
        return json.dumps(json.loads(data) | values).encode() if name == "header.json" else data

    return rewritten(source, target, change)


def with_column(source: Path, target: Path, column: str, values: Any) -> Path:
    buffer = io.BytesIO()
    np.save(buffer, values, allow_pickle=True)
    return rewritten(source, target, lambda name, data: buffer.getvalue() if name == f"ranks/0/{column}.npy" else data)


def test_a_newer_version_is_refused_by_name(written: Path, tmp_path: Path) -> None:
    newer = with_header(written, tmp_path / "newer.trace", version=archive.VERSION + 1)

    with pytest.raises(
        TraceError, match=r"newer\.trace: is of version 2, made by a newer tracebed \(this one reads up to 1\)"
    ):
        archive.read(newer)


def test_older_headers_are_migrated_one_version_at_a_time() -> None:
    steps: dict[int, archive.Migration] = {
        1: lambda plain: plain | {"steps": plain["step_count"]},
        2: lambda plain: {key: value for key, value in plain.items() if key != "step_count"},
    }

    moved = archive.migrated({"version": 1, "step_count": 4}, 3, steps, Path("x.trace"))

    assert moved == {"version": 3, "steps": 4}
    with pytest.raises(TraceError, match="is of version 0, which no tracebed reads"):
        archive.migrated({"version": 0}, 3, steps, Path("x.trace"))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"format": "other"}, "is not the header of a trace"),
        ({"version": "1"}, "is not the header of a trace"),
        ({"world_size": "many"}, r"world_size"),
        ({"ranks": {"0": {"ops": 1 << 40, "splits": 0}}}, "with 1099511627776 operations"),
        ({"ranks": {"9": {"ops": 1, "splits": 0}}}, "rank 9 of 2"),
        ({"ranks": {"0": {"ops": 3, "splits": 6}}}, r"ranks/0/type\.npy: holds uint8 \(9,\), expected <u1 \(3,\)"),
        ({"strings": []}, "ranks/0: operations can't be read"),
    ],
)
def test_a_header_that_does_not_fit_is_refused(
    written: Path, tmp_path: Path, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(TraceError, match=message):
        archive.read(with_header(written, tmp_path / "bad.trace", **values))


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("value", np.array([{"run": "me"}] * 9, dtype=object), "holds object"),
        ("value", np.zeros(9, dtype="<f8"), "holds float64"),
        ("value", np.zeros((3, 3), dtype="<i8"), r"holds int64 \(3, 3\)"),
        ("value", np.full(9, 8, dtype="<i8"), "waits for operation 8"),
        ("type", np.full(9, 200, dtype="<u1"), "can't be read"),
        ("recv_splits", np.full(9, 7, dtype="<i4"), "more splits than there are"),
        ("send_splits", np.full(9, -1, dtype="<i4"), "negative number of splits"),
    ],
)
def test_a_column_that_does_not_fit_is_refused(
    written: Path, tmp_path: Path, column: str, values: Any, message: str
) -> None:
    with pytest.raises(TraceError, match=message):
        archive.read(with_column(written, tmp_path / "bad.trace", column, values))


def test_a_member_that_would_unpack_to_more_than_it_can_hold_is_not_unpacked(written: Path, tmp_path: Path) -> None:
    bomb = rewritten(
        written, tmp_path / "bomb.trace", lambda name, data: bytes(50 << 20) if name.endswith("0/value.npy") else data
    )

    assert bomb.stat().st_size < 1 << 20
    with pytest.raises(TraceError, match=r"ranks/0/value\.npy: claims 52428800 bytes, at most 4168 can be right"):
        archive.read(bomb)


def test_missing_and_damaged_members_are_named(written: Path, tmp_path: Path) -> None:
    without = rewritten(
        written, tmp_path / "less.trace", lambda name, data: None if name == "ranks/1/start.npy" else data
    )
    with pytest.raises(TraceError, match=r"less\.trace, ranks/1/start\.npy: is missing"):
        archive.read(without)

    torn = rewritten(written, tmp_path / "torn.trace", lambda name, data: b"x" if name == "ranks/1/end.npy" else data)
    with pytest.raises(TraceError, match=r"ranks/1/end\.npy: is damaged"):
        archive.read(torn)

    cut = tmp_path / "cut.trace"
    cut.write_bytes(written.read_bytes()[:-200])
    with pytest.raises(TraceError, match=r"cut\.trace: not a \.trace file"):
        archive.read(cut)


def test_a_rank_that_is_not_there(written: Path) -> None:
    with pytest.raises(TraceError, match=r"has no rank 7 \(it has \[0, 1\]\)"):
        archive.read_rank(written, 7)
