"""Execution traces of every schema give the same calls; what was cut or is newer is said; linked ones have times."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.traces.test_mutations import MUTATIONS, damaged
from traces.checks import check
from traces.errors import TraceError
from traces.files import open_all
from traces.formats import kineto, pytorch_et
from traces.importer import import_files
from traces.program import Collective, CollectiveKind, Compute, DType
from traces.recording import Recording

SCHEMAS = [
    "1.0.1", "1.0.2-chakra.0.0.4", "1.0.3-chakra.0.0.4", "1.0.4-chakra.0.0.4", "1.1.0-chakra.0.0.4",
    "1.1.1-chakra.0.0.4", "1.1.1-chakra.1.0.0",
]  # fmt: skip
POINTER = 82149104
ELEMENTS = 600
LAUNCH_NS = 10_000  # from a launch to the start on an idle GPU
SPLITS = [[100, 500], [100, 300]]


def node(schema: str, ident: int, name: str, inputs: list[tuple[Any, str]], **attributes: Any) -> dict[str, Any]:
    """A node in the layout of `schema`."""
    values, types = [value for value, _ in inputs], [kind for _, kind in inputs]
    if schema == "1.0.1":
        empty: dict[str, Any] = {"input_shapes": [[]] * len(values), "outputs": []}
        return {"name": name, "id": ident, "rf_id": ident, "parent": 1, "inputs": values, "input_types": types} | empty
    if schema < "1.1.0":
        attributes = {}
    if schema >= "1.0.4":
        attributes |= {"kernel_backend": "", "kernel_file": ""}
    attrs = [{"name": key, "type": "", "value": value} for key, value in {"rf_id": ident, **attributes}.items()]
    held = {"values": values, "shapes": [[]] * len(values), "types": types}
    if schema >= "1.1.1":
        held["strides"] = [[]] * len(values)
    return {"id": ident, "name": name, "ctrl_deps": 1, "inputs": held, "outputs": {}, "attrs": attrs}


def call(
    schema: str, ident: int, name: str, tensors: list[int], *, splits: tuple[list[Any], list[Any]] = ([], [])
) -> dict[str, Any]:
    """A call of two ranks on NCCL, made by rank 1; a wait (without tensors) is for the call with the same number."""
    is_wait = name == "wait"
    group: tuple[Any, str] = (0 if is_wait else POINTER, "Int")
    tail: list[tuple[Any, str]] = [(1 if is_wait else 2, "Int")] if schema[:5] == "1.0.2" else []
    if schema >= "1.0.3":
        group = (["", ""] if is_wait else ["0", "default_pg"], "Tuple[String,String]")
        tail = [(number, "Int") for number in ((0, 0, 1) if is_wait else (0, 1, 2))]
    held = [[5, 6, 0, count, 4, "cuda:1"] for count in tensors]
    inputs: list[tuple[Any, str]] = [(held, "GenericList[Tensor(float)]")] if held else []
    parts = [(part, "GenericList[Int]" if part else "GenericList[]") for part in splits]
    inputs += [(ident % 100, "Int"), group, (1, "Int"), (name, "String"), *parts, *tail]
    told: dict[str, Any] = {"collective_name": name, "dtype": "Float", "in_msg_nelems": sum(tensors)}
    return node(schema, ident, "record_param_comms", inputs, **told, out_msg_nelems=sum(splits[1]) or sum(tensors))


def listed(schema: str, text: str) -> dict[str, Any]:
    return node(schema, 3, "## process_group:init ##", [(text, "String")])


def trace(schema: str, *nodes: dict[str, Any]) -> bytes:
    return json.dumps({"schema": schema, "pid": 7, "start_ts": 1, "finish_ts": 2, "nodes": list(nodes)}).encode()


def job(schema: str) -> bytes:
    groups = [{"pg_name": "0", "pg_desc": "default_pg", "backend_id": POINTER, "ranks": [], "group_size": 2}]
    return trace(
        schema,
        *([listed(schema, json.dumps(groups))] if schema[:5] == "1.0.2" else []),
        call(schema, 110, "allreduce", [64, 36]),
        call(schema, 111, "all_to_allv", [ELEMENTS], splits=(SPLITS[0], SPLITS[1])),
        call(schema, 210, "wait", []),
        call(schema, 211, "wait", []),
    )


@pytest.mark.parametrize("schema", SCHEMAS)
def test_every_schema_gives_the_same_job(schema: str, tmp_path: Path) -> None:
    (tmp_path / "recording.json").write_bytes(job(schema))
    found = import_files([tmp_path])

    assert (found.world_size, list(found.programs)) == (2, [1])  # the rank is in the calls
    reduced, exchanged = (op for op in found.programs[1].ops if isinstance(op, Collective))
    assert (reduced.kind, reduced.count, reduced.dtype) == (CollectiveKind.ALL_REDUCE, 100, DType.FLOAT32)
    assert (exchanged.count, exchanged.send_splits, exchanged.recv_splits) == (600, (100, 500), (100, 300))
    assert {f.code for f in found.findings} - {"assumed-group"} == {"no-timestamps"}
    assert ("assumed-group" in {f.code for f in found.findings}) == (schema == "1.0.1")


def test_a_newer_schema_is_read_and_said() -> None:
    recording = pytorch_et.read(job("1.2.0-chakra.0.1.0"), "x")

    assert recording.calls == pytorch_et.read(job("1.1.1-chakra.0.0.4"), "x").calls
    assert [(f.code, "1.2.0-chakra.0.1.0" in f.message) for f in recording.findings] == [("unknown-schema", True)]
    with pytest.raises(TraceError, match="not an execution trace"):
        pytorch_et.read(b'{"schema": "2.0", "nodes": {"1": []}}', "x")


@pytest.mark.parametrize(
    ("file", "calls", "size"),
    [
        ("param/et_replay/tests/inputs/dlrm_pytorch_et.tar.gz", {"all_to_all": 5, "all_reduce": 3, "wait": 5}, 8),
        ("astra-sim/my_test/inputs/workload/result", {"broadcast": 2, "all_reduce": 5, "wait": 2}, 2),
        (
            "param/et_replay/tests/inputs/1.0.3-chakra.0.0.4/resnet_1gpu_et.json.gz",
            {"all_reduce": 15, "broadcast": 6, "wait": 6},
            1,
        ),
        (
            "param/et_replay/tests/inputs/1.1.0-chakra.0.0.4/resnet_2gpu_et.json.gz",
            {"all_reduce": 15, "broadcast": 6, "wait": 6},
            2,
        ),
        (
            "param/et_replay/tests/inputs/resnet_1gpu_et.json.tar.gz",
            {"all_reduce": 15, "broadcast": 6, "wait": 6},
            1,
        ),
    ],
)
@pytest.mark.corpus
def test_recorded_schemas(corpus: Path, file: str, calls: dict[str, int], size: int) -> None:
    recordings = read_all(corpus / file)

    assert recordings
    for recording in recordings:
        assert Counter(call.kind for call in recording.calls) == calls
        assert max(call.group_size for call in recording.calls) == size
        assert recording.findings == ()


def read_all(path: Path) -> list[Recording]:
    return [pytorch_et.read(stream.whole().data, stream.name) for stream in open_all([path])]


@pytest.mark.corpus
def test_a_linked_trace_has_the_times_of_the_kineto_file_it_was_linked_with(corpus: Path) -> None:
    """Calls are Kineto's own; when a kernel ended follows from its launch, its length and its stream."""
    folder = corpus / "astra-sim/my_test/inputs/workload/et_plus"
    found = import_files([folder])
    assert (found.world_size, list(found.programs)) == (8, [0, 1])
    assert {f.code for f in check(found)} == {
        "missing-rank", "dangling-wait", "wait-after-window", "assumed-group", "assumed-ends",
    }  # fmt: skip
    assert all(any(isinstance(op, Compute) for op in program.ops) for program in found.programs.values())

    files = open_all([corpus / "param/et_replay/tests/inputs/dlrm_kineto.tar.gz"])
    by_pid = {r.pid: r for r in [kineto.read(stream.blocks(), stream.name) for stream in files]}
    for linked in read_all(folder):
        whole = by_pid[linked.pid]
        assert linked.timeline is not None
        assert whole.timeline is not None
        ours, theirs = linked.timeline(linked.calls).calls, whole.timeline(linked.calls).calls
        for a, b in zip(ours, theirs, strict=True):
            assert abs(a.issue_ns - b.issue_ns) <= LAUNCH_NS
            assert abs(a.end_ns - b.end_ns) <= LAUNCH_NS


