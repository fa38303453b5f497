"""What a Kineto file's events come to, gathered a part of the file at a time: columns of the many, the few as they are."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec
import numpy as np

from traces.errors import TraceError
from traces.formats.kineto_lines import Columns
from traces.pytorch.calls import UNKNOWN
from traces.pytorch.spans import Device, Gpu, Integers, Operators, Span, is_comm, kind_of

_LONG = 19  # digits that 64 bits don't hold
_DEVICE_WORK = {"kernel", "gpu_memcpy", "gpu_memset"}
_LAUNCHES = {"cuda_runtime", "cuda_driver", "hip_runtime", "runtime"}


class Event(msgspec.Struct, frozen=True):
    """Times are in microseconds, as the file writes them; `args` stays undecoded until something asks."""

    ph: str = ""
    cat: str | None = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: msgspec.Raw = msgspec.Raw(b"0")
    dur: msgspec.Raw = msgspec.Raw(b"0")
    args: msgspec.Raw = msgspec.Raw(b"{}")


class Ids(msgspec.Struct, frozen=True):
    """How events of one file name each other; absent ones are UNKNOWN."""

    record_function: int = msgspec.field(name="Record function id", default=UNKNOWN)
    correlation: int = UNKNOWN
    stream: int = UNKNOWN


_Struct = TypeVar("_Struct", bound=msgspec.Struct)


def args_of(event: Event, kind: type[_Struct], file: str) -> _Struct:
    """What an event's `args` say. Raises TraceError naming the event."""
    try:
        return msgspec.json.decode(event.args, type=kind, strict=False)
    except msgspec.DecodeError as error:
        raise TraceError(
            f"args can't be read: {error}", file=file, place=f"event {event.name!r} at ts {bytes(event.ts).decode()}"
        ) from error


