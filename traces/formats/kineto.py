"""Kineto chrome traces (torch.profiler): one rank's calls with times, on NCCL or gloo.

Layout: kineto's libkineto/src/output_json.cpp, and what the files hold.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import msgspec

from traces.errors import TraceError
from traces.formats.events import Parts
from traces.formats.gathered import Event, Gathered, Ids, args_of, span_of
from traces.formats.kineto_lines import Columns, columns
from traces.program import CollectiveKind, Finding
from traces.pytorch import gloo, nccl
from traces.pytorch.calls import (
    COMMS_NAMES,
    UNKNOWN,
    Argument,
    Call,
    c10d_call,
    dtype_of,
    in_elements,
    strided,
    unknown_operations,
)
from traces.pytorch.spans import Span, Spans, step_number
from traces.recording import GroupInfo, Recording, Timeline

NAME = "kineto"

_Pair = tuple[Span, Event]
_Told = tuple[Event, Call | str]  # the name of an operation of no known kind


class _Config(msgspec.Struct, frozen=True):
    pg_name: str | None = None
    pg_desc: str = ""
    pg_size: int = 0
    ranks: list[int] = []


class _Distributed(msgspec.Struct, frozen=True):
    rank: int = UNKNOWN
    world_size: int = UNKNOWN
    pg_config: list[_Config] = []


class _Around(msgspec.Struct, frozen=True):
    """The file without its events."""

    traceEvents: list[Event]  # noqa: N815 - the file's own spelling
    distributedInfo: _Distributed = _Distributed()  # noqa: N815
    baseTimeNanoseconds: int = 0  # noqa: N815
    host_name: str = ""


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
    group_description: str = msgspec.field(name="Process Group Description", default="")
    group_ranks: str = msgspec.field(name="Process Group Ranks", default="")
    first_rank: int = msgspec.field(name="Global rank start", default=UNKNOWN)
    rank_stride: int = msgspec.field(name="Global rank stride", default=UNKNOWN)
    group_size: int = msgspec.field(name="Group size", default=UNKNOWN)
    source: int = msgspec.field(name="Src Rank", default=UNKNOWN)
    destination: int = msgspec.field(name="Dst Rank", default=UNKNOWN)
    seq: int = msgspec.field(name="Seq", default=UNKNOWN)
    is_async: bool | None = msgspec.field(name="Is asynchronized op", default=None)


def sniff(head: bytes) -> bool:
    """Whether a file that starts with `head` (the first few KB) is a Kineto trace."""
    return b'"traceEvents"' in head or b'"schemaVersion"' in head


def read(blocks: Iterable[bytes], file: str) -> Recording:
    """Decode one rank's Kineto trace, which comes in `blocks`. Raises TraceError naming `file` and what is wrong."""
    return read_parts(blocks, file, columns)


def read_parts(blocks: Iterable[bytes], file: str, by_lines: Callable[[bytes, int], Columns | None]) -> Recording:
    """`read` with a choice of how the parts are read first (tests compare); what `by_lines` can't is decoded as JSON."""
    gathered = Gathered(file)
    parts = Parts(blocks, msgspec.json.Decoder(list[Event], strict=False), by_lines)
    try:
        for part in parts:
            if isinstance(part, Columns):
                gathered.take(part)
                gathered.add(parts.decoder.decode(b"[" + b",".join(part.others) + b"]"))
            else:
                gathered.add(part)
        around = msgspec.json.decode(parts.around, type=_Around, strict=False)
        spans, told = _spans(gathered, around, file)
        groups = _groups(around.distributedInfo.pg_config, told, file)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise TraceError(f"not a Kineto trace: {error}", file=file, place=f"from byte {parts.place}") from error
    info = around.distributedInfo
    place = partial(nccl.timeline, spans, spans.gpu) if spans.gpu else partial(gloo.timeline, spans)
    return Recording(
        file=file,
        format=NAME,
        rank=info.rank,
        world_size=info.world_size,
        pid=gathered.pid,
        host=around.host_name,
        groups=groups,
        calls=tuple(call for _, call in told if isinstance(call, Call)),
        timeline=partial(_placed, place, parts.is_cut),
        findings=unknown_operations(call for _, call in told if isinstance(call, str)),
    )


