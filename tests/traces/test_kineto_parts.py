"""A Kineto file read a part at a time is the file read at once, however it is laid out; a cut one gives what it holds."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.traces.recordings import MAIN, all_reduce, gloo, kineto, span, step
from tests.traces.test_mutations import MUTATIONS
from traces.errors import TraceError
from traces.files import open_all
from traces.formats import events, kineto_lines
from traces.formats import kineto as kineto_format
from traces.formats.kineto_lines import Columns
from traces.importer import import_files
from traces.recording import Recording

EVENTS = [
    step(0, 0, 50),
    span("aten::mm", 1, 9, args={"said": "}, {", "list": [{"a": 1}, {"b": [{}]}], "end": "} ]"}),
    all_reduce(10, 12, 3, 8, is_async=False),
    gloo("all_reduce", 11, 40, 4),
    span("aten::add", 41, 45, args={"last": [{"x": 1}]}),
]
WHOLE = kineto(EVENTS) | {"devices": [{"id": 0}, {"id": 1}]}
LAYOUTS = [
    json.dumps(WHOLE),
    json.dumps(WHOLE, indent=1),
    json.dumps(WHOLE, indent=4, separators=(" ,", " : ")),
    json.dumps(WHOLE, separators=(",", ":"), sort_keys=True),
    json.dumps(WHOLE, indent=2).replace("\n  ],\n", ",\n  ],\n", 1),  # a comma behind the last event
]


def told(recording: Recording) -> object:
    assert recording.timeline is not None
    return recording.rank, recording.groups, recording.host, recording.calls, recording.timeline(recording.calls)


@pytest.mark.parametrize("part", [1, 200, 1 << 20])
@pytest.mark.parametrize("layout", range(len(LAYOUTS)))
def test_layouts_and_parts_do_not_matter(layout: int, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = told(kineto_format.read([json.dumps(WHOLE).encode()], "x"))
    monkeypatch.setattr(events, "PART_BYTES", part)

    data = LAYOUTS[layout].encode()
    assert told(kineto_format.read([data[at : at + 50] for at in range(0, len(data), 50)], "x")) == expected


@pytest.mark.corpus
def test_parts_of_real_files_are_their_events(corpus: Path) -> None:
    files = [
        corpus / "HolisticTraceAnalysis/tests/data/cpu_only",
        corpus / "HolisticTraceAnalysis/tests/data/trace_filter/sampled_rank-0.json.gz",
        corpus / "HolisticTraceAnalysis/tests/data/nccl_parser_config",
        corpus / "self-recorded-gloo/ops/kineto.rank-0.json.gz",
    ]
    for stream in open_all(files):
        data = stream.whole().data
        decoder = msgspec.json.Decoder(list[Any])
        parts = events.Parts([data], decoder, lambda *_: None)
        assert [event for part in parts for event in part] == json.loads(data)["traceEvents"]
        assert json.loads(parts.around) == json.loads(data) | {"traceEvents": []}


@pytest.mark.corpus
def test_reading_by_lines_is_decoding(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On every real file, to the ns; all but those that are not in a layout of Kineto's own are read by lines."""
    monkeypatch.setattr(events, "PART_BYTES", 1 << 18)
    by_lines: set[str] = set()
    left: set[str] = set()
    for stream in open_all(sorted(file for file in corpus.rglob("*.json*") if file.is_file())):
        if not kineto_format.sniff(stream.head):
            continue
        data = stream.whole().data

        def columns(text: bytes, size: int, name: str = stream.name) -> Columns | None:
            found = kineto_lines.columns(text, size)
            (left if found is None else by_lines).add(name)
            return found

        blocks = [data[at : at + (1 << 18)] for at in range(0, len(data), 1 << 18)]
        quick = kineto_format.read_parts(blocks, stream.name, columns)
        assert told(quick) == told(kineto_format.read_parts(blocks, stream.name, lambda *_: None)), stream.name
    assert len(by_lines) >= 15
    assert not left