class Gathered:
    """Times are in ns from the file's base, which may stand behind the events; those that are handed back have it."""

    def __init__(self, file: str) -> None:
        self.pid = UNKNOWN
        self.telling: list[Event] = []  # communication calls and annotations, in the order of the file
        self._file = file
        self._threads: dict[int | str, int] = {}
        self._operators = _no_operators()
        self._launches = (
            array("q"),
            array("q"),
            array("q"),
            array("q"),
            array("b"),
        )  # + correlation; waits for the GPU
        self._work = (array("q"), array("q"), array("q"))  # correlation, start, end
        self._streams: set[int] = set()
        self._comms: list[tuple[Event, Ids]] = []

    def add(self, events: Iterable[Event]) -> None:
        """Take a part of the file. Raises TraceError, OverflowError (a time that no clock shows)."""
        by_cat: dict[str | None, list[Event]] = defaultdict(list)
        for event in events:
            if event.ph == "X":
                by_cat[event.cat].append(event)
        for category, mine in by_cat.items():
            cat = (category or "").lower()
            if cat in ("cpu_op", "operator"):
                self._add_operators(mine)
            elif cat == "user_annotation":
                self.telling += map(_kept, mine)
            elif cat in _DEVICE_WORK:
                self._add_device_work(mine)
            elif cat in _LAUNCHES:
                ids = [args_of(event, Ids, self._file).correlation for event in mine]
                waits = ["Synchronize" in event.name for event in mine]
                _extend(self._launches, self._threads_of(mine), *_times_of(mine), ids, waits)

    def take(self, columns: Columns) -> None:
        """Take what a part of the file has in columns; `add` takes the other events."""
        thread, *operators = columns.operators
        _extend(self._operators, self._numbered(thread), *operators)
        thread, *launches = columns.launches
        _extend(self._launches, self._numbered(thread), *launches)
        _extend(self._work, *columns.work)
        self._streams |= columns.streams

    def _numbered(self, threads: Integers) -> Integers:
        """Threads as indices into those that are known."""
        found, back = np.unique(threads, return_inverse=True)
        known = self._threads
        return np.array([known.setdefault(thread, len(known)) for thread in found.tolist()], np.int64)[back]

    def _add_operators(self, events: list[Event]) -> None:
        _extend(self._operators, self._threads_of(events), *_times_of(events), [kind_of(e.name) for e in events])
        if self.pid == UNKNOWN:
            self.pid = next((e.pid for e in events if e.cat == "cpu_op" and isinstance(e.pid, int)), UNKNOWN)
        self.telling += [_kept(e) for e in events if e.name == "record_param_comms" or e.name.startswith("c10d::")]

    def _add_device_work(self, events: list[Event]) -> None:
        identified = [(event, args_of(event, Ids, self._file)) for event in events]
        self._comms += [(_kept(event), ids) for event, ids in identified if is_comm(event.name)]
        work = [pair for pair in identified if not is_comm(pair[0].name)]
        _extend(self._work, [ids.correlation for _, ids in work], *_times_of([event for event, _ in work]))
        self._streams.update(ids.stream for _, ids in work)

    def _threads_of(self, events: list[Event]) -> list[int]:
        known = self._threads
        return [known.setdefault(event.tid, len(known)) for event in events]

    def operators(self, base_ns: int) -> Operators:
        thread, start, end, kind = self._operators
        self._operators = _no_operators()
        times = _column(start), _column(end)
        for column in times:
            column += base_ns  # in place: there may be millions
        return Operators(tuple(self._threads), np.frombuffer(thread, np.int32), *times, np.frombuffer(kind, np.int8))

    def gpu(self, base_ns: int) -> Gpu | None:
        """What the GPU did; None where none was recorded."""
        correlation, start, end = map(_column, self._work)
        if not len(start) and not self._comms:
            return None
        thread, launch, done, name, waits = map(_column, self._launches)
        # Of several launches with one number, the last is the one.
        names, back = np.unique(name[::-1], return_index=True)
        last = len(name) - 1 - back
        at = np.searchsorted(names, correlation)
        known = np.zeros(len(at), bool)
        known[at < len(names)] = names[at[at < len(names)]] == correlation[at < len(names)]
        threads = tuple(self._threads)
        launches = {}
        for _, ids in self._comms:
            found = int(np.searchsorted(names, ids.correlation))
            if found < len(names) and names[found] == ids.correlation:
                one = last[found]
                launches[ids.correlation] = Span(
                    "", threads[thread[one]], int(launch[one]) + base_ns, int(done[one]) + base_ns
                )
        kernels = tuple(Device(span_of(e, base_ns), ids.stream, ids.correlation) for e, ids in self._comms)
        syncs = last[waits[last] != 0]
        return Gpu(
            kernels=kernels,
            launches=launches,
            launched=launch[last[at[known]]] + base_ns,
            ended=end[known] + base_ns,
            streams=frozenset(self._streams),
            sync_start=launch[syncs] + base_ns,
            sync_end=done[syncs] + base_ns,
            first=int(
                min([*(k.span.start for k in kernels), *(start.min(keepdims=True) + base_ns if len(start) else ())])
            ),
            last=int(max([*(k.span.end for k in kernels), *(end.max(keepdims=True) + base_ns if len(end) else ())])),
        )


def _no_operators() -> tuple[array[int], array[int], array[int], array[int]]:
    """Columns for threads, starts, ends and kinds."""
    return array("i"), array("q"), array("q"), array("b")


def _kept(event: Event) -> Event:
    """The event without the part of the file that it came from: undecoded arguments are a view of that."""
    return msgspec.structs.replace(event, args=event.args.copy())


def span_of(event: Event, base_ns: int, ident: int = UNKNOWN) -> Span:
    (start,), (end,) = _times_of([event])
    return Span(event.name, event.tid, start + base_ns, end + base_ns, ident)


def _times_of(events: list[Event]) -> tuple[list[int], list[int]]:
    starts = [_ns(event.ts) for event in events]
    return starts, [start + _ns(event.dur) for start, event in zip(starts, events, strict=True)]


def _ns(value: msgspec.Raw) -> int:
    """Exact where the file is: a double does not hold the ns of today."""
    whole, _, part = bytes(value).partition(b".")
    if whole.isdigit() and len(whole) < _LONG and len(part) <= 3 and (not part or part.isdigit()):
        return int(whole + part.ljust(3, b"0"))
    return round(msgspec.json.decode(value, type=int | float, strict=False) * 1000)


def _extend(columns: Sequence[array[int]], *values: Iterable[int]) -> None:
    for column, more in zip(columns, values, strict=True):
        if isinstance(more, np.ndarray):
            column.frombytes(more.astype(column.typecode).tobytes())
        else:
            column.extend(more)


def _column(values: array[int]) -> Integers:
    return np.frombuffer(values, np.dtype(values.typecode)).astype(np.int64, copy=False)
