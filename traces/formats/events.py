"""A chrome trace's events, a part of the file at a time: how long it is does not matter for the memory.

Between two events a file has `},{` with blanks, but nested objects and strings may have that too. So a part is cut at such
a place and decoded; where that fails because the part ends too early, another place is tried.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

import msgspec

PART_BYTES = 4 << 20
MAX_EVENT_BYTES = 64 << 20
_OPENS = re.compile(rb'(?<!\\)"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb"\}\s*,\s*\{")
_CLOSES = re.compile(rb"\A\[\s*\]|\}\s*,?\s*\]")
_BYTE = re.compile(r"\(byte (\d+)\)")
_TRIES = 8
_NEAR = 1 << 16

# Kineto's own way to end an event and begin one.
_USUAL = b"\n  },\n  {\n"
_USUAL_END = len(b"\n  }")
BEHIND = 256
"""Bytes that `quick` may count on behind the first `size` of its text."""
_THREADS = 2

_Event = TypeVar("_Event")
_Quick = TypeVar("_Quick")


@dataclass
class Parts(Generic[_Event, _Quick]):
    """Iterating gives lists of events, or what `quick` makes of the first bytes of a text instead, unless that is None.

    After that, `around` is the file's text without them, and `is_cut` says whether the file ends in the middle, with
    `around` closed where it is. `quick` runs in threads of its own, on parts ahead of the one that is given.

    Raises msgspec.DecodeError; `place` is then the byte of the file at which the part began.
    """

    blocks: Iterable[bytes]
    decoder: msgspec.json.Decoder[list[_Event]]
    quick: Callable[[bytes, int], _Quick | None]
    around: bytes = b""
    is_cut: bool = False
    place: int = 0
    _held: bytes = field(default=b"", init=False)

    def __iter__(self) -> Iterator[list[_Event] | _Quick]:
        blocks = _sliced(self.blocks)
        head = self._head(blocks)
        if head is None:
            return
        yield from self._usual_parts(blocks)
        for more in blocks:
            self._held += more
            while len(self._held) >= PART_BYTES and (found := self._part()) is not None:
                yield found
            if len(self._held) > MAX_EVENT_BYTES:
                raise msgspec.DecodeError(f"an event of more than {MAX_EVENT_BYTES} bytes")
        yield from self._last(head)

    def _head(self, blocks: Iterator[bytes]) -> bytes | None:
        """The text up to the list of events, which it opens; None where there is no such list: then all is `around`."""
        for block in blocks:
            self._held += block
            if (opens := _OPENS.search(self._held)) is not None:
                head, self._held, self.place = self._held[: opens.end()], self._held[opens.end() :], opens.end()
                return head
            if len(self._held) > MAX_EVENT_BYTES:
                raise msgspec.DecodeError(f"no traceEvents in the first {MAX_EVENT_BYTES} bytes")
        self.around = self._held
        return None

    def _usual_parts(self, blocks: Iterator[bytes]) -> Iterator[list[_Event] | _Quick]:
        """Parts that end where Kineto ends an event, as far as they can be read; what can't be is held again."""
        ahead: deque[tuple[bytes, int, Future[_Quick | None]]] = deque()
        with ThreadPoolExecutor(_THREADS) as readers:
            is_more = True
            while ahead or is_more:
                if is_more and len(ahead) < _THREADS:
                    part = self._usual_part() if self._hold_part(blocks) else None
                    if part is None:
                        is_more = False
                    else:
                        ahead.append((*part, readers.submit(self.quick, *part)))
                    continue
                text, end, reading = ahead.popleft()
                if (found := reading.result() or self._decoded(text[:end])) is None:
                    self._held = b"".join([text[: end + 1], *(text[: end + 1] for text, end, _ in ahead), self._held])
                    return
                self.place += end + 1
                del text, reading
                yield found
        held = self._held
        if (part := self._usual_part()) is None:
            return
        if (quick := self.quick(*part)) is None:
            self._held = held
            return
        self.place += part[1] + 1
        yield quick

    def _hold_part(self, blocks: Iterator[bytes]) -> bool:
        """Hold PART_BYTES or more; whether there was so much."""
        pieces, size = [self._held], len(self._held)
        while size < PART_BYTES and (more := next(blocks, b"")):
            pieces.append(more)
            size += len(more)
        self._held = b"".join(pieces)
        return size >= PART_BYTES

    def _usual_part(self) -> tuple[bytes, int] | None:
        """What is held, and how much of it is whole events, if they end as usual; then only what is behind is held."""
        text = self._held
        end = text.rfind(_USUAL, 0, max(0, len(text) - BEHIND)) + _USUAL_END
        if end < _USUAL_END:
            return None
        self._held = text[end + 1 :]
        return text, end

    def _decoded(self, events: bytes) -> list[_Event] | None:
        try:
            return self.decoder.decode(b"[" + events + b"]")
        except msgspec.DecodeError:
            return None  # cut inside something, or behind the list; what is really wrong is seen at the end

    def _part(self) -> list[_Event] | None:
        """The events of what is held but the last of them, which stay held; None where more has to come first."""
        near = max(0, len(self._held) - _NEAR)
        ends = [match.start() + 1 for match in _BETWEEN.finditer(self._held, near)]
        ends = ends or [match.start() + 1 for match in _BETWEEN.finditer(self._held)]
        for end in reversed(ends[-_TRIES:]):
            if (found := self._decoded(self._held[:end])) is None:
                continue
            self._take(self._held.index(b",", end) + 1)
            return found
        return None

    def _last(self, head: bytes) -> Iterator[list[_Event]]:
        """What is left at the end of the file: some events, the list's end, and what stands behind it."""
        failed: msgspec.DecodeError | None = None
        for closes in islice(_CLOSES.finditer(b"[" + self._held), 1 << 10):
            end = closes.start() if closes.group().startswith(b"}") else -1
            try:
                found = self.decoder.decode(b"[" + self._held[: max(end, 0)] + b"]")
            except msgspec.DecodeError as error:
                failed = error
                if not _is_at_end(error, end):
                    break
                continue
            self._take(closes.end() - 1)
            self.around = head + b"]" + self._held
            yield found
            return
        yield from self._cut(head, failed)

    def _cut(self, head: bytes, failed: msgspec.DecodeError | None) -> Iterator[list[_Event]]:
        """The whole events of a file that ends in the middle of its list."""
        if failed is not None and not _is_at_end(failed, len(self._held)):
            raise failed
        self.is_cut = True
        self.around = head + b"]}"
        found = self._part()
        yield found or []

    def _take(self, size: int) -> None:
        self.place += size
        self._held = self._held[size:]


def _sliced(blocks: Iterable[bytes]) -> Iterator[bytes]:
    for block in blocks:
        for at in range(0, len(block), PART_BYTES):
            yield block[at : at + PART_BYTES]


def _is_at_end(error: msgspec.DecodeError, end: int) -> bool:
    """Whether the text was well up to where it was cut (`end` bytes behind the bracket put before it)."""
    byte = _BYTE.search(str(error))
    return "truncated" in str(error) or (byte is not None and int(byte.group(1)) >= end + 1)
