"""Events of a Kineto file in the two layouts that Kineto itself writes, found by their lines and read as columns.

Layouts: kineto's libkineto/src/output_json.cpp, before 2025 (several keys a line) and since (a line a key). Strings hold no line
feeds in JSON, and here no backslashes, so a line's ends tell what it is. Most events need no more than four numbers; the few
whose arguments matter are handed back as text. What is laid out in any other way is left to a JSON decoder.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traces.pytorch.calls import UNKNOWN
from traces.pytorch.spans import ACCUMULATE, ACCUMULATE_NAME, BACKWARD, BACKWARD_NAME, OTHER, WORK, Integers

Mask = npt.NDArray[np.bool_]
_Words = npt.NDArray[np.uint64]
_ZEROS = np.uint64(0x3030303030303030)

_BETWEEN = b"\n  },\n  {\n"
_WORK = (b"kernel", b"gpu_memcpy", b"gpu_memset")
_LAUNCHES = (b"cuda_runtime", b"cuda_driver", b"hip_runtime")
_UNUSED = (b"python_function", b"gpu_user_annotation", b"overhead")
_NAME = 64  # bytes of a launch's name that are looked at
_ARGUMENTS = 160  # bytes of the GPU work's arguments in which its numbers stand, as a rule
_STREAM = b'"stream": '
_CORRELATION = b'"correlation": '
_IDS = re.compile(rb'"(stream|correlation)": (\d{1,18})\b')


@dataclass(frozen=True, slots=True)
class Columns:
    """Times are in ns. `others` are events of their own, as JSON."""

    operators: tuple[Integers, Integers, Integers, Integers]  # thread, start, end, kind
    launches: tuple[Integers, Integers, Integers, Integers, Integers]  # thread, start, end, correlation, waits
    work: tuple[Integers, Integers, Integers]  # correlation, start, end
    streams: frozenset[int]
    others: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class _Layout:
    """What stands between the values, and in which lines of an event (0 is its brace) the numbers end."""

    category: bytes
    name: bytes
    thread: tuple[int, bytes]
    start: bytes
    duration: tuple[int, bytes]
    arguments: int


_WIDE = _Layout(b'", "cat": "', b'", "name": "', (1, b', "tid": '), b'\n    "ts": ', (2, b', "dur": '), 4)
_TALL = _Layout(
    b'",\n    "cat": "', b'",\n    "name": "', (5, b'\n    "tid": '), b'\n    "ts": ', (7, b',\n    "dur": '), 10
)


class _UnlikeError(Exception):
    """The part is not laid out in this way."""


def columns(text: bytes, size: int) -> Columns | None:
    """The events in the first `size` bytes of `text`, which are whole and have a comma between them; None where they are in
    another layout. BEHIND bytes more are there, so that what is looked for in the last event does not lie outside.

    The first operator is one of the others, as they tell the process.
    """
    if text.find(b"\\", 0, size) >= 0:
        return None
    try:
        return _Part(text, size).columns()
    except _UnlikeError:
        return None


class _Part:
    def __init__(self, text: bytes, size: int) -> None:
        self.size = size
        self.part = text
        self.text = np.frombuffer(text, np.uint8)
        self.ends = np.flatnonzero(self.text[:size] == ord("\n"))
        short = np.flatnonzero(np.diff(self.ends) == len("\n  {"))
        starts = self.ends[short]
        if not len(starts) or text[: starts[0]].strip():
            raise _UnlikeError
        # The word at a byte, wherever it lies.
        self.words: _Words = np.ndarray((len(self.part) - 7,), "<u8", self.part, 0, (1,))
        _all(self.is_at(starts[1:] - len(b"\n  },"), _BETWEEN))
        _all(self.text[starts + 3] == ord("{"))
        self.first, self.starts = short, starts
        self.phs = starts + len(b"\n  {\n    ")
        self.layout = _WIDE if self.is_at(self.phs, b'"ph": "X", ').any() else _TALL

    def columns(self) -> Columns:
        ph = self.phs
        is_other = ~self.is_at(ph, b'"ph": "')
        spans = np.flatnonzero(self.is_at(ph, b'"ph": "X') & self.is_at(ph + 8, self.layout.category))
        is_other |= self.is_at(ph, b'"ph": "X')
        is_other[spans] = False
        category = ph[spans] + 8 + len(self.layout.category)
        word = self.words[category]

        def of(*names: bytes) -> tuple[Integers, Integers]:
            """Which events are of these categories, and where their names begin."""
            found, named = [], []
            for name in names:
                whole = name + self.layout.name
                mine = np.flatnonzero(word == int.from_bytes(whole[:8], "little"))
                mine = mine[self.is_at(category[mine], whole)]
                left[mine] = False
                found.append(spans[mine])
                named.append(category[mine] + len(whole))
            order = np.argsort(np.concatenate(found), kind="stable")
            return np.concatenate(found)[order], np.concatenate(named)[order]

        left = np.ones(len(spans), bool)
        of(*_UNUSED)
        operators, operator_names = of(b"cpu_op")
        work, work_names = of(*_WORK)
        launches, launch_names = of(*_LAUNCHES)
        is_other[spans[left]] = True

        tells = self.is_at(operator_names, b"c10d::") | self.is_at(operator_names, b'record_param_comms"')
        tells[:1] = True
        is_other[operators[tells]] = True
        operators, operator_names = operators[~tells], operator_names[~tells]
        is_comm = self.is_at(work_names, b"ncclKernel") | self.is_at(work_names, b"ncclDevKernel")
        is_other[work[is_comm]] = True
        work = work[~is_comm]
        correlation, streams = self.work_ids(work)
        return Columns(
            operators=(*self.times(operators), self.kinds(operator_names)),
            launches=(*self.times(launches), self.correlations(launches), self.waits(launch_names)),
            work=(correlation, *self.times(work)[1:]),
            streams=streams,
            others=tuple(self.event(int(one)) for one in np.flatnonzero(is_other)),
        )

    def event(self, one: int) -> bytes:
        return self.part[self.starts[one] : self.behind(one)]

    def behind(self, one: int) -> int:
        return int(self.starts[one + 1]) - 1 if one + 1 < len(self.starts) else self.size

    def is_at(self, at: Integers, literal: bytes) -> Mask:
        """Where `literal` stands at a byte of `at`; eight bytes at a time, the last of them again."""
        if len(literal) < 8:
            mask = np.uint64((1 << 8 * len(literal)) - 1)
            short: Mask = (self.words[at] & mask) == np.uint64(int.from_bytes(literal, "little"))
            return short
        found = np.ones(len(at), bool)
        for offset in {*range(0, len(literal) - 7, 8), len(literal) - 8}:
            found &= self.words[at + offset] == np.uint64(int.from_bytes(literal[offset : offset + 8], "little"))
        return found

    def end(self, line: int, events: Integers) -> Integers:
        """Where an event's line ends, without its comma."""
        at = self.first[events] + 1 + line
        if len(at) and at[-1] >= len(self.ends):
            raise _UnlikeError
        end: Integers = self.ends[at]
        return np.where(self.text[end - 1] == ord(","), end - 1, end)

    def times(self, events: Integers) -> tuple[Integers, Integers, Integers]:
        """Thread, start and end."""
        (line, label), (dur_line, dur_label) = self.layout.thread, self.layout.duration
        thread, begins = self.number(self.end(line, events))
        is_below = self.text[begins - 1] == ord("-")
        thread, begins = np.where(is_below, -thread, thread), begins - is_below
        _all(self.is_at(begins - len(label), label))
        took, begins = self.thousandths(self.end(dur_line, events))
        _all(self.is_at(begins - len(dur_label), dur_label))
        start, begins = self.thousandths(begins - len(dur_label))
        _all(self.is_at(begins - len(self.layout.start), self.layout.start))
        return thread, start, start + took

    def thousandths(self, end: Integers) -> tuple[Integers, Integers]:
        """A thousand times the numbers that end at `end`, and where these begin."""
        if not len(end) or self.text[end[0] - 4] != ord("."):
            value, begins = self.number(end)
            return value * 1000, begins
        part, digits = self.digits(end)
        _all(digits == 3)
        _all(self.text[end - 4] == ord("."))
        value, begins = self.number(end - 4)
        return value * 1000 + part, begins

    def number(self, end: Integers) -> tuple[Integers, Integers]:
        """Numbers of up to 16 digits that end at `end`, and where they begin."""
        value, count = self.digits(end)
        _all(count > 0)
        if (long := count == 8).any():
            above, more = self.digits(end - 8)
            value = value + np.where(long, above * 10**8, 0)
            count = count + np.where(long, more, 0)
        return value, end - count

    def digits(self, end: Integers) -> tuple[Integers, Integers]:
        """The value and the number of the digits before `end`, up to 8: all in one word, its last character highest."""
        word = self.words[end - 8] ^ _ZEROS
        count = 7 - _last_byte(_others(word))
        unused = ((8 - count) << 3).astype(np.uint64)
        return _decimal((word >> unused) << unused), count

    def kinds(self, names: Integers) -> Integers:
        """What `kind_of` says."""
        kinds = np.where(self.is_at(names, b"aten::"), WORK, OTHER)
        for index in np.flatnonzero(self.is_at(names, BACKWARD_NAME[:8].encode())).tolist():
            at = int(names[index])
            if self.part.startswith(BACKWARD_NAME.encode(), at):
                kinds[index] = ACCUMULATE if self.part.startswith(ACCUMULATE_NAME.encode(), at) else BACKWARD
        return kinds

    def waits(self, names: Integers) -> Integers:
        """Which names have "Synchronize" in them."""
        waits = np.zeros(len(names), np.int64)
        if not len(names):
            return waits
        windows = np.ndarray((len(self.part) - _NAME + 1,), f"V{_NAME}", self.part, 0, (1,))[names].tobytes()
        letters = np.frombuffer(windows, np.uint8).reshape(-1, _NAME)
        _all((letters == ord('"')).any(axis=1))
        at = -1
        while (at := windows.find(b"Synchronize", at + 1)) >= 0:
            row = at // _NAME
            waits[row] |= windows.find(b'"', row * _NAME) > at
        return waits

    def correlations(self, events: Integers) -> Integers:
        """What launches are numbered; it stands at the end of their arguments, as a rule."""
        if not len(events):
            return events
        end = self.ends[np.minimum(self.first[events] + 1 + self.layout.arguments, len(self.ends) - 1)]
        value, begins = self.number_or_none(end)
        known = self.is_at(begins - len(_CORRELATION), _CORRELATION) & (begins < end)
        for index in np.flatnonzero(~known).tolist():
            value[index] = self.ids(int(events[index])).get(b"correlation", UNKNOWN)
        return value

    def number_or_none(self, end: Integers) -> tuple[Integers, Integers]:
        value, count = self.digits(end)
        long = count == 8
        above, more = self.digits(end - 8)
        return value + np.where(long, above * 10**8, 0), end - count - np.where(long, more, 0)

    def work_ids(self, events: Integers) -> tuple[Integers, frozenset[int]]:
        """What the launches of these are numbered, and all streams that they ran on."""
        if not len(events):
            return events, frozenset()
        at = self.end(self.layout.arguments - 1, events)
        words = self.words[at[:, np.newaxis] + np.arange(_ARGUMENTS)]
        streams, first = self.labelled(at, words, _STREAM)
        correlations, second = self.labelled(at, words, _CORRELATION)
        behind = np.append(self.starts, self.size)[events + 1]
        for index in np.flatnonzero((first < at) | (second < at) | (first > behind) | (second > behind)).tolist():
            ids = self.ids(int(events[index]))
            streams[index], correlations[index] = ids.get(b"stream", UNKNOWN), ids.get(b"correlation", UNKNOWN)
        return correlations, frozenset(np.unique(streams).tolist())

    def labelled(self, at: Integers, words: _Words, label: bytes) -> tuple[Integers, Integers]:
        """The numbers of up to 7 digits behind `label`, and where these begin, -1 where there is none; `words`: those from
        `at` on."""
        found = words == np.uint64(int.from_bytes(label[:8], "little"))
        begins = at + found.argmax(axis=1) + len(label)
        word = self.words[begins] ^ _ZEROS
        others = _others(word)
        count = _last_byte(others & (~others + np.uint64(1)))
        known = found.any(axis=1) & self.is_at(begins - len(label), label) & (count > 0)
        unused = np.where(known, (8 - count) << 3, 0).astype(np.uint64)
        return _decimal(word << unused), np.where(known, begins, -1)

    def ids(self, one: int) -> dict[bytes, int]:
        at = int(self.ends[self.first[one] + 1])
        return {name: int(value) for name, value in _IDS.findall(self.part, at, self.behind(one))}


def _others(word: _Words) -> _Words:
    """The highest bit of each byte that is more than 9."""
    high = np.uint64(0x8080808080808080)
    found: _Words = (((word & ~high) + np.uint64(0x7676767676767676)) | word) & high
    return found


def _last_byte(bits: _Words) -> Integers:
    """In which byte the highest bit lies, -1 where there is none."""
    found: Integers = (np.frexp(bits.astype(np.float64))[1].astype(np.int64) - 1) >> 3
    return found


def _decimal(word: _Words) -> Integers:
    """The number whose digits, 0 to 9 each, are the bytes of `word`, the first in the lowest."""
    word = word * np.uint64(10) + (word >> np.uint64(8))
    pairs = np.uint64(0x000000FF000000FF)
    word = (word & pairs) * np.uint64(100 + (1000000 << 32)) + ((word >> np.uint64(16)) & pairs) * np.uint64(
        1 + (10000 << 32)
    )
    return (word >> np.uint64(32)).astype(np.int64)


def _all(found: Mask) -> None:
    if not found.all():
        raise _UnlikeError
