"""Horovod's timeline (HOROVOD_TIMELINE): what rank 0 saw of all ranks, as a Chrome trace in which each tensor is a process.

    [{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "grad.0"}},
    {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 10, "pid": 1}, {"ph": "X", "name": "1", "ts": 12, "pid": 1, "dur": 0},
    {"ph": "E", "ts": 15, "pid": 1}, {"ph": "B", "name": "ALLREDUCE", "ts": 16, "pid": 1}, ...
    {"ph": "E", "ts": 90, "pid": 1, "args": {"dtype": "float32", "shape": "[1000]"}}]

Layout: horovod/common/timeline.cc. Times are in us of rank 0's clock. An X is named by a rank and says when it was ready; from
the second step on Horovod negotiates by cache and leaves them out. All ranks run operations in the order that was agreed on.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec

from traces.counted import counted
from traces.errors import TraceError
from traces.files import Opened
from traces.program import CollectiveKind, DType, Finding, Group, Trace
from traces.pytorch.calls import UNKNOWN, Call
from traces.recording import TimedCall, Timeline
from traces.timeline import program

NAME = "horovod"
MAX_RANKS = 1 << 13
MAX_OPS = 2_000_000  # of all ranks together
MAX_US = 1e15
MAX_ELEMENTS = 1 << 50

_WORLD = "world"
_KINDS = {
    "ALLREDUCE": CollectiveKind.ALL_REDUCE,
    "ADASUM": CollectiveKind.ALL_REDUCE,
    "ALLGATHER": CollectiveKind.ALL_GATHER,
    "BROADCAST": CollectiveKind.BROADCAST,
    "ALLTOALL": CollectiveKind.ALL_TO_ALL,
    "REDUCESCATTER": CollectiveKind.REDUCE_SCATTER,
    "BARRIER": CollectiveKind.BARRIER,
}
_DTYPES = {dtype.value: dtype for dtype in DType} | {"uint16": DType.INT16}
_SHAPE = re.compile(r"\[(\d{1,16}(?:, ?\d{1,16}){0,15})?\]$")


class _Args(msgspec.Struct, frozen=True):
    name: str = ""
    dtype: str = ""
    shape: str = ""


class _Event(msgspec.Struct, frozen=True):
    ph: str
    name: str = ""
    ts: float = 0.0
    pid: int = 0
    args: _Args = _Args()


def sniff(head: bytes) -> bool:
    """Whether a file that starts with `head` is a timeline; one that holds no more than "[" is what an early end leaves."""
    text = head.strip()
    marks = (b'"start_time_since_epoch_in_micros"', b'"NEGOTIATE_')
    return text.startswith(b"[") and (text == b"[" or any(mark in text for mark in marks))


@dataclass(frozen=True, slots=True)
class _Operation:
    """One tensor's operation. `ready` is by rank, where it is known; `agreed_us` is when all were, at the latest."""

    tensor: int
    call: Call
    ready_us: dict[int, float]
    agreed_us: float
    start_us: float
    end_us: float


@dataclass(slots=True)
class _Tensor:
    name: str = ""
    open: list[tuple[str, float]] = field(default_factory=list)  # (name, us) of what has begun
    ready: dict[int, float] = field(default_factory=dict)
    agreed: float = -1.0


def read(files: Sequence[Opened]) -> Trace:
    """The job in one timeline. Raises TraceError naming the event that is wrong."""
    if len(files) > 1:
        raise TraceError("a timeline is of all ranks; this is a second one", file=files[1].name)
    reader = _Reader(files[0].name)
    reader.read(files[0].data)
    return reader.trace()


