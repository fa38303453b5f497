"""A trace as a table, an operation a row: CSV, or Parquet with the same columns. Written only.

    rank, op            whose, and its place in that rank's program
    kind                compute, a collective's kind, send, recv, wait, step
    name                as recorded
    step                the number of the step that it is of; of a "step" row, the one that ends
    compute_ns          compute: how long, ns
    group, group_ranks, lane   the group's number, its ranks ("0 1 2"), its lane
    count, dtype, bytes elements, their type, and both multiplied: at this rank, as traces.program says
    root, peer, tag, reduce_op, send_splits, recv_splits   where the kind has one; splits are elements ("3 5")
    waits_for           wait: the `op` that it waits for
    start_ns, end_ns    when it was recorded, on the job's clock, ns

What doesn't apply, or was not recorded, is empty (in Parquet: null).
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING

from traces.errors import TraceError
from traces.program import Collective, Communication, Compute, DType, Group, Op, StepMark, Trace, Wait, op_bytes

if TYPE_CHECKING:
    import pandas

CSV, PARQUET = "csv", "parquet"

_NUMBER, _TEXT = "Int64", "string"
COLUMNS = {
    "rank": _NUMBER, "op": _NUMBER, "kind": _TEXT, "name": _TEXT, "step": _NUMBER, "compute_ns": _NUMBER,
    "group": _NUMBER, "group_ranks": _TEXT, "lane": _NUMBER, "count": _NUMBER, "dtype": _TEXT, "bytes": _NUMBER,
    "root": _NUMBER, "peer": _NUMBER, "tag": _NUMBER, "reduce_op": _TEXT, "send_splits": _TEXT, "recv_splits": _TEXT,
    "waits_for": _NUMBER, "start_ns": _NUMBER, "end_ns": _NUMBER,
}  # fmt: skip
_Row = dict[str, int | str]


def csv(trace: Trace) -> bytes:
    """The table as CSV (RFC 4180, with a line of names, in UTF-8). Raises TraceError for sizes beyond 64 bits."""
    return table(trace).to_csv(index=False).encode()


def parquet(trace: Trace) -> bytes:
    """The table as Parquet. Raises TraceError as `csv` does, ImportError where pyarrow is not installed."""
    held = io.BytesIO()
    table(trace).to_parquet(held, index=False, engine="pyarrow")
    return held.getvalue()


def table(trace: Trace) -> pandas.DataFrame:
    """The rows, by rank and in the program's order; columns as COLUMNS."""
    import pandas

    # As objects first: integers with gaps among them would be floats, which have 53 bits.
    return pandas.DataFrame(list(_rows(trace)), columns=list(COLUMNS), dtype=object).astype(COLUMNS)


def _rows(trace: Trace) -> Iterator[_Row]:
    groups = {group.id: group for group in trace.groups}
    for rank, program in sorted(trace.programs.items()):
        marks = iter([op.step for op in program.ops if isinstance(op, StepMark)])
        step = next(marks, None)
        for index, op in enumerate(program.ops):
            if isinstance(op, Communication) and op_bytes(op) >> 63:
                raise TraceError(f"{op_bytes(op)} bytes are more than 64 bits hold", place=f"rank {rank}, op {index}")
            row: _Row = {"rank": rank, "op": index, "kind": _kind(op), **_what(op, groups)}
            row |= {"step": step} if step is not None else {}
            row |= {"start_ns": op.origin.start_ns} if op.origin.start_ns >= 0 else {}
            yield row | ({"end_ns": op.origin.end_ns} if op.origin.end_ns >= 0 else {})
            if isinstance(op, StepMark):
                step = next(marks, None)


def _kind(op: Op) -> str:
    if isinstance(op, Collective):
        return op.kind.value
    return "step" if isinstance(op, StepMark) else type(op).__name__.lower()


def _what(op: Op, groups: dict[int, Group]) -> _Row:
    if isinstance(op, Compute):
        return {"compute_ns": op.ns} | _named(op)
    if isinstance(op, Wait):
        return {"waits_for": op.op}
    if isinstance(op, StepMark):
        return {}
    group = groups[op.group]
    row: _Row = {"group": op.group, "group_ranks": _listed(group.ranks), "lane": group.lane, "count": op.count}
    row |= {"dtype": DType(op.dtype).value, "bytes": op_bytes(op)} | _named(op)
    if not isinstance(op, Collective):
        return row | {"peer": op.peer, "tag": op.tag}
    row |= {"root": op.root} if op.root >= 0 else {}
    row |= {"reduce_op": op.reduce_op} if "reduce" in op.kind else {}
    splits = {"send_splits": op.send_splits, "recv_splits": op.recv_splits}
    return row | {name: _listed(parts) for name, parts in splits.items() if parts}


def _named(op: Communication | Compute) -> _Row:
    return {"name": op.name} if op.name else {}


def _listed(numbers: tuple[int, ...]) -> str:
    return " ".join(map(str, numbers))
