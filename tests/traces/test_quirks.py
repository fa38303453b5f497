"""What files of PyTorch's recorders are known to do: each quirk with the program that is right in spite of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.traces.recordings import kineto, span, step
from tests.traces.test_gloo import outline
from tests.traces.test_nccl import kernel, launch
from traces.errors import TraceError
from traces.importer import import_files
from traces.program import Collective, Recv, Send, Trace


def comms(start: float, ident: int, name: str, **more: Any) -> dict[str, Any]:
    """A described call of 3 us."""
    told = {"Collective name": name, "dtype": "Float", "In msg nelems": 8, "Out msg nelems": 8, "Seq": 1}
    group = {"Process Group Name": "0", "Group size": 2, "Record function id": ident}
    return span("record_param_comms", start, start + 3, args=told | group | more)


def wait(start: float, ident: int, **more: Any) -> dict[str, Any]:
    """As NCCL's are recorded: of no group, one rank, no elements."""
    told = {"Collective name": "wait", "dtype": "Byte", "In msg nelems": 0, "Out msg nelems": 0, "Group size": 1}
    return span(
        "record_param_comms",
        start,
        start + 1,
        args=told | {"Process Group Ranks": "[]", "Record function id": ident} | more,
    )


def job(folder: Path, events: list[dict[str, Any]], *, rank: int = 0, world_size: int = 2) -> Trace:
    folder.mkdir(exist_ok=True)
    (folder / f"rank-{rank}.json").write_text(json.dumps(kineto(events, rank=rank, world_size=world_size)))
    return import_files([folder])


@pytest.mark.parametrize("stride", [1, 2])
def test_a_cut_list_of_ranks_is_rebuilt_from_start_and_stride(stride: int, tmp_path: Path) -> None:
    ranks = list(range(1, 1 + 40 * stride, stride))
    text = json.dumps(ranks[:30])[:-1] + ", ...]"
    named = {"Process Group Name": "7", "Group size": 40, "Process Group Ranks": text}
    calls = [comms(10, 3, "allreduce", **named, **{"Global rank start": 1, "Global rank stride": stride})]
    found = job(tmp_path / "strided", [step(0, 0, 100), *calls], rank=1, world_size=100)

    assert [group.ranks for group in found.groups if group.name == "7"] == [tuple(ranks)]
    uneven = [comms(10, 3, "allreduce", **named, **{"Global rank start": 1, "Global rank stride": -1})]
    with pytest.raises(TraceError, match="no file says which ranks are in process group '7'"):
        job(tmp_path / "uneven", [step(0, 0, 100), *uneven], rank=1, world_size=100)


def test_a_listed_group_is_taken_as_it_is(tmp_path: Path) -> None:
    named = {"Process Group Name": "7", "Group size": 2, "Process Group Ranks": "[1, 3]"}
    found = job(tmp_path, [step(0, 0, 100), comms(10, 3, "allreduce", **named)], rank=1, world_size=4)

    assert [group.ranks for group in found.groups] == [(0, 1, 2, 3), (1, 3)]


@pytest.mark.parametrize(
    "name", ["ncclKernel_AllReduce_RING_LL_Sum_float(x)", "ncclDevKernel_AllReduce_Sum_f32(x)", "ncclDevKernel_Generic"]
)
def test_the_kernel_is_found_by_its_launch_whatever_its_name(name: str, tmp_path: Path) -> None:
    """RCCL's says nothing of what it does; the call says it."""
    events = [step(0, 0, 30), launch(5, 1), kernel(10, 40, 1), comms(12, 3, "broadcast"), launch(13, 2)]
    events += [kernel(41, 90, 2, name=name), wait(16, 4, Seq=1), launch(20, 3), kernel(91, 120, 3)]

    assert outline(job(tmp_path, events)) == [40, ("broadcast", 8), "wait 1", 30, "|"]