def test_lists_that_the_recorder_cut_are_said(tmp_path: Path) -> None:
    schema = "1.0.3-chakra.0.0.4"
    parts = [1] * 4097
    nodes = [
        call(schema, 110, "all_to_allv", [5000], splits=(parts, parts)),
        call(schema, 111, "allreduce", [1] * 4097),
        call(schema, 112, "all_to_allv", [5], splits=([1, "..."], [])),
        call(schema, 113, "allreduce", [8]),
    ]
    (tmp_path / "rank-1.json").write_bytes(trace(schema, *nodes))
    found = import_files([tmp_path])

    first, reduced, second, whole = (op for op in found.programs[1].ops if isinstance(op, Collective))
    assert (first.count, first.send_splits, first.recv_splits, second.send_splits) == (5000, (), (), ())
    assert (reduced.count, whole.count) == (0, 8)
    said = {finding.code: finding for finding in found.findings}
    assert said["cut-list"].message.startswith("3 operations")
    assert said["no-sizes"].message.startswith("1 operations")
    assert not said["no-sizes"].replayable
    newer = pytorch_et.read(trace("1.1.0", call("1.1.0", 111, "allreduce", [1] * 4097)), "x").calls[0]
    assert (newer.count, newer.is_cut) == (4097, False)  # the attribute is of all of them


