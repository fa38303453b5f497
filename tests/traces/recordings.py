"""Small recordings in the shape of Kineto files, written by the tests themselves. Times are in us."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MAIN = 10


def span(
    name: str, start: float, end: float, *, cat: str = "cpu_op", tid: int = MAIN, args: Any = None
) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 1,
        "tid": tid,
        "ts": start,
        "dur": end - start,
        "args": args or {},
    }


def step(number: int, start: float, end: float) -> dict[str, Any]:
    return span(f"ProfilerStep#{number}", start, end, cat="user_annotation")


def c10d(
    name: str, start: float, end: float, ident: int, *, dims: list[Any], concrete: list[str], tid: int = MAIN
) -> dict[str, Any]:
    types = ["float" if size else "Scalar" for size in dims]
    args = {"Record function id": ident, "Concrete Inputs": concrete, "Input type": types, "Input Dims": dims}
    return span(f"c10d::{name}", start, end, tid=tid, args=args)


def all_reduce(start: float, end: float, ident: int, elements: int, *, is_async: bool) -> dict[str, Any]:
    dims = [[elements], [], [], [], [], []]
    return c10d("allreduce_", start, end, ident, dims=dims, concrete=["", "", "", "", str(is_async), "-1"])


def gloo(name: str, start: float, end: float, ident: int, *, tid: int = 20) -> dict[str, Any]:
    return span(f"gloo:{name}", start, end, cat="user_annotation", tid=tid, args={"Record function id": ident})


def kineto(events: list[dict[str, Any]], *, rank: int = 0, world_size: int = 2, host: str = "a") -> dict[str, Any]:
    groups = [{"pg_name": "0", "pg_desc": "default_pg", "ranks": list(range(world_size))}]
    info = {"rank": rank, "world_size": world_size, "pg_config": groups}
    return {"schemaVersion": 1, "distributedInfo": info, "host_name": host, "traceEvents": events}


def write_job(folder: Path, ranks: list[list[dict[str, Any]]]) -> Path:
    for rank, events in enumerate(ranks):
        text = json.dumps(kineto(events, rank=rank, world_size=len(ranks)))
        (folder / f"rank-{rank}.json").write_text(text)
    return folder