def test_waits_that_name_nothing_are_for_the_oldest_call_that_is_not_waited_for(tmp_path: Path) -> None:
    events = [step(0, 0, 60), comms(2, 3, "allreduce", Seq=-1), launch(3, 1), comms(6, 4, "broadcast", Seq=-1)]
    events += [launch(7, 2), kernel(4, 20, 1, name="ncclDevKernel_a"), kernel(20, 30, 2, name="ncclDevKernel_b")]
    events += [launch(9, 3), kernel(10, 40, 3), wait(12, 5), wait(14, 6)]

    found = job(tmp_path, events)
    assert [part for part in outline(found) if not isinstance(part, float)][-3:] == ["wait 1", "wait 3", "|"]
    assert "alone" not in {finding.code for finding in found.findings}


def test_a_coalesced_group_of_which_only_the_annotation_is_left_is_said(tmp_path: Path) -> None:
    annotated = {"Input type": ["float"], "Input Dims": [[8]]}
    events = [
        step(0, 0, 60),
        span("nccl:all_reduce", 5, 8, cat="user_annotation", args=annotated),
        span("nccl:coalesced", 10, 12, cat="user_annotation"),
    ]
    said = {finding.code: finding for finding in job(tmp_path, events).findings}

    assert said["unknown-operation"].message.startswith("1 operations 'nccl:coalesced'")
    assert not said["unknown-operation"].replayable


def test_peers_of_messages_are_ranks_of_the_group(tmp_path: Path) -> None:
    named = {"Process Group Name": "pp", "Process Group Ranks": "[1, 3]"}
    events = [step(0, 0, 60), comms(5, 3, "send", **named, **{"Src Rank": 0, "Dst Rank": 1})]
    events.append(comms(10, 4, "recv", **named, **{"Src Rank": 1, "Dst Rank": 0}))
    ops = job(tmp_path, events, rank=1, world_size=4).programs[1].ops

    assert [op.peer for op in ops if isinstance(op, Send | Recv)] == [3, 3]


def test_splits_that_were_cut_are_said(tmp_path: Path) -> None:
    cut = {"In split size": "[1, 2, ...]", "Out split size": "[4, 4]"}
    found = job(tmp_path, [step(0, 0, 60), comms(5, 3, "all_to_allv", **cut)])

    assert {"cut-list"} <= {finding.code for finding in found.findings}
    assert [op.send_splits for op in found.programs[0].ops if isinstance(op, Collective)] == [()]


@pytest.mark.corpus
def test_a_lone_dump_of_gloo_names_its_groups_only_and_all_dumps_tell_their_ranks(corpus: Path) -> None:
    folder = corpus / "self-recorded-gloo/ops"
    with pytest.raises(TraceError, match=r"no file says that there are more ranks than 1 \(import the files of all"):
        import_files([folder / "fr_trace_json_rank_0.json"])
    found = import_files(sorted(folder.glob("fr_trace_json_rank_*")))

    assert [(group.name, group.ranks) for group in found.groups] == [("0", (0, 1, 2, 3)), ("1", (0, 2)), ("2", (1, 3))]
    assert {"assumed-group", "assumed-world-size"} <= {finding.code for finding in found.findings}


@pytest.mark.corpus
def test_dumps_beside_other_recordings_are_left_out(corpus: Path, tmp_path: Path) -> None:
    """One rank's execution trace, Kineto file and two dumps in one folder."""
    folder = corpus / "self-recorded-gloo/ops"
    for name in ("et.rank-0.json.gz", "kineto.rank-0.json.gz", "fr_trace_json_rank_0.json"):
        shutil.copy(folder / name, tmp_path / name)
    without = import_files([tmp_path / "et.rank-0.json.gz", tmp_path / "kineto.rank-0.json.gz"])
    shutil.copy(folder / "fr_trace_json_rank_0.json", tmp_path / "another_rank_0.json")
    found = import_files([tmp_path])

    assert outline_kinds(found) == outline_kinds(without)
    assert [(f.severity, f.rank) for f in found.findings if f.code == "skipped-file"] == [("info", -1)]
    (tmp_path / "et.rank-0.json.gz").unlink()
    (tmp_path / "kineto.rank-0.json.gz").unlink()
    with pytest.raises(TraceError, match="rank 0 is given twice"):
        import_files([tmp_path])


def outline_kinds(trace: Trace) -> list[object]:
    return [(type(op).__name__, getattr(op, "count", None), getattr(op, "ns", None)) for op in trace.programs[0].ops]
