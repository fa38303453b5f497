"""Operations as columns of numbers and back: the inside of a `.trace` file."""

from __future__ import annotations

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


def unpack(columns: Columns, strings: Sequence[str]) -> tuple[Op, ...]:
    """Turn columns back into operations. Raises IndexError or ValueError where a number points nowhere."""
    splits: list[int] = columns.splits.tolist()
    if any((columns.values[name] < 0).any() for name in ("send_splits", "recv_splits")):
        raise ValueError("negative number of splits")
    ops: list[Op] = []
    taken = 0
    lists = [values.tolist() for values in columns.values.values()]
    for row in zip(*lists, strict=True):
        cell = dict(zip(columns.values, row, strict=True))
        sends, receives = cell["send_splits"], cell["recv_splits"]
        if taken + sends + receives > len(splits):
            raise ValueError("more splits than there are")
        middle, end = taken + sends, taken + sends + receives
        ops.append(_op(cell, strings, tuple(splits[taken:middle]), tuple(splits[middle:end]), len(ops)))
        taken = end
    return tuple(ops)


def _op(
    cell: Mapping[str, int], strings: Sequence[str], sends: tuple[int, ...], receives: tuple[int, ...], index: int
) -> Op:
    origin = Origin(cell["source"], cell["event"], cell["start"], cell["end"])
    value, name, dtype = cell["value"], strings[cell["name"]], _DTYPES[cell["dtype"]]
    kind = _TYPES[cell["type"]]
    if kind is Compute:
        return Compute(value, name, origin)
    if kind is StepMark:
        return StepMark(value, origin)
    if kind is Wait:
        if not 0 <= value < index:
            raise ValueError(f"operation {index} waits for operation {value}")
        return Wait(value, origin)
    if kind is Collective:
        return Collective(
            kind=_KINDS[cell["kind"]],
            group=cell["group"],
            count=value,
            dtype=dtype,
            root=cell["peer"],
            reduce_op=strings[cell["reduce_op"]],
            send_splits=sends,
            recv_splits=receives,
            name=name,
            origin=origin,
        )
    if kind is Send:
        return Send(cell["peer"], value, dtype, cell["tag"], cell["group"], name, origin)
    return Recv(cell["peer"], value, dtype, cell["tag"], cell["group"], name, origin)