def test_the_groups_that_stand_before_the_cut_are_kept() -> None:
    schema = "1.1.1"
    groups = [{"pg_name": str(n), "pg_desc": "tp", "ranks": [n, n + 4], "group_size": 2} for n in range(4)]
    text = json.dumps(groups)
    recording = pytorch_et.read(trace(schema, listed(schema, text[: text.index('"3"')])), "x")

    assert [(group.name, group.ranks) for group in recording.groups] == [(str(n), (n, n + 4)) for n in range(3)]
    assert [finding.code for finding in recording.findings] == ["cut-list"]


def test_calls_of_unknown_kind_and_groups_of_absurd_size_are_said(tmp_path: Path) -> None:
    schema = "1.1.0"
    recording = pytorch_et.read(trace(schema, call(schema, 5, "fused", [8]), call(schema, 6, "init", [])), "x")
    assert [(f.code, f.replayable) for f in recording.findings] == [("unknown-operation", False)]

    groups = [{"pg_name": "0", "ranks": [], "group_size": 10**15}]
    data = trace("1.0.2", listed("1.0.2", json.dumps(groups)), call("1.0.2", 5, "allreduce", [8]))
    assert pytorch_et.read(data, "x").groups == ()
    (tmp_path / "rank-99999999999.json").write_bytes(data)
    with pytest.raises(TraceError, match="no job has more than"):
        import_files([tmp_path])


def test_damage_is_never_a_traceback() -> None:
    times = {"ts": 1_694_128_201_428_761, "dur": 5}
    whole = json.loads(job("1.0.1")), json.loads(job("1.0.2"))
    for at, item in enumerate(whole[0]["nodes"]):
        item |= times | {"tid": 1, "ts": times["ts"] + 20 * at}
    kernel = {"name": "ncclKernel_AllReduce", "cat": "kernel", "id": 500, "parent": 110, "tid": 7, **times}
    whole[0]["nodes"] += [kernel, {**kernel, "name": "gemm", "id": 501, "parent": 111}]
    forms = [json.dumps(form, indent=1).encode() for form in whole]
    dice = random.Random("damage pytorch-et")
    kept = refused = 0
    for number in range(MUTATIONS):
        try:
            recording = pytorch_et.read(damaged(forms[number % 2], dice), "x")
            if recording.timeline is not None:
                recording.timeline(recording.calls)
            kept += 1
        except TraceError:
            refused += 1
    assert kept > MUTATIONS // 100
    assert refused > MUTATIONS // 10
