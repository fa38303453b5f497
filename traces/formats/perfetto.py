"""Perfetto and Chrome: a trace to look at, as JSON. Written only: what is drawn is no program.

A process a rank; in it a thread for the program (computing, waiting, where steps end) and one for each lane. Layout: the Trace
Event Format document of Chromium, which ui.perfetto.dev reads; `ts` and `dur` are in microseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from traces.program import (
    Collective,
    Communication,
    Compute,
    Finding,
    Group,
    Op,
    Program,
    StepMark,
    Trace,
    Wait,
    op_bytes,
)

NAME = "perfetto"

_HEAD = b'{"displayTimeUnit": "ns", "otherData": {"drawn by": "tracebed export"}, "traceEvents": ['
_PROGRAM = 0  # the program's thread; a lane's is its place behind it
_Event = dict[str, object]


@dataclass(frozen=True, slots=True)
class _Span:
    start_ns: int
    end_ns: int


def write(trace: Trace) -> tuple[bytes, tuple[Finding, ...]]:
    """The file, and how ranks without recorded times were laid out: by compute alone, as if the network took no time.

    In a thread no two overlap: a lane runs its operations one at a time, and a program that waits for several does so in turn.
    Each is drawn from the end of the one before, if that is later than its own start; `called_ns`, `stopped_ns` and `ended_ns`
    are as recorded.
    """
    groups = {group.id: group for group in trace.groups}
    lanes = {lane: place for place, lane in enumerate(dict.fromkeys(g.lane for g in trace.groups), _PROGRAM + 1)}
    laid_out = 0
    events: list[_Event] = []
    for rank, program in sorted(trace.programs.items()):
        spans = _recorded(program)
        if spans is None:
            spans = _laid_out(program)
            laid_out += 1
        events += _heads(rank, trace, lanes)
        events += _events(program, spans, groups, lanes)
    data = _HEAD + b"\n" + b",\n".join(map(msgspec.json.encode, events)) + b"\n]}\n"
    text = f"{laid_out} ranks have no recorded times: they are drawn as if the network took no time, operations until their waits"
    return data, (Finding("laid-out", text, "info"),) if laid_out else ()


def is_drawn(head: bytes) -> bool:
    """Whether a file that starts with `head` is one of these, which looks like a Kineto trace."""
    return head.startswith(_HEAD)


def _recorded(program: Program) -> list[_Span] | None:
    """When each operation was; None unless all have times that go on as the program does."""
    spans = [_Span(op.origin.start_ns, max(op.origin.start_ns, op.origin.end_ns)) for op in program.ops]
    starts = [span.start_ns for span in spans]
    return spans if all(start >= 0 for start in starts) and starts == sorted(starts) else None


def _laid_out(program: Program) -> list[_Span]:
    now = 0
    spans = []
    for op in program.ops:
        before, now = now, now + (op.ns if isinstance(op, Compute) else 0)
        spans.append(_Span(before, now))
        if isinstance(op, Wait):
            spans[op.op] = _Span(spans[op.op].start_ns, now)
    return spans


def _heads(rank: int, trace: Trace, lanes: Mapping[int, int]) -> Iterator[_Event]:
    host = trace.hosts.get(rank)
    names = {_PROGRAM: "program"}
    for lane, thread in lanes.items():
        of = [group.name for group in trace.groups if group.lane == lane and rank in group.ranks]
        names |= {thread: f"group {', '.join(of)}"} if of else {}
    yield _told("process_name", rank, 0, f"rank {rank}" + (f" on {host}" if host else ""))
    yield {"ph": "M", "name": "process_sort_index", "pid": rank, "tid": 0, "args": {"sort_index": rank}}
    for thread, name in names.items():
        yield _told("thread_name", rank, thread, name)
        yield {"ph": "M", "name": "thread_sort_index", "pid": rank, "tid": thread, "args": {"sort_index": thread}}


def _told(what: str, rank: int, thread: int, name: str) -> _Event:
    return {"ph": "M", "name": what, "pid": rank, "tid": thread, "args": {"name": name}}


def _events(
    program: Program, spans: list[_Span], groups: Mapping[int, Group], lanes: Mapping[int, int]
) -> Iterator[_Event]:
    free: Counter[int] = Counter()  # by thread: when what was drawn last has ended
    for index, (op, span) in enumerate(zip(program.ops, spans, strict=True)):
        if isinstance(op, StepMark):
            at: _Event = {"pid": program.rank, "tid": _PROGRAM, "ts": span.start_ns / 1000}
            yield {"ph": "i", "name": f"step {op.step} ends", "s": "p", **at, "args": {"op": index}}
            continue
        thread = lanes[groups[op.group].lane] if isinstance(op, Communication) else _PROGRAM
        start = max(span.start_ns, free[thread])
        free[thread] = max(span.end_ns, start)
        at = {"pid": program.rank, "tid": thread, "ts": start / 1000, "dur": (free[thread] - start) / 1000}
        if isinstance(op, Compute):
            yield {"ph": "X", "name": op.name or "compute", **at, "args": {"op": index, "ns": op.ns}}
        elif isinstance(op, Wait):
            name = f"wait: {_name(program.ops[op.op])}"
            yield {"ph": "X", "name": name, **at, "args": {"op": index, "for": op.op, "stopped_ns": span.start_ns}}
        else:
            yield {"ph": "X", "name": _name(op), **at, "args": _arguments(op, index, span, groups[op.group])}


def _name(op: Op) -> str:
    return op.kind if isinstance(op, Collective) else type(op).__name__.lower()


def _arguments(op: Communication, index: int, span: _Span, group: Group) -> _Event:
    with_whom: _Event = {"root": op.root} if isinstance(op, Collective) and op.root >= 0 else {}
    if not isinstance(op, Collective):
        with_whom = {"peer": op.peer, "tag": op.tag}
    when = {"called_ns": span.start_ns, "ended_ns": span.end_ns}
    told = {"op": index, **when, "bytes": op_bytes(op), "count": op.count, "dtype": op.dtype}
    return {
        **told,
        "group": group.name,
        "ranks": len(group.ranks),
        **with_whom,
        **({"name": op.name} if op.name else {}),
    }