def test_a_file_that_ends_in_the_middle_gives_what_it_holds(tmp_path: Path) -> None:
    data = json.dumps(kineto(EVENTS))
    (tmp_path / "rank-0.json").write_text(data[: data.index("aten::add")])

    trace = import_files([tmp_path / "rank-0.json"])
    assert "cut-file" in {finding.code for finding in trace.findings}
    whole = kineto_format.read([data.encode()], "x")
    assert kineto_format.read([(tmp_path / "rank-0.json").read_bytes()], "x").calls == whole.calls


def in_lines(layout: str) -> bytes:
    """A file in one of Kineto's own layouts."""
    gap = " " if layout == "wide" else "\n    "
    device = [
        span("cudaStreamSynchronize", 12, 13, cat="cuda_runtime", args={"cbid": 1, "correlation": 5}),
        span("void gemm", 14, 20, cat="kernel", tid=7, args={"stream": 7, "correlation": 5}),
    ]
    texts = []
    for event in [*EVENTS, *device, EVENTS[0], device[0]]:
        texts.append(
            f'\n  {{\n    "ph": "X",{gap}"cat": "{event["cat"]}",{gap}"name": "{event["name"]}",{gap}"pid": 1,{gap}'
            f'"tid": {event["tid"]},\n    "ts": {event["ts"]},{gap}"dur": {event["dur"]}{"," if gap == " " else f"{gap},"}'
            f'\n    "args": {{\n      {json.dumps(event["args"])[1:-1]}\n    }}\n  }}'
        )
    head, _, tail = json.dumps(kineto([])).rpartition("[]")
    return f"{head}[{','.join(texts)}\n  ]{tail}".encode()


@pytest.mark.parametrize("layout", ["wide", "tall"])
def test_kinetos_own_layouts_are_read_by_lines(layout: str) -> None:
    data, seen = in_lines(layout), []

    def columns(text: bytes, size: int) -> Columns | None:
        seen.append(kineto_lines.columns(text, size))
        return seen[-1]

    quick = kineto_format.read_parts([data], "x", columns)
    assert told(quick) == told(kineto_format.read_parts([data], "x", lambda *_: None))
    (found,) = seen
    assert found is not None
    assert [column.tolist() for column in found.launches] == [[MAIN], [12_000], [13_000], [5], [1]]
    assert [column.tolist() for column in found.work] == [[5], [14_000], [20_000]]


def test_an_event_that_looks_like_several_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its arguments hold what stands between events, so parts are cut inside it while later ones are read already."""
    monkeypatch.setattr(events, "PART_BYTES", 1 << 11)
    inside = ",".join(
        f'\n  {{\n    "ph": "X", "cat": "cpu_op", "name": "aten::no", "ts": {at}\n  }}' for at in range(50)
    )
    odd = f'\n  {{\n    "ph": "X", "cat": "cpu_op", "name": "odd", "ts": 1, "args": {{"list": [{inside}]}}\n  }}'
    data = in_lines("wide").replace(b"[\n  {", b"[" + odd.encode() + b",\n  {", 1)
    data = data.replace(b"\n  ]", b"," + odd.encode() + b"\n  ]")
    expected = json.loads(data)["traceEvents"]

    parts = events.Parts([data], msgspec.json.Decoder(list[Any]), lambda *_: None)
    assert [event for part in parts for event in part] == expected
    assert told(kineto_format.read([data], "x")) == told(kineto_format.read_parts([data], "x", lambda *_: None))


def test_damaged_files_are_never_a_traceback() -> None:
    layouts = [json.dumps(kineto(EVENTS), indent=1).encode(), in_lines("wide"), in_lines("tall")]
    dice = random.Random("damage kineto")
    kept = refused = 0
    for index in range(MUTATIONS):
        bad = bytearray(layouts[index % len(layouts)])
        for _ in range(dice.randint(1, 3)):
            bad[dice.randrange(len(bad))] = dice.choice((*b'{}[]",:0-e\\', dice.randrange(256)))
        try:
            told(kineto_format.read([bytes(bad[: dice.choice((len(bad), dice.randrange(len(bad))))])], "x"))
            kept += 1
        except TraceError:
            refused += 1
    assert kept > MUTATIONS // 100
    assert refused > MUTATIONS // 10
