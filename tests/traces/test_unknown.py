"""Operations of no known kind are said with their names and numbers, whichever file has them; none is dropped unsaid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.traces.recordings import all_reduce, c10d, gloo, kineto, span, step
from tests.traces.test_nccl import comms, kernel, launch
from traces.checks import check, is_replayable
from traces.errors import TraceError
from traces.formats import kineto as kineto_format
from traces.formats import pytorch_et, recorded
from traces.importer import import_files
from traces.recording import Recording

HEAD = {"tracebed-recording": 1, "rank": 0, "world_size": 2, "epoch_ns": 0}


def from_kineto(*events: dict[str, Any]) -> Recording:
    return kineto_format.read([json.dumps(kineto([step(0, 0, 90), *events])).encode()], "x")


def said(recording: Recording) -> list[str]:
    assert all(finding.code == "unknown-operation" and not finding.replayable for finding in recording.findings)
    return [finding.message for finding in recording.findings]


def kinds(recording: Recording) -> list[str]:
    return [str(call.kind) for call in recording.calls]


def test_of_nccl() -> None:
    recording = from_kineto(comms(1, 2, 3, "shuffle", 1), comms(5, 6, 4, "shuffle", 2), comms(8, 9, 5, "allreduce", 3))
    assert kinds(recording) == ["all_reduce"]
    assert said(recording) == ["2 operations 'shuffle' are of no known kind; left out"]


def test_of_gloo() -> None:
    new = c10d("shuffle_", 1, 2, 3, dims=[[8]], concrete=[""])
    recording = from_kineto(new, all_reduce(10, 12, 4, 8, is_async=False))
    assert kinds(recording) == ["all_reduce"]
    assert said(recording) == ["1 operations 'c10d::shuffle_' are of no known kind; left out"]


def test_of_annotations_alone() -> None:
    recording = from_kineto(gloo("all_reduce", 1, 2, 3), gloo("shuffle", 4, 5, 4), gloo("recvAnySource", 6, 7, 5))
    assert kinds(recording) == ["all_reduce", "recv"]
    assert said(recording) == ["1 operations 'gloo:shuffle' are of no known kind; left out"]


def test_of_2023_where_what_lies_round_a_call_tells_what_it_is() -> None:
    bare = span("record_param_comms", 2, 3, args={"Record function id": 4})
    recording = from_kineto(c10d("shuffle_", 1, 5, 3, dims=[[8]], concrete=[""]), bare)
    assert kinds(recording) == []
    assert said(recording) == ["1 operations 'c10d::shuffle_' are of no known kind; left out"]


def test_what_moves_nothing_is_not_said() -> None:
    recording = from_kineto(comms(1, 2, 3, "init", 0), c10d("check_for_nan", 4, 5, 4, dims=[[8]], concrete=[""]))
    assert (kinds(recording), said(recording)) == ([], [])


def test_an_operator_beside_those_that_nccl_tells_of_is_a_call_too() -> None:
    """_allgather_base had no record_param_comms before torch 2.1, and gloo's operators have none beside NCCL's."""
    gathered = c10d("_allgather_base_", 1, 4, 3, dims=[[16], [8]], concrete=["", ""])
    reduced = c10d("allreduce_", 11, 19, 5, dims=[[8]], concrete=[""])
    events = [gathered, launch(2, 1), kernel(3, 9, 1, name="ncclKernel_AllGather")]
    recording = from_kineto(*events, reduced, comms(12, 15, 6, "allreduce", 1))
    assert kinds(recording) == ["all_gather", "all_reduce"]
    assert [call.count for call in recording.calls] == [8, 8]


def execution_trace(*nodes: dict[str, Any]) -> Recording:
    return pytorch_et.read(json.dumps({"schema": "1.1.0", "nodes": nodes}).encode(), "x")


def told(ident: int, parent: int, name: str) -> dict[str, Any]:
    values = [[], 7, ["0", "default_pg"], 0, name, [], [], 0, 1, 2]
    types = ["GenericList[]", "Int", "Tuple[String,String]", "Int", "String", *["GenericList[]"] * 2, *["Int"] * 3]
    node = {"name": "record_param_comms", "id": ident, "rf_id": ident, "ctrl_deps": parent}
    return {**node, "inputs": {"values": values, "types": types}}


def operator(ident: int, name: str) -> dict[str, Any]:
    tensor = [1, 2, 0, 8, 4, "cpu"]
    inputs = {"values": [[tensor], [tensor]], "types": ["GenericList[Tensor(float)]"] * 2}
    return {"name": f"c10d::{name}", "id": ident, "rf_id": ident, "ctrl_deps": 1, "inputs": inputs}


def test_of_an_execution_trace() -> None:
    recording = execution_trace(operator(2, "shuffle_"), operator(3, "allreduce_"))
    assert kinds(recording) == ["all_reduce"]
    assert said(recording) == ["1 operations 'c10d::shuffle_' are of no known kind; left out"]

    nodes = [operator(2, "allreduce_"), told(3, 2, "allreduce"), operator(4, "_allgather_base_"), told(5, 1, "shuffle")]
    recording = execution_trace(*nodes)
    assert kinds(recording) == ["all_reduce", "all_gather"]
    assert said(recording) == ["1 operations 'shuffle' are of no known kind; left out"]


def line(number: int, name: str) -> list[Any]:
    return ["o", number, 10 * number, 10 * number + 5, name, "0", [{"n": [8], "t": "float32", "b": 4}], "sum", -1]


def test_of_our_own_recorder(tmp_path: Path) -> None:
    lines = [HEAD, ["g", "0", "default_pg", [0, 1], "gloo"], line(0, "shuffle_"), line(1, "allreduce_")]
    data = "".join(json.dumps(part) + "\n" for part in [*lines, ["w", [0, 1], 16, 20, -1]]).encode()
    recording = recorded.read(data, "x")
    assert kinds(recording) == ["all_reduce"]
    assert said(recording) == ["1 operations 'shuffle_' are of no known kind; left out"]

    (tmp_path / "rank-0.jsonl").write_bytes(data)
    (tmp_path / "rank-1.jsonl").write_bytes(data.replace(b'"rank": 0', b'"rank": 1'))
    trace = import_files([tmp_path])
    (finding,) = [finding for finding in check(trace) if finding.code == "unknown-operation"]
    assert finding.rank == -1  # all ranks say the same
    assert not is_replayable(check(trace))


@pytest.mark.parametrize("name", [5, None, ["allreduce_"]])
def test_a_name_that_is_none_is_refused(name: Any) -> None:
    data = "".join(json.dumps(part) + "\n" for part in [HEAD, line(0, name)]).encode()
    with pytest.raises(TraceError, match="line 2"):
        recorded.read(data, "x")
