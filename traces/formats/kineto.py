"""Kineto chrome traces (torch.profiler): one rank's calls with times, on NCCL or gloo.

Layout: notes/trace_formats.md section 6.1; kineto's output_json.cpp.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any, TypeVar

import msgspec

from traces.errors import TraceError
from traces.formats import gloo, nccl
from traces.formats.calls import COMMS_NAMES, UNKNOWN, Argument, Call, c10d_call, dtype_of
from traces.formats.recording import GroupInfo, Recording
from traces.formats.spans import Device, Span, Spans
from traces.program import CollectiveKind

NAME = "kineto"

_STEP = re.compile(r"ProfilerStep#(\d+)$")
_DEVICE_WORK = {"kernel", "gpu_memcpy", "gpu_memset"}
_LAUNCHES = {"cuda_runtime", "cuda_driver", "hip_runtime", "runtime"}


class _Event(msgspec.Struct, frozen=True):
    """Times are in microseconds; `args` stays undecoded until something asks."""

    ph: str = ""
    cat: str | None = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: int | float = 0
    dur: int | float = 0
    args: msgspec.Raw = msgspec.Raw(b"{}")


class _Config(msgspec.Struct, frozen=True):
    pg_name: str | None = None
    pg_desc: str = ""
    ranks: list[int] = []


class _Distributed(msgspec.Struct, frozen=True):
    rank: int = UNKNOWN
    world_size: int = UNKNOWN
    pg_config: list[_Config] = []


class _File(msgspec.Struct, frozen=True):
    traceEvents: list[_Event]  # noqa: N815 - the file's own spelling
    distributedInfo: _Distributed = _Distributed()  # noqa: N815
    baseTimeNanoseconds: int = 0  # noqa: N815
    host_name: str = ""


class _Ids(msgspec.Struct, frozen=True):
    """How events of one file name each other; absent ones are UNKNOWN."""

    record_function: int = msgspec.field(name="Record function id", default=UNKNOWN)
    correlation: int = UNKNOWN
    stream: int = UNKNOWN


class _Shapes(msgspec.Struct, frozen=True):
    concrete: list[Any] = msgspec.field(name="Concrete Inputs", default=[])
    types: list[str] = msgspec.field(name="Input type", default=[])
    dims: list[Any] = msgspec.field(name="Input Dims", default=[])


class _Comms(msgspec.Struct, frozen=True):
    """What newer files write beside record_param_comms and its kernels."""

    collective: str = msgspec.field(name="Collective name", default="")
    dtype: str = ""
    sent: int = msgspec.field(name="In msg nelems", default=UNKNOWN)
    received: int = msgspec.field(name="Out msg nelems", default=UNKNOWN)
    send_splits: str = msgspec.field(name="In split size", default="")
    recv_splits: str = msgspec.field(name="Out split size", default="")
    group: str = msgspec.field(name="Process Group Name", default="")
    group_size: int = msgspec.field(name="Group size", default=UNKNOWN)
    source: int = msgspec.field(name="Src Rank", default=UNKNOWN)
    destination: int = msgspec.field(name="Dst Rank", default=UNKNOWN)
    seq: int = msgspec.field(name="Seq", default=UNKNOWN)
    is_async: bool | None = msgspec.field(name="Is asynchronized op", default=None)


def sniff(head: bytes) -> bool:
    """Whether a file that starts with `head` (the first few KB) is a Kineto trace."""
    return b'"traceEvents"' in head or b'"schemaVersion"' in head


def read(data: bytes, file: str) -> Recording:
    """Decode one rank's Kineto trace. Raises TraceError naming `file` and the byte or field that is wrong."""
    try:
        decoded = msgspec.json.decode(data, type=_File, strict=False)
    except msgspec.DecodeError as error:
        raise TraceError(f"not a Kineto trace: {error}", file=file) from error
    spans, calls = _spans(decoded, file)
    info = decoded.distributedInfo
    place = nccl.timeline if spans.kernels else gloo.timeline
    return Recording(
        file=file,
        format=NAME,
        rank=info.rank,
        world_size=info.world_size,
        pid=spans.pid,
        host=decoded.host_name,
        groups=tuple(GroupInfo(g.pg_name, g.pg_desc, tuple(g.ranks)) for g in info.pg_config if g.pg_name is not None),
        calls=calls,
        timeline=partial(place, spans),
    )


