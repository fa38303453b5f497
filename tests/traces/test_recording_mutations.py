"""Damaged recordings of ranks are one-line errors, or traces that can be kept: never a traceback."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.traces.test_mutations import MUTATIONS, damaged
from traces import archive
from traces.errors import TraceError
from traces.formats import FORMATS, Format
from traces.importer import import_files

TENSOR = {"n": [8, 4], "t": "float32", "b": 4}
EVENTS = [
    {"tracebed-recording": 1, "rank": 0, "world_size": 2, "epoch_ns": 1, "pid": 1, "host": "a", "attempt": 0},
    ["g", "0", "default_pg", [0, 1], "gloo"],
    ["o", 0, 1000, 1100, "allreduce_", "0", [TENSOR, None, None, None], "max", -1],
    ["e", 0, 1400],
    ["w", [0], 1200, 1500, -1],
    ["o", 1, 1600, 1700, "alltoall_base_", "0", [TENSOR, TENSOR, None, [1, 11], [6, 6], True], "", 3],
    ["b", 3, 1800, 1900],
    ["o", 2, 2000, 2100, "recv_any_source_", "0", [TENSOR, None, 0], "", -1],
    ["c", 2, 3, 2150],
    ["w", [2], 2200, 2300, 1],
    ["s", "optimizer", 2400, 3, 70],
    ["!", "something"],
]


def node(identity: int, inputs: list[object], types: list[str]) -> dict[str, object]:
    values = {"values": inputs, "shapes": [], "types": types}
    attributes = [{"name": "rf_id", "type": "uint64", "value": identity}]
    return {"id": identity, "name": "record_param_comms", "inputs": values, "attrs": attributes}


COMMS = [[[1, 1, 0, 64, 4, "cuda:0"]], 5, ["0", "default_pg"], 0, "all_to_allv", [30, 34], [30, 34], 0, 1, 2]
TYPES = ["GenericList[Tensor(float)]", "Int", "Tuple[String,String]", "Int", "String", "GenericList[Int,Int]"]
TYPES += ["GenericList[Int,Int]", "Int", "Int", "Int"]
GROUPS = json.dumps([{"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1], "group_size": 2, "group_count": 1}])
TRACE = {
    "schema": "1.1.1", "pid": 7, "time": "x", "start_ts": 1,
    "nodes": [
        {"id": 2, "name": "## process_group:init ##", "inputs": {"values": [GROUPS], "types": ["String"]}, "attrs": []},
        node(3, COMMS, TYPES),
        node(4, [5, ["0", "default_pg"], 0, "wait", [], [], 0, 1, 2], ["Int", *TYPES[2:]]),
    ],
}  # fmt: skip
SAMPLES = {
    "tracebed-recording": b"".join(json.dumps(event).encode() + b"\n" for event in EVENTS),
    "pytorch-et": json.dumps(TRACE, indent=1).encode(),
}


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_damage_is_never_a_traceback(name: str, tmp_path: Path) -> None:
    known, dice, path = FORMATS[name], random.Random(f"damage {name}"), tmp_path / "rank-0.json"
    assert isinstance(known, Format)
    path.write_bytes(SAMPLES[name])
    assert import_files([path]).world_size == 2
    kept = refused = 0
    for number in range(MUTATIONS):
        bad = damaged(SAMPLES[name], dice)
        try:
            recording = known.read(bad, path.name)
            if recording.timeline is not None:
                recording.timeline(recording.calls)
            kept += 1
            if number % 10 == 0:  # files and archives take longer than reading
                path.write_bytes(bad)
                archive.write(import_files([path], format_name=name), tmp_path / "x.trace")
        except TraceError:
            refused += 1
    assert kept > MUTATIONS // 20
    assert refused > MUTATIONS // 20
