"""Operations as columns of numbers and back: the inside of a `.trace` file."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from traces.program import (
    Collective,
    CollectiveKind,
    Compute,
    DType,
    Op,
    Origin,
    Recv,
    Send,
    StepMark,
    Wait,
)

# `value` is Compute's ns, a call's count, Wait's op, StepMark's step; `peer` is a root or a peer; the two split columns
# are how many entries of `splits` the operation has.
COLUMNS: Mapping[str, str] = {
    "type": "<u1",
    "kind": "<u1",
    "group": "<i4",
    "value": "<i8",
    "dtype": "<u1",
    "peer": "<i4",
    "tag": "<i4",
    "reduce_op": "<u4",
    "name": "<u4",
    "send_splits": "<i4",
    "recv_splits": "<i4",
    "source": "<i4",
    "event": "<i8",
    "start": "<i8",
    "end": "<i8",
}
_TYPES = (Compute, Collective, Send, Recv, Wait, StepMark)
_KINDS = tuple(CollectiveKind)
_DTYPES = tuple(DType)
_ROW = struct.Struct("<BBiqBiiIIiiiqqq")  # COLUMNS, one behind the other
_SEND_SPLITS = list(COLUMNS).index("send_splits")
_PLAIN = struct.pack("<iiiqqq", 0, 0, -1, -1, -1, -1)  # how the row of an operation without splits or origin ends


class Strings:
    """A table of strings, each kept once; the empty string is entry 0."""

    def __init__(self) -> None:
        self._index = {"": 0}

    def add(self, text: str) -> int:
        """The entry of `text`."""
        return self._index.setdefault(text, len(self._index))

    @property
    def table(self) -> tuple[str, ...]:
        """All strings, by entry."""
        return tuple(self._index)


@dataclass(frozen=True, slots=True)
class Columns:
    """One rank's operations: `values[column][i]` belongs to operation i; `splits` is shape (all entries,)."""

    values: Mapping[str, npt.NDArray[Any]]
    splits: npt.NDArray[np.int64]

    @property
    def size(self) -> int:
        """Number of operations."""
        return len(self.values["type"])

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """All of it by member name."""
        return {**self.values, "splits": self.splits}


def pack(ops: Sequence[Op], strings: Strings) -> Columns:
    """Turn operations into columns, adding their strings to `strings`."""
    rows = [_row(op, strings) for op in ops]
    splits = [size for op in ops if isinstance(op, Collective) for size in (*op.send_splits, *op.recv_splits)]
    values = {name: np.array([row.get(name, 0) for row in rows], dtype=dtype) for name, dtype in COLUMNS.items()}
    return Columns(values, np.array(splits, dtype="<i8"))


def _row(op: Op, strings: Strings) -> dict[str, int]:
    at = op.origin
    row = {
        "type": _TYPES.index(type(op)), "source": at.source, "event": at.event, "start": at.start_ns, "end": at.end_ns,
    }  # fmt: skip
    match op:
        case Compute():
            return row | {"value": op.ns, "name": strings.add(op.name)}
        case Wait():
            return row | {"value": op.op}
        case StepMark():
            return row | {"value": op.step}
        case Collective():
            own = {
                "kind": _KINDS.index(op.kind),
                "peer": op.root,
                "reduce_op": strings.add(op.reduce_op),
                "send_splits": len(op.send_splits),
                "recv_splits": len(op.recv_splits),
            }
        case Send() | Recv():
            own = {"peer": op.peer, "tag": op.tag}
    called = {"group": op.group, "value": op.count, "dtype": _DTYPES.index(op.dtype), "name": strings.add(op.name)}
    return row | called | own


def unpack(columns: Columns, strings: Sequence[str], shared: dict[bytes, Op]) -> tuple[Op, ...]:
    """Turn columns back into operations. Raises IndexError or ValueError where a number points nowhere.

    `shared` holds what other ranks of the same file have: a job that nobody recorded says the same few operations over
    and over, and each is made once.
    """
    _refuse_what_points_nowhere(columns)
    rows = np.empty(columns.size, np.dtype(list(COLUMNS.items())))
    for name in COLUMNS:
        rows[name] = columns.values[name]
    splits = columns.splits.tolist()
    taken = 0
    ops: list[Op] = []
    for row in rows.view(f"V{_ROW.size}").tolist():
        op = shared.get(row)
        if op is None:
            cells = _ROW.unpack(row)
            sends, receives = cells[_SEND_SPLITS], cells[_SEND_SPLITS + 1]
            middle, end = taken + sends, taken + sends + receives
            op = _op(cells, strings, tuple(splits[taken:middle]), tuple(splits[middle:end]))
            taken = end
            if row.endswith(_PLAIN):
                shared[row] = op
        ops.append(op)
    return tuple(ops)


def _refuse_what_points_nowhere(columns: Columns) -> None:
    values = columns.values
    if any((values[name] < 0).any() for name in ("send_splits", "recv_splits")):
        raise ValueError("negative number of splits")
    if values["send_splits"].sum() + values["recv_splits"].sum() > len(columns.splits):
        raise ValueError("more splits than there are")
    waits = np.flatnonzero(values["type"] == _TYPES.index(Wait))
    targets = values["value"][waits]
    for wrong in np.flatnonzero((targets < 0) | (targets >= waits))[:1]:
        raise ValueError(f"operation {waits[wrong]} waits for operation {targets[wrong]}")


def _op(cells: Sequence[int], strings: Sequence[str], sends: tuple[int, ...], receives: tuple[int, ...]) -> Op:
    code, kind, group, value, dtype_code, peer, tag, reduce_op, name_entry, _, _, *recorded = cells
    name, dtype, origin = strings[name_entry], _DTYPES[dtype_code], Origin(*recorded)
    type_ = _TYPES[code]
    if type_ is Compute:
        return Compute(value, name, origin)
    if type_ is StepMark:
        return StepMark(value, origin)
    if type_ is Wait:
        return Wait(value, origin)
    if type_ is Collective:
        return Collective(_KINDS[kind], group, value, dtype, peer, strings[reduce_op], sends, receives, name, origin)
    return (Send if type_ is Send else Recv)(peer, value, dtype, tag, group, name, origin)