def _spans(decoded: _File, file: str) -> tuple[Spans, tuple[Call, ...]]:
    """Sort a file's events by what they tell, and read its calls in the order they were made."""
    base = decoded.baseTimeNanoseconds
    steps: list[tuple[int, Span]] = []
    operators: list[Span] = []
    comms: list[tuple[Span, _Event]] = []
    c10d: list[tuple[Span, _Event]] = []
    workers: list[tuple[Span, _Event]] = []
    kernels: list[Device] = []
    launches: dict[int, Span] = {}
    for event in decoded.traceEvents:
        if event.ph != "X":
            continue
        start = base + round(event.ts * 1000)
        span = Span(event.name, event.tid, start, start + round(event.dur * 1000))
        cat = (event.cat or "").lower()
        if cat == "user_annotation" and (step := _STEP.match(event.name)):
            steps.append((int(step.group(1)), span))
        elif cat == "user_annotation" and event.name.startswith("gloo:"):
            workers.append((_identified(span, event, file), event))
        elif cat in ("cpu_op", "operator"):
            operators.append(span)
            if event.name == "record_param_comms":
                comms.append((_identified(span, event, file), event))
            elif event.name.startswith("c10d::"):
                c10d.append((_identified(span, event, file), event))
        elif cat in _DEVICE_WORK:
            ids = _args(event, _Ids, file)
            kernels.append(Device(span, ids.stream, ids.correlation))
        elif cat in _LAUNCHES:
            launches[_args(event, _Ids, file).correlation] = span
    made = sorted(comms or c10d, key=lambda pair: pair[0].start)
    owned = _owned([span for span, _ in made], workers)
    called = [
        (span, owned[index], call)
        for index, (span, event) in enumerate(made)
        if (call := _call(event, span.ident, owned[index], file)) is not None
    ]
    spans = Spans(
        file=file,
        pid=next((e.pid for e in decoded.traceEvents if e.cat == "cpu_op" and isinstance(e.pid, int)), UNKNOWN),
        steps=tuple(sorted(steps, key=lambda pair: pair[1].start)),
        operators=tuple(sorted(operators, key=lambda span: (span.start, -span.end))),
        calls=tuple(span for span, _, _ in called),
        workers=tuple(tuple(span for span, _ in mine) for _, mine, _ in called),
        kernels=tuple(kernels),
        launches=launches,
        groups=tuple(g.pg_name for g in decoded.distributedInfo.pg_config if g.pg_name is not None),
    )
    return spans, tuple(call for _, _, call in called)


_Pair = tuple[Span, _Event]


def _owned(calls: list[Span], workers: list[_Pair]) -> list[list[_Pair]]:
    """Each call's `gloo:` annotations: ids count up, so an annotation belongs to the last call numbered below it."""
    by_id = sorted((span.ident, index) for index, span in enumerate(calls) if span.ident != UNKNOWN)
    numbers = [ident for ident, _ in by_id]
    owned: list[list[_Pair]] = [[] for _ in calls]
    for span, event in workers:
        at = bisect_left(numbers, span.ident) - 1
        if at >= 0:
            owned[by_id[at][1]].append((span, event))
    return owned


_Struct = TypeVar("_Struct", bound=msgspec.Struct)


def _args(event: _Event, kind: type[_Struct], file: str) -> _Struct:
    try:
        return msgspec.json.decode(event.args, type=kind, strict=False)
    except msgspec.DecodeError as error:
        raise TraceError(
            f"args can't be read: {error}", file=file, place=f"event {event.name!r} at ts {event.ts}"
        ) from error


def _identified(span: Span, event: _Event, file: str) -> Span:
    return replace(span, ident=_args(event, _Ids, file).record_function)


def _call(event: _Event, ident: int, workers: list[_Pair], file: str) -> Call | None:
    shapes = _args(event, _Shapes, file)
    if event.name != "record_param_comms":
        call = c10d_call(event.name, _arguments(shapes), event=ident)
        if call is not None and call.dtype is None and workers:
            # A list of tensors is recorded without its type; the annotation of the work itself has it.
            types = _args(workers[0][1], _Shapes, file).types
            return replace(call, dtype=dtype_of(types[0]) if types else None)
        return call
    comms = _args(event, _Comms, file)
    if not comms.collective:
        return _bare_call(shapes, ident)
    kind = COMMS_NAMES.get(comms.collective)
    if kind is None:
        return None
    receives = kind in (CollectiveKind.REDUCE_SCATTER, "recv")
    return Call(
        kind=kind,
        name=comms.collective,
        count=0 if kind is CollectiveKind.BARRIER else comms.received if receives else comms.sent,
        dtype=dtype_of(comms.dtype),
        group=comms.group,
        group_size=comms.group_size,
        peer=comms.source if kind == "recv" else comms.destination,
        send_splits=_split(comms.send_splits),
        recv_splits=_split(comms.recv_splits),
        is_async=comms.is_async,
        seq=comms.seq,
        event=ident,
    )


def _bare_call(shapes: _Shapes, ident: int) -> Call:
    """A call of a file from before the metadata (2023): a wait has no tensor, anything else is an unknown collective."""
    has_tensor = bool(shapes.types) and shapes.types[0] != "Scalar"
    return Call(CollectiveKind.ALL_REDUCE if has_tensor else "wait", "record_param_comms", event=ident)


def _arguments(shapes: _Shapes) -> list[Argument]:
    return [
        Argument(_numels(dims), dtype_of(type_name), _value(text))
        for text, type_name, dims in zip(shapes.concrete, shapes.types, shapes.dims, strict=False)
    ]


def _numels(dims: Any) -> tuple[int, ...]:
    """Element counts behind "Input Dims": [2, 3] is one tensor, [[2, 3], [4]] a list of two."""
    if isinstance(dims, list) and dims and all(isinstance(part, list) for part in dims):
        return tuple(count for part in dims for count in _numels(part))
    return (prod(dims),) if isinstance(dims, list) else ()


def _value(text: Any) -> object:
    """A concrete input: files write them as strings ("True", "3", "[1, 2]")."""
    if not isinstance(text, str):
        return text
    if text in ("True", "False"):
        return text == "True"
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _split(text: str) -> tuple[int, ...]:
    """ "[1, 2]" as numbers; a list that was cut ("...") tells nothing."""
    return tuple(int(part) for part in re.findall(r"\d+", text)) if "..." not in text else ()
