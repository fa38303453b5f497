"""Real tensors for `--verify`: known inputs, and every element of every result compared.

Inputs are small whole numbers, and few enough of them differ from the neutral one that every partial result is exact in
the operation's dtype: then the order of reduction can't matter, and the comparison is for equality. numpy has no
bfloat16 or float8; they travel as the bits they have on the wire (float8 as E4M3: OCP "8-bit floating point", 2023) and
are reduced as float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.errors import BedError
from replay.collectives.schedule import Copy, Recv, Send
from replay.plan import RankPlan, Transfer
from traces.errors import TraceError
from traces.program import Collective, CollectiveKind, DType

Array = NDArray[Any]

_REDUCE: dict[str, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "avg": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "product": np.multiply,
}
"""avg is a sum that is divided when the operation ends, as gloo's users do it."""

_EXACT = {DType.FLOAT8: 16, DType.BFLOAT16: 256, DType.FLOAT16: 2048, DType.BOOL: 1}
"""The largest n such that the dtype holds all of 0..n; for the others any sum that fits is exact, or wraps as it
should.
"""

_PERIOD = 4099
"""Inputs repeat after so many elements. It is prime, so a segment in the wrong place meets other values."""

_REDUCING = frozenset({CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE, CollectiveKind.REDUCE_SCATTER})


class Verified:
    """Payload of one rank with real memory. `begin` fills it; `end` raises BedError at the first element that is wrong.

    TraceError for a reduction that is not known. `checked` counts the elements compared.
    """

    def __init__(self, plan: RankPlan) -> None:
        self.checked = 0
        self._rank = plan.rank
        self._held: dict[int, tuple[Transfer, Array]] = {}
        for index, op in enumerate(plan.ops):
            if isinstance(op, Transfer) and _reduction(op) not in (None, *_REDUCE):
                raise TraceError(
                    f"can't verify reduction {_reduction(op)!r}",
                    place=f"rank {plan.rank}, op {index}",
                    mend=f"known: {', '.join(_REDUCE)}",
                )

    def begin(self, op: int, transfer: Transfer) -> None:
        buffer = _format(transfer.op.dtype).encode(np.zeros(transfer.schedule.elements))
        for offset, values in _inputs(transfer, transfer.call.me):
            buffer[offset : offset + len(values)] = values
        self._held[op] = transfer, buffer

    def outgoing(self, op: int, task: Send) -> memoryview:
        return self._bytes(op, task.offset, task.count)

    def incoming(self, op: int, task: Recv) -> memoryview:
        if task.reduce:
            return memoryview(bytearray(task.count * self._held[op][1].itemsize))
        return self._bytes(op, task.offset, task.count)

    def arrived(self, op: int, task: Recv, data: memoryview | None) -> None:
        if task.reduce:
            assert data is not None
            transfer, buffer = self._held[op]
            here = slice(task.offset, task.offset + task.count)
            buffer[here] = _combine(transfer, [buffer[here], np.frombuffer(data, buffer.dtype)])

    def copy(self, op: int, task: Copy) -> None:
        _, buffer = self._held[op]
        buffer[task.target : task.target + task.count] = buffer[task.offset : task.offset + task.count]

    def end(self, op: int) -> None:
        transfer, buffer = self._held.pop(op)
        for offset, expected in _outputs(transfer):
            got = buffer[offset : offset + len(expected)]
            if transfer.op.dtype is not DType.BOOL and _reduction(transfer) == "avg":
                got, expected = (_divide(transfer, part) for part in (got, expected))
            wrong = np.flatnonzero(got != expected)
            self.checked += len(expected)
            if len(wrong):
                at = int(wrong[0])
                raise BedError(
                    f"rank {self._rank}, op {op} {transfer.label}: element {offset + at} of the work buffer is "
                    f"{got[at]}, expected {expected[at]} ({len(wrong)} of {len(expected)} are wrong)"
                )

    def _bytes(self, op: int, offset: int, count: int) -> memoryview:
        view = self._held[op][1][offset : offset + count]
        return view.view(np.uint8).data


@dataclass(frozen=True, slots=True)
class _Format:
    """How a dtype lies in memory, and how its values get there and back; `decode` gives what numpy can reduce."""

    encode: Callable[[Array], Array]
    decode: Callable[[Array], Array]


@cache
def _format(dtype: DType) -> _Format:
    if dtype is DType.BFLOAT16:
        return _Format(
            encode=lambda values: (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16),
            decode=lambda bits: (bits.astype(np.uint32) << 16).view(np.float32),
        )
    if dtype is DType.FLOAT8:
        table = _e4m3()

        def encode(values: Array) -> Array:
            return (np.searchsorted(table, values.astype(np.float32), side="right") - 1).astype(np.uint8)

        return _Format(encode=encode, decode=lambda bits: table[bits])
    real = np.dtype(dtype.value)
    return _Format(encode=lambda values: values.astype(real), decode=lambda values: values)


