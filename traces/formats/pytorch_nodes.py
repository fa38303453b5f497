"""Nodes of PyTorch execution traces, and the times that they have where the trace was linked with Kineto's.

Linked traces ("et_plus" of ASTRA-sim, 2023; chakra's src/trace_link) are execution traces whose nodes carry Kineto's
`ts` and `dur`, and which have what ran on the GPU as nodes more, below the operator that launched it. Such a node's `dur`
is how long it ran, but its `ts` is when the host had launched it (so in all 261 nodes of a rank whose Kineto file is
there too). Linkers since 2024 write `inclusive_dur`; their traces count as untimed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from traces.pytorch.calls import UNKNOWN
from traces.pytorch.spans import Device, Gpu, Integers, Operators, Span, Spans, is_comm, kind_of, step_number


class Attribute(msgspec.Struct, frozen=True):
    name: str
    value: Any = None


class Node(msgspec.Struct, frozen=True):
    """`inputs` is a plain list in schema 1.0.1 (with `input_types` beside it), an object later. Times are in us."""

    name: str
    id: int
    rf_id: int = UNKNOWN
    inputs: msgspec.Raw = msgspec.Raw(b"[]")
    input_types: list[str] = []
    attrs: list[Attribute] = []
    tid: int | str = UNKNOWN
    parent: int = UNKNOWN
    ctrl_deps: int | None = None
    ts: int | float | None = None
    dur: int | float | None = None
    cat: str = ""

    @property
    def above(self) -> int:
        """The node that this one is called from."""
        return self.parent if self.ctrl_deps is None else self.ctrl_deps


def linked(nodes: Sequence[Node], calls: Sequence[Node], file: str) -> Spans | None:
    """The times in a linked trace, with those of `calls` in their order; None where it has none, or no GPU's.

    When something started on the GPU is not in it: when it was launched or when what its stream ran before had ended,
    whichever is later, which is too early where it waited for another stream. Host calls that wait for the GPU are not
    in it at all. Raises OverflowError (a time that no clock shows).
    """
    spans = {node.id: _span(node) for node in nodes if node.ts is not None and node.dur is not None}
    device = [node for node in nodes if node.cat and node.id in spans]
    if not device or not calls or any(call.id not in spans for call in calls):
        return None
    host = [node for node in nodes if not node.cat and node.id in spans]
    steps = [(number, spans[node.id]) for node in host if (number := step_number(node.name)) is not None]
    return Spans(
        file=file,
        steps=tuple(sorted(steps, key=lambda pair: pair[1].start)),
        operators=_operators([spans[node.id] for node in host]),
        calls=tuple(spans[call.id] for call in calls),
        workers=((),) * len(calls),
        gpu=_gpu(device, spans),
        groups=(),
    )


def _span(node: Node) -> Span:
    assert node.ts is not None
    assert node.dur is not None
    start = round(node.ts * 1000)
    thread = next((a.value for a in node.attrs if a.name == "tid"), node.tid)
    return Span(node.name, str(thread), start, start + round(node.dur * 1000))


def _operators(host: Sequence[Span]) -> Operators:
    threads = {thread: index for index, thread in enumerate(dict.fromkeys(span.thread for span in host))}
    return Operators(
        tuple(threads),
        np.array([threads[span.thread] for span in host], np.int32),
        _column([span.start for span in host]),
        _column([span.end for span in host]),
        np.array([kind_of(span.name) for span in host], np.int8),
    )


def _gpu(device: Sequence[Node], spans: dict[int, Span]) -> Gpu:
    free: dict[int | str, int] = {}
    ran: dict[int, Span] = {}
    for node in sorted(device, key=lambda node: spans[node.id].start):
        launched = spans[node.id]
        start = max(launched.start, free.get(launched.thread, launched.start))
        end = free[launched.thread] = start + launched.end - launched.start
        ran[node.id] = Span(node.name, launched.thread, start, end)
    streams = {thread: index for index, thread in enumerate(free)}
    comms = [node for node in device if is_comm(node.name)]
    work = [node for node in device if not is_comm(node.name)]
    return Gpu(
        kernels=tuple(Device(ran[node.id], streams[ran[node.id].thread], node.id) for node in comms),
        launches={
            node.id: Span(by.name, by.thread, spans[node.id].start, by.end)
            for node in comms
            if (by := spans.get(node.above)) is not None
        },
        launched=_column([spans[node.id].start for node in work]),
        ended=_column([ran[node.id].end for node in work]),
        streams=frozenset(streams[ran[node.id].thread] for node in work),
        sync_start=_column([]),
        sync_end=_column([]),
        first=min(span.start for span in ran.values()),
        last=max(span.end for span in ran.values()),
    )


def _column(values: Sequence[int]) -> Integers:
    return np.array(values, np.int64)
