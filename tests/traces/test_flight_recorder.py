"""Flight recorder dumps: what they hold is read, what they leave out is said, and pickles never execute anything."""

from __future__ import annotations

import json
import os
import pickle
import random
from pathlib import Path
from typing import Any

import pytest

from tests.traces.test_mutations import MUTATIONS
from traces import plain_pickle
from traces.errors import TraceError
from traces.formats import choose, flight_recorder
from traces.importer import import_files
from traces.program import Collective, CollectiveKind, Compute, Recv, Send, Wait


def entry(
    number: int, name: str, *, sent: list[list[int]], got: list[list[int]], at: int, end: int = 0
) -> dict[str, Any]:
    return {
        "record_id": number, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": number,
        "is_p2p": "->" in name or "<-" in name, "profiling_name": name, "input_sizes": sent, "output_sizes": got,
        "input_dtypes": ["Float"] * len(sent), "output_dtypes": ["Float"] * len(got), "time_created_ns": at,
        "time_discovered_started_ns": None, "time_discovered_completed_ns": end or None, "state": "completed",
    }  # fmt: skip


def dump(*entries: dict[str, Any], ranks: str = "[0, 1]") -> dict[str, Any]:
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}}
    return {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": list(entries)}


def job(folder: Path) -> Path:
    """Rank 0 sends 6 elements to rank 1 while both reduce 4, and then rank 1 gets its half of 8."""
    for rank, p2p in enumerate(("nccl:send 0->1", "nccl:recv 1<-0")):
        entries = (
            entry(0, "nccl:all_reduce", sent=[[2, 2]], got=[[2, 2]], at=1_000, end=5_000),
            entry(1, p2p, sent=[[6]], got=[[6]], at=2_000, end=6_000),
            entry(2, "nccl:_reduce_scatter_base", sent=[[8]], got=[[4]], at=9_000, end=9_500),
        )
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump(*entries), protocol=2))
    return folder


def test_pickles_of_a_job(tmp_path: Path) -> None:
    trace = import_files([job(tmp_path)])

    first, second = (trace.programs[rank].ops for rank in (0, 1))
    assert [(op.kind, op.count) for op in first if isinstance(op, Collective)] == [
        (CollectiveKind.ALL_REDUCE, 4), (CollectiveKind.REDUCE_SCATTER, 4),
    ]  # fmt: skip
    assert [(op.peer, op.count) for op in first if isinstance(op, Send)] == [(1, 6)]
    assert [(op.peer, op.count) for op in second if isinstance(op, Recv)] == [(0, 6)]
    assert [op.ns for op in first if isinstance(op, Compute)] == [1_000, 3_000]
    waits = [(op.origin.start_ns, op.origin.end_ns) for op in first if isinstance(op, Wait)]
    assert waits == [(1_000, 4_000), (1_000, 5_000), (8_000, 8_500)]
    assert {finding.code for finding in trace.findings} == {"assumed-splits", "assumed-wait"}


def test_what_is_left_out_is_said() -> None:
    entries = (entry(7, "nccl:all_reduce", sent=[[2]], got=[[2]], at=5), entry(8, "nccl:new", sent=[], got=[], at=6))
    recording = flight_recorder.read(pickle.dumps(dump(*entries)), "x")

    assert recording.timeline is not None
    found = (*recording.findings, *recording.timeline(recording.calls).findings)
    said = {finding.code: finding for finding in found}
    assert set(said) == {"assumed-splits", "ring-overwritten", "unknown-operation", "assumed-wait", "end-lost"}
    assert said["ring-overwritten"].message.startswith("7 ")
    unknown = said["unknown-operation"]
    assert (unknown.code, unknown.replayable) == ("unknown-operation", False)
    assert unknown.message == "1 operations 'nccl:new' are of no known kind; left out"


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.corpus
def test_a_pickle_is_read_as_the_json_of_the_same(corpus: Path, protocol: int) -> None:
    data = (corpus / "self-recorded-gloo/ops/fr_trace_json_rank_0.json").read_bytes()
    pickled = pickle.dumps(json.loads(data), protocol)

    for form in (data, pickled):
        known = choose(form)
        assert known is not None
        assert known.name == flight_recorder.NAME
    assert len(flight_recorder.read(data, "x").calls) == 96
    assert flight_recorder.read(pickled, "x").calls == flight_recorder.read(data, "x").calls


class Runs:
    """Unpickled as any object is, this would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_never_executes_anything(tmp_path: Path, protocol: int) -> None:
    with pytest.raises(ValueError, match="more than plain containers"):
        plain_pickle.loads(pickle.dumps({"entries": [Runs(tmp_path / "made")]}, protocol))
    assert not (tmp_path / "made").exists()


def test_pickles_that_grow_nest_or_point_far_are_refused() -> None:
    laughs: list[Any] = ["ha"]
    for _ in range(40):
        laughs = [laughs] * 10
    loop: list[Any] = []
    loop.append(loop)
    assert plain_pickle.loads(pickle.dumps(loop)) == [[]]
    with pytest.raises(ValueError, match="too often"):
        plain_pickle.loads(pickle.dumps(laughs))
    with pytest.raises(ValueError, match="expected 4294967295"):
        plain_pickle.loads(b"\x80\x02X\xff\xff\xff\xff")
    assert plain_pickle.loads(b"\x80\x02Nr\xff\xff\xff\x7f.") is None  # as a list, the memo would take 16 GB
    with pytest.raises(TraceError):
        flight_recorder.read(b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".", "x")


def test_damaged_dumps_are_never_a_traceback(tmp_path: Path) -> None:
    names = ("nccl:all_reduce", "nccl:send 0->1", "nccl:broadcast")
    whole = dump(
        *(entry(n, name, sent=[[3, 4]], got=[[5]], at=10 * n, end=10 * n + 15) for n, name in enumerate(names))
    )
    forms = (pickle.dumps(whole, 2), json.dumps(whole).encode())
    dice = random.Random("damage flight recorder")
    kept = refused = 0
    for number in range(MUTATIONS):
        bad = bytearray(forms[number % 2])
        for _ in range(dice.randint(1, 3)):
            bad[dice.randrange(len(bad))] = dice.randrange(256)
        try:
            recording = flight_recorder.read(bytes(bad[: dice.choice((len(bad), dice.randrange(len(bad))))]), "x")
            assert recording.timeline is not None
            recording.timeline(recording.calls)
            kept += 1
        except TraceError:
            refused += 1
    assert kept > MUTATIONS // 100
    assert refused > MUTATIONS // 10
