"""Damaged recordings of PyTorch are one-line errors, or recordings whose programs can be made: never a traceback."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tests.traces.test_mutations import MUTATIONS, damaged
from tests.traces.test_unknown import HEAD, operator, told
from traces import timeline
from traces.errors import TraceError
from traces.formats import FORMATS, Format
from traces.program import Group

WORLD = Group(0, "0", (0, 1), 0)
TENSOR = {"n": [8, 8], "t": "float32", "b": 4}
LINES: list[Any] = [
    HEAD,
    ["g", "0", "default_pg", [0, 1], "gloo"],
    ["o", 0, 10, 15, "allreduce_", "0", [TENSOR, None, None, None, True], "sum", -1],
    ["e", 0, 18],
    ["w", [0], 16, 20, -1],
    ["o", 1, 21, 22, "alltoall_base_", "0", [TENSOR, TENSOR, None, [1, 15], [8, 8]], "", 4],
    ["b", 4, 30, 31],
    ["o", 2, 40, 41, "recv_any_source_", "0", [TENSOR, None, 3], "", -1],
    ["o", 3, 42, 43, "broadcast_", "0", [TENSOR, None, 1, 0], "", -1],
    ["w", [2, 3], 44, 50, 1],
    ["c", 0, 3, 60],
    ["s", "step", 70, 4, 100],
    ["!", "x"],
]
NODES = [
    {"name": "## process_group:init ##", "id": 1, "inputs": {
        "values": ['[{"pg_name": "0", "pg_desc": "x", "ranks": [0, 1], "group_size": 2}]'], "types": ["String"]}},
    operator(2, "allreduce_"),
    told(3, 2, "allreduce"),
    operator(4, "alltoall_base_"),
    told(5, 1, "all_to_allv"),
    told(6, 1, "wait"),
    {"name": "c10d::send", "id": 7, "parent": 1, "attrs": [{"name": "rf_id", "value": 11}],
     "inputs": [[[1, 2, 0, 8, 4, "cpu"]], "", 1, 1], "input_types": ["GenericList[Tensor(float)]", "", "Int", "Int"]},
]  # fmt: skip
SAMPLES = {
    "tracebed-recording": "".join(json.dumps(part) + "\n" for part in LINES).encode(),
    "pytorch-et": json.dumps({"schema": "1.1.0", "pid": 1, "nodes": NODES}, indent=0).encode(),
}


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_damage_is_never_a_traceback(name: str) -> None:
    known, data, dice = FORMATS[name], SAMPLES[name], random.Random(f"damage {name}")
    assert isinstance(known, Format)
    groups = {"": WORLD, "0": WORLD}
    kept = refused = 0
    for _ in range(MUTATIONS):
        try:
            recording = known.read(damaged(data, dice), "x")
        except TraceError:
            refused += 1
            continue
        kept += 1
        if any(call.group not in groups for call in recording.calls):
            continue  # said where files are joined
        if recording.timeline is None:
            timeline.untimed(recording.calls, 0, groups, source=0)
        else:
            timeline.program(recording.timeline(recording.calls), 0, groups, source=0)
    assert kept > MUTATIONS // 100
    assert refused > MUTATIONS // 10
