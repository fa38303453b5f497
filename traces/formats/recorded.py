"""What `tracebed record` writes in a job, one file a rank: calls, where the rank waited, where its steps end.

The lines are described in traces/record/hook/tracebed_record/stream.py. A file that ends in the middle of a line is that of a rank
that was killed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import msgspec

from traces.errors import TraceError
from traces.program import DType, Finding
from traces.pytorch.calls import UNKNOWN, Argument, Call, c10d_call, unknown_operations
from traces.recording import GroupInfo, Recording, TimedCall, Timeline

NAME = "tracebed-recording"
_VERSION = 1
_DTYPES = {known.value: known for known in DType}
_LATE_NS = (
    5_000_000  # an end is told by another thread, which may have to wait this long for its turn (sys.getswitchinterval)
)


class _Head(msgspec.Struct, frozen=True):
    rank: int
    world_size: int
    epoch_ns: int
    version: int = msgspec.field(name="tracebed-recording")
    pid: int = UNKNOWN
    host: str = ""
    attempt: int = 0
    backend: str = ""


@dataclass(slots=True)
class _Rank:
    """A file's events, by what they tell. Times as written."""

    calls: dict[int, tuple[Call, int, int, int]] = field(default_factory=dict)  # call, begun, returned, backward pass
    ends: dict[int, int] = field(default_factory=dict)
    waits: dict[int, tuple[int, int]] = field(default_factory=dict)
    backwards: dict[int, tuple[int, int]] = field(default_factory=dict)
    groups: list[GroupInfo] = field(default_factory=list)
    marks: list[tuple[str, int]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    unknown: Counter[str] = field(default_factory=Counter)
    last: int = 0


def sniff(head: bytes) -> bool:
    """Whether a file that starts with `head` is such a recording."""
    return head.startswith(b'{"tracebed-recording":')


def read(data: bytes, file: str) -> Recording:
    """One rank's recording. Raises TraceError naming `file` and the line that is wrong."""
    lines = data.split(b"\n")
    cut = lines.pop() != b""  # the line that a kill interrupted
    head, number = None, 1
    rank = _Rank()
    try:
        if not lines:
            raise ValueError("there is no whole line")
        head = msgspec.json.decode(lines[0], type=_Head)
        if head.version != _VERSION:
            raise ValueError(f"version {head.version} is not known")
        for number, line in enumerate(lines[1:], 2):  # noqa: B007 - the error names it
            event = msgspec.json.decode(line, type=list[Any])
            _EVENTS[event[0]](rank, *event[1:])
    except (msgspec.DecodeError, ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        text = f"not a recording of a rank: {error}"
        raise TraceError(
            text, file=file, place=f"line {number}", mend="record with this version of tracebed"
        ) from error
    findings = [Finding("not-recorded", f"the recorder says: {text}", "warning") for text in dict.fromkeys(rank.errors)]
    if cut:
        findings.append(Finding("cut-file", "the recording ends within a line, as the rank was killed", "info"))
    return Recording(
        file=file,
        format=NAME,
        rank=head.rank,
        world_size=head.world_size,
        pid=head.pid,
        host=head.host,
        groups=tuple(rank.groups),
        calls=tuple(call for call, *_ in rank.calls.values()),
        findings=unknown_operations(rank.unknown.elements()),
        timeline=partial(_timeline, rank, head.epoch_ns, tuple(findings)),
    )


def _operation(
    rank: _Rank,
    number: int,
    begun: int,
    returned: int,
    name: str,
    group: str,
    told: list[Any],
    reduce: str,
    backward: int,
) -> None:
    _moment(begun, returned)
    if not isinstance(name, str):
        raise ValueError(f"{name!r} is no operator's name")
    call = c10d_call(name, [_argument(value) for value in told], event=_moment(number))
    if call is None:
        rank.unknown[name] += 1
        return
    widths = [value["b"] for value in told if isinstance(value, dict)]
    if call.dtype is None and call.count > 0:  # an element type of which replay knows only the size
        scale = max(1, min(widths, default=1))
        splits = [tuple(part * scale for part in parts) for parts in (call.send_splits, call.recv_splits)]
        call = replace(call, dtype=DType.UINT8, count=call.count * scale, send_splits=splits[0], recv_splits=splits[1])
    call = replace(call, group=str(group), reduce_op=str(reduce or "sum"), is_async=None)
    rank.calls[number] = (call, begun, returned, backward)
    rank.last = max(rank.last, returned)


def _argument(told: Any) -> Argument:
    if not isinstance(told, dict):
        return Argument(value=told)
    counts = tuple(_moment(count) for count in told["n"])
    return Argument(counts, DType.FLOAT8 if str(told["t"]).startswith("float8") else _DTYPES.get(told["t"]))


def _group(rank: _Rank, name: str, description: str, ranks: list[int], backend: str) -> None:
    rank.groups.append(GroupInfo(str(name), str(description), tuple(_moment(member) for member in ranks)))


def _end(rank: _Rank, number: int, moment: int) -> None:
    rank.ends[number] = _moment(moment)


def _wait(rank: _Rank, numbers: list[int], begun: int, ended: int, sender: int) -> None:
    for number in numbers:
        rank.waits.setdefault(number, (_moment(begun), _moment(ended)))
        if sender >= 0 and number in rank.calls:
            call, *times = rank.calls[number]
            rank.calls[number] = (replace(call, peer=sender), times[0], times[1], times[2])
    rank.last = max(rank.last, ended)


def _backward(rank: _Rank, number: int, begun: int, ended: int) -> None:
    rank.backwards[number] = (_moment(begun), _moment(ended))


def _within(rank: _Rank, first: int, beyond: int, moment: int) -> None:
    """What C++ started and waited for: an operation was waited for when the next had been started, the last one at once."""
    inside = [number for number in range(first, min(beyond, first + len(rank.calls))) if number in rank.calls]
    for number, behind in zip(inside, [*inside[1:], *inside[-1:]], strict=True):
        rank.waits.setdefault(number, (rank.calls[behind][2], _moment(moment)))


def _step(rank: _Rank, kind: str, moment: int, operations: int, spent: int) -> None:
    rank.marks.append((str(kind), _moment(moment)))
    rank.last = max(rank.last, moment)


def _error(rank: _Rank, text: str) -> None:
    rank.errors.append(str(text)[:200])


_EVENTS: dict[str, Callable[..., None]] = {
    "o": _operation,
    "g": _group,
    "e": _end,
    "w": _wait,
    "b": _backward,
    "c": _within,
    "s": _step,
    "!": _error,
}


def _moment(*values: int) -> int:
    for value in values:
        if not isinstance(value, int) or not 0 <= value < 1 << 62:
            raise ValueError(f"{value!r} is no time or count")
    return values[0]


def _timeline(rank: _Rank, epoch_ns: int, findings: tuple[Finding, ...], calls: tuple[Call, ...]) -> Timeline:
    timed = []
    for (number, (_, begun, returned, backward)), call in zip(rank.calls.items(), calls, strict=True):
        told = rank.ends.get(number)
        wait = rank.waits.get(number)
        if wait is None and backward in rank.backwards:
            stop = rank.backwards[backward]
            wait = stop if told is not None and told <= stop[1] + _LATE_NS else None
        ended = min((moment for moment in (told, wait and wait[1]) if moment is not None), default=UNKNOWN)
        timed.append(
            TimedCall(
                call,
                begun + epoch_ns,
                UNKNOWN if ended == UNKNOWN else max(ended, begun) + epoch_ns,
                None if wait is None else max(wait[0], returned) + epoch_ns,
            )
        )
    marks = _marks(rank)
    start = min((begun for _, begun, *_ in rank.calls.values()), default=0)
    return Timeline(
        min([start, *marks[:1]]) + epoch_ns,
        tuple((step, moment + epoch_ns) for step, moment in enumerate(marks)),
        tuple(timed),
        findings,
    )


def _marks(rank: _Rank) -> list[int]:
    """Where steps end: as the job says, else at its optimizer's steps, else at its profiler's; else there is one step."""
    for kind in ("step", "optimizer", "profiler"):
        if found := [moment for said, moment in rank.marks if said == kind]:
            return found
    return [rank.last]