class _Reader:
    def __init__(self, file: str) -> None:
        self._file = file
        self._tensors: dict[int, _Tensor] = {}
        self._operations: list[_Operation] = []
        self._said: Counter[str] = Counter()

    def _error(self, message: str, place: object = None, mend: str = "") -> TraceError:
        return TraceError(message, file=self._file, place=place, mend=mend)

    def read(self, data: bytes) -> None:
        for number, event in enumerate(self._events(data)):
            if event.pid == 0 or event.ph == "i":
                continue
            if not 0 <= event.ts <= MAX_US:
                raise self._error(f"a time of {event.ts} us", f"event {number}")
            tensor = self._tensors.setdefault(event.pid, _Tensor())
            if event.ph == "M" and event.name == "process_name":
                tensor.name = event.args.name[:200]
            elif event.ph == "B":
                tensor.open.append((event.name, event.ts))
            elif event.ph == "X" and event.name.isascii() and event.name.isdigit() and len(event.name) < 9:
                tensor.ready.setdefault(int(event.name), event.ts)
            elif event.ph == "E":
                if not tensor.open:
                    raise self._error(f"tensor {tensor.name!r} ends what it has not begun", f"event {number}")
                self._end(event, tensor, f"event {number}")
        self._said["cut-operation"] = sum(bool(tensor.open) for tensor in self._tensors.values())

    def _events(self, data: bytes) -> list[_Event]:
        """The events, also of a file that ends in the middle of one: Horovod closes the array anew after each."""
        text = data.strip()
        if text in (b"[", b"[]"):
            mend = "end the job with hvd.shutdown(), and look at rank 0's file"
            raise self._error("the timeline holds no events: the job ended before any was written", mend=mend)
        try:
            return msgspec.json.decode(text, type=list[_Event])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError) as first:
            whole = text[: text.rfind(b"},") + 1] if not text.endswith(b"}") else text
            if text.endswith(b"]") or not whole:
                raise self._error(f"not a timeline: {first}") from first
            try:
                events = msgspec.json.decode(whole + b"]", type=list[_Event])
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError):
                raise self._error(f"not a timeline: {first}") from first
            self._said["cut-file"] = 1
            return events

    def _end(self, event: _Event, tensor: _Tensor, place: str) -> None:
        name, start = tensor.open.pop()
        if name.startswith("NEGOTIATE_"):
            tensor.agreed = event.ts
        elif not tensor.open and name in _KINDS:
            call = self._call(name, tensor.name, event.args, place)
            self._said["ready-unknown"] += not tensor.ready
            self._said["assumed-even"] += call.kind in (CollectiveKind.ALL_GATHER, CollectiveKind.ALL_TO_ALL)
            agreed = tensor.agreed if 0 <= tensor.agreed <= start else start
            end = max(start, event.ts)
            self._operations.append(_Operation(event.pid, call, tensor.ready, agreed, start, end))
            tensor.ready, tensor.agreed = {}, -1.0

    def _call(self, name: str, tensor: str, args: _Args, place: str) -> Call:
        kind = _KINDS[name]
        dtype, shape = _DTYPES.get(args.dtype), _SHAPE.match(args.shape)
        if kind is CollectiveKind.BARRIER or dtype is None or shape is None:
            return Call(kind, tensor, 0 if kind is CollectiveKind.BARRIER else UNKNOWN, group=_WORLD, is_async=True)
        count = 1
        for extent in (shape[1] or "").replace(" ", "").split(","):
            count *= int(extent) if extent else 1
            if count > MAX_ELEMENTS:
                raise self._error(f"a tensor of shape {args.shape[:60]}", place)
        return Call(kind, tensor, count, dtype, _WORLD, is_async=True)

    def trace(self) -> Trace:
        known = {rank for operation in self._operations for rank in operation.ready_us}
        if not self._operations:
            raise self._error("no operation ends in the timeline")
        if not known:
            raise self._error("no event says which ranks there are", mend="record the job's first steps, too")
        size = max(known) + 1
        if len(known) != size or size > MAX_RANKS:
            raise self._error(f"{len(known)} ranks were ready, and the last is {size - 1}")
        if 2 * size * len(self._operations) > MAX_OPS:
            raise self._error(f"{size} ranks with {len(self._operations)} operations each", mend="record fewer steps")
        world = Group(0, "0", tuple(range(size)), 0, "default_pg")
        steps = self._steps()
        begin = min(min([o.agreed_us, o.start_us, *o.ready_us.values()]) for o in self._operations)
        programs, said = {}, dict[Finding, None]()
        for rank in range(size):
            timeline = self._timeline(rank, size, steps, begin)
            programs[rank], findings = program(timeline, rank, {_WORLD: world}, source=0)
            said.update(dict.fromkeys(findings))
        found = [*counted(sorted(self._said.items()), _SAID)]
        found.append(Finding("assumed-wait", _WAITS, "info"))
        return Trace(
            world_size=size,
            groups=(world,),
            programs=programs,
            step_count=len(steps),
            findings=(*said, *found),
        )

    def _steps(self) -> list[list[_Operation]]:
        """Operations in the order they ran; a step ends where a tensor comes again."""
        steps: list[list[_Operation]] = []
        seen: set[int] = set()
        for operation in sorted(self._operations, key=lambda o: o.start_us):
            if not steps or operation.tensor in seen:
                steps.append([])
                seen.clear()
            seen.add(operation.tensor)
            steps[-1].append(operation)
        return steps

    def _timeline(self, rank: int, size: int, steps: list[list[_Operation]], begin: float) -> Timeline:
        """One rank's steps: it starts operations in the order they ran, and waits once it has started a step's last."""
        calls: list[TimedCall] = []
        marks = []
        issued = begin
        for number, step in enumerate(steps):
            issues = []
            for operation in step:
                issued = max(issued, min(operation.ready_us.get(rank, operation.agreed_us), operation.start_us))
                issues.append(issued)
            waits = issues[-1]
            end = max(operation.end_us for operation in step)
            for operation, issue in zip(step, issues, strict=True):
                call = _shared(operation.call, size)
                calls.append(TimedCall(call, _ns(issue), max(_ns(operation.end_us), _ns(issue)), _ns(waits)))
            marks.append((number, _ns(max(end, waits))))
        return Timeline(_ns(begin), tuple(marks), tuple(calls))


_WAITS = "the timeline does not say when ranks wait; each does once it has started a step's last operation"
_SAID = {
    "ready-unknown": "operations were negotiated by cache: ranks were ready when all had agreed, so no skew among them",
    "assumed-even": "operations have only their output's size recorded; all ranks were taken to have an equal part",
    "cut-operation": "tensors have an operation that does not end; left out",
    "cut-file": "end of the file is missing; what is there was read",
}


def _shared(call: Call, size: int) -> Call:
    """The call as one rank makes it: Horovod tells the output's shape, which all_gather has from all ranks (taken as even)."""
    each = -(-call.count // size)
    if call.kind is CollectiveKind.ALL_GATHER and call.count > 0:
        return replace(call, count=each)
    if call.kind is CollectiveKind.ALL_TO_ALL and call.count > 0:
        return replace(call, count=each * size)
    return call


def _ns(us: float) -> int:
    return round(us * 1000)