def _placed(place: Callable[[tuple[Call, ...]], Timeline], is_cut: bool, calls: tuple[Call, ...]) -> Timeline:
    timeline = place(calls)
    if not is_cut:
        return timeline
    text = "the file ends in the middle; what is there was read, and what stands behind the events is lost"
    return replace(timeline, findings=(*timeline.findings, Finding("cut-file", text, "warning")))


def _spans(gathered: Gathered, around: _Around, file: str) -> tuple[Spans, list[_Told]]:
    """Sort a file's events by what they tell, and read its calls in the order they were made."""
    base = around.baseTimeNanoseconds
    steps: list[tuple[int, Span]] = []
    comms: list[_Pair] = []
    c10d: list[_Pair] = []
    annotations: list[_Pair] = []
    for event in gathered.telling:
        is_annotation = (event.cat or "").lower() == "user_annotation"
        if is_annotation and (step := step_number(event.name)) is not None:
            steps.append((step, span_of(event, base)))
        elif is_annotation and not event.name.startswith(("gloo:", "nccl:")):
            continue
        else:
            kind = annotations if is_annotation else comms if event.name == "record_param_comms" else c10d
            kind.append((span_of(event, base, args_of(event, Ids, file).record_function), event))
    made = sorted([*comms, *_untold(c10d, comms)] or annotations, key=lambda pair: pair[0].start)
    workers = [pair for pair in annotations if pair[1].name.startswith("gloo:")]
    owned = _owned([span for span, _ in made], workers) if made is not workers else [[pair] for pair in made]
    beside = _Beside(c10d, annotations)
    told = [(event, _call(event, span, mine, beside, file)) for (span, event), mine in zip(made, owned, strict=True)]
    called = [
        (span, mine) for (span, _), mine, (_, call) in zip(made, owned, told, strict=True) if isinstance(call, Call)
    ]
    spans = Spans(
        file=file,
        steps=tuple(sorted(steps, key=lambda pair: pair[1].start)),
        operators=gathered.operators(base),
        calls=tuple(span for span, _ in called),
        workers=tuple(tuple(span for span, _ in mine) for _, mine in called),
        gpu=gathered.gpu(base),
        groups=tuple(g.pg_name for g in around.distributedInfo.pg_config if g.pg_name is not None),
    )
    return spans, told


def _groups(listed: list[_Config], told: list[_Told], file: str) -> tuple[GroupInfo, ...]:
    """Process groups as the file lists them; of others, what their calls say."""
    groups = {
        config.pg_name: _some(config.pg_name, config.pg_desc, tuple(config.ranks) or strided(0, 1, config.pg_size))
        for config in listed
        if config.pg_name is not None
    }
    for event, call in told:
        if isinstance(call, Call) and call.group and call.group not in groups:
            comms = args_of(event, _Comms, file)
            ranks = _split(comms.group_ranks) or strided(comms.first_rank, comms.rank_stride, comms.group_size)
            groups[call.group] = _some(call.group, comms.group_description, ranks)
    return tuple(group for group in groups.values() if group is not None)


def _some(name: str, description: str, ranks: tuple[int, ...]) -> GroupInfo | None:
    """The group; None where its ranks are not recorded (their list is cut, and they are not evenly apart)."""
    return GroupInfo(name, description, ranks) if ranks else None


def _untold(c10d: list[_Pair], comms: list[_Pair]) -> list[_Pair]:
    """Operators in which no record_param_comms lies: gloo's, and over NCCL _allgather_base before torch 2.1."""
    starts: dict[int | str, list[int]] = {}
    for span, _ in sorted(comms, key=lambda pair: pair[0].start):
        starts.setdefault(span.thread, []).append(span.start)

    def is_told(span: Span) -> bool:
        mine = starts.get(span.thread, [])
        at = bisect_left(mine, span.start)
        return at < len(mine) and mine[at] <= span.end

    return [pair for pair in c10d if not is_told(pair[0])]


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


class _Beside:
    """Finds what else is recorded of a call: the c10d operator it lies in, the annotation that lies in it."""

    def __init__(self, c10d: list[_Pair], annotations: list[_Pair]) -> None:
        self._c10d = sorted(c10d, key=lambda pair: pair[0].start)
        self._annotations = sorted(annotations, key=lambda pair: pair[0].start)

    def operator(self, span: Span) -> Event | None:
        """The last c10d operator of the thread that starts no later than `span`, if it ends no earlier."""
        at = bisect_right(self._c10d, span.start, key=lambda pair: pair[0].start)
        for outer, event in reversed(self._c10d[:at]):
            if outer.thread == span.thread:
                return event if outer.end >= span.end else None
        return None

    def annotation(self, span: Span) -> Event | None:
        """The first annotation of the thread that starts within `span`."""
        at = bisect_left(self._annotations, span.start, key=lambda pair: pair[0].start)
        for inner, event in self._annotations[at:]:
            if inner.start > span.end:
                return None
            if inner.thread == span.thread:
                return event
        return None