def _e4m3() -> Array:
    """Values of the 127 finite E4M3 numbers that are not negative, by their bits; ascending."""
    bits = np.arange(127)
    exponent, mantissa = bits >> 3, bits & 7
    normal = np.ldexp(1 + mantissa / 8, exponent - 7)
    return np.where(exponent == 0, np.ldexp(mantissa / 8, -6), normal).astype(np.float32)


def _reduction(transfer: Transfer) -> str | None:
    """How `transfer` reduces; None where it only moves data."""
    return transfer.op.reduce_op if isinstance(transfer.op, Collective) and transfer.op.kind in _REDUCING else None


def _divide(transfer: Transfer, values: Array) -> Array:
    form = _format(transfer.op.dtype)
    return form.encode(form.decode(values) / len(transfer.ranks))


def _combine(transfer: Transfer, parts: list[Array]) -> Array:
    how = _reduction(transfer)
    assert how is not None
    form = _format(transfer.op.dtype)
    return form.encode(reduce(_REDUCE[how], [form.decode(part) for part in parts]))


def _pattern(transfer: Transfer, source: int, target: int = 0) -> Array:
    """What group index `source` gives, over and over: `_PERIOD` elements. In an all-to-all each `target` gets another.

    For a sum at most `exact` ranks give 1 at an element of a narrow float, else each gives up to exact / N; for a
    product at most six give 2.
    """
    call, dtype = transfer.call, transfer.op.dtype
    place = np.arange(_PERIOD)
    mixed = place * 7 + (place >> 3) + source * 13 + target * 29 + transfer.number * 5
    turn = place + source
    exact = _EXACT.get(dtype, 1 << 10)
    how = _reduction(transfer)
    if how == "product":
        numbers = 1 + (turn % -(-call.size // 6) == 0) * (mixed & 1)
    elif how in ("sum", "avg"):
        share = exact // call.size
        numbers = mixed % (share + 1) if share else (turn % -(-call.size // exact) == 0) * (mixed & 1)
    else:
        numbers = mixed % min(exact + 1, 128)
    return _format(dtype).encode(numbers)


def _reduced(transfer: Transfer) -> Array:
    """The patterns of every rank, reduced."""
    return _combine(transfer, [_pattern(transfer, source) for source in range(transfer.call.size)])


def _lay(pattern: Array, count: int, first: int = 0) -> Array:
    """`count` elements of the endless repetition of `pattern`, from element `first`."""
    return np.resize(np.roll(pattern, -first), count)


def _inputs(transfer: Transfer, me: int) -> Iterator[tuple[int, Array]]:
    """(offset, values) of what rank index `me` puts into its work buffer, as its algorithm lays it out."""
    call, kind = transfer.call, transfer.call.kind
    own = _pattern(transfer, me)
    if kind in (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE):
        yield 0, _lay(own, call.count)
    elif kind == CollectiveKind.REDUCE_SCATTER:
        yield 0, _lay(own, call.count * call.size)
    elif kind in (CollectiveKind.ALL_GATHER, CollectiveKind.GATHER):
        yield me * call.count, _lay(own, call.count)
    elif kind == CollectiveKind.ALL_TO_ALL:
        for peer, offset, count in _cut(call.send_splits):
            yield offset, _lay(_pattern(transfer, me, peer), count)
    elif kind == CollectiveKind.SCATTER:
        if me == call.root:
            yield 0, _lay(own, call.count * call.size)
    elif me == max(call.root, 0):
        yield 0, _lay(own, call.count)


def _outputs(transfer: Transfer) -> Iterator[tuple[int, Array]]:
    """(offset, values) of what must be in this rank's work buffer when the operation has ended."""
    call, kind, me = transfer.call, transfer.call.kind, transfer.call.me
    if kind == CollectiveKind.ALL_REDUCE or (kind == CollectiveKind.REDUCE and me == call.root):
        yield 0, _lay(_reduced(transfer), call.count)
    elif kind == CollectiveKind.REDUCE_SCATTER:
        yield me * call.count, _lay(_reduced(transfer), call.count, me * call.count)
    elif kind == CollectiveKind.ALL_GATHER or (kind == CollectiveKind.GATHER and me == call.root):
        for source in range(call.size):
            yield source * call.count, _lay(_pattern(transfer, source), call.count)
    elif kind == CollectiveKind.ALL_TO_ALL:
        for peer, offset, count in _cut(call.recv_splits):
            yield sum(call.send_splits) + offset, _lay(_pattern(transfer, peer, me), count)
    elif kind == CollectiveKind.SCATTER:
        yield me * call.count, _lay(_pattern(transfer, call.root), call.count, me * call.count)
    elif kind not in (CollectiveKind.REDUCE, CollectiveKind.GATHER):
        yield 0, _lay(_pattern(transfer, max(call.root, 0)), call.count)


def _cut(splits: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """(peer, offset, count) of each split."""
    offset = 0
    for peer, count in enumerate(splits):
        yield peer, offset, count
        offset += count