def _call(event: Event, span: Span, workers: list[_Pair], beside: _Beside, file: str) -> Call | str:
    """The call, or the name of an operation of no known kind."""
    if event.name == "record_param_comms":
        comms = args_of(event, _Comms, file)
        return _described(comms, span.ident) if comms.collective else _bare_call(span, beside, file)
    if event.name.startswith("c10d::"):
        return _operator_call(event, span.ident, workers[0][1] if workers else None, file)
    return _annotated_call(event, span.ident, file)


def _described(comms: _Comms, ident: int) -> Call | str:
    kind = COMMS_NAMES.get(comms.collective)
    if kind is None:
        return comms.collective
    receives = kind in (CollectiveKind.REDUCE_SCATTER, "recv")
    send, receive = in_elements((_split(comms.send_splits), comms.sent), (_split(comms.recv_splits), comms.received))
    return Call(
        kind=kind,
        name=comms.collective,
        count=0 if kind is CollectiveKind.BARRIER else comms.received if receives else comms.sent,
        dtype=dtype_of(comms.dtype),
        group=comms.group,
        group_size=comms.group_size,
        peer=comms.source if kind == "recv" else comms.destination,
        send_splits=send,
        recv_splits=receive,
        is_async=comms.is_async,
        seq=comms.seq,
        event=ident,
        is_cut="..." in comms.send_splits or "..." in comms.recv_splits,
    )


def _bare_call(span: Span, beside: _Beside, file: str) -> Call | str:
    """A record_param_comms from before the metadata (2023): what is around tells what it is; a wait has nothing."""
    operator, annotation = beside.operator(span), beside.annotation(span)
    if operator is not None:
        call = _operator_call(operator, span.ident, annotation, file)
        # The flag of the operator is not the call's: NCCL's waits are recorded by themselves.
        return replace(call, is_async=None) if isinstance(call, Call) else call
    if annotation is not None:
        return _annotated_call(annotation, span.ident, file)
    return Call("wait", "wait", event=span.ident)


def _operator_call(event: Event, ident: int, annotation: Event | None, file: str) -> Call | str:
    call = c10d_call(event.name, _arguments(args_of(event, _Shapes, file)), event=ident)
    if call is None:
        return event.name
    if call.dtype is None and annotation is not None:
        # A list of tensors is recorded without its type; the annotation of the work itself has it.
        types = args_of(annotation, _Shapes, file).types
        return replace(call, dtype=dtype_of(types[0]) if types else None)
    return call


def _annotated_call(event: Event, ident: int, file: str) -> Call | str:
    """A call of which only the annotation of its work is left; its tensor is the size of an all_reduce only."""
    kind = COMMS_NAMES.get(event.name.partition(":")[2])
    if kind is None:
        return event.name
    shapes = args_of(event, _Shapes, file)
    if kind is not CollectiveKind.ALL_REDUCE or not shapes.dims or not shapes.types:
        return Call(kind, event.name, event=ident)
    return Call(kind, event.name, sum(_numels(shapes.dims)), dtype_of(shapes.types[0]), event=ident)


def _arguments(shapes: _Shapes) -> list[Argument]:
    return [
        Argument(_numels(dims), dtype_of(type_name), _value(text))
        for text, type_name, dims in zip(shapes.concrete, shapes.types, shapes.dims, strict=False)
    ]


def _numels(dims: Any) -> tuple[int, ...]:
    """Element counts behind "Input Dims": [2, 3] is one tensor, [[2, 3], [4]] a list of two."""
    if isinstance(dims, list) and dims and all(isinstance(part, list) for part in dims):
        return tuple(count for part in dims for count in _numels(part))
    return (prod(dims),) if isinstance(dims, list) and all(isinstance(size, int) for size in dims) else ()


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
    return tuple(int(part[:18]) for part in re.findall(r"\d+", text)) if "..." not in text else ()
