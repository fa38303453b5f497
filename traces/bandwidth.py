"""What collectives and messages of a recording took, and the bandwidths that says, as nccl-tests define them. Pure.

Sizes and factors: nccl-tests, src/*.cu (`GetBw`) and doc/PERFORMANCE.md. A recorded start contains waiting for the others, so
time here runs from when the last rank began to when the last one ended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from traces.families import Family
from traces.meetings import Meeting
from traces.program import CollectiveKind, Recv, Send, Trace, op_bytes

_Begins = Mapping[int, Mapping[int, int]]  # rank -> index of the operation -> ns
_K = CollectiveKind
_PARTS = frozenset({_K.ALL_GATHER, _K.REDUCE_SCATTER, _K.GATHER, _K.SCATTER})  # `count` is one rank's part of the whole
_TO_OTHERS = _PARTS | {_K.ALL_TO_ALL}


@dataclass(frozen=True, slots=True)
class Operation:
    """One collective or message of the job: `bytes` as nccl-tests give its size; `time_ns` None where a time is lacking."""

    group: int
    kind: str
    dtype: str
    ranks: int
    bytes: float
    time_ns: int | None
    bus_factor: float


@dataclass(frozen=True, slots=True)
class OperationRow:
    """All operations of one kind, family of groups, type and size, or of all sizes for all_to_allv, `bytes` then being their mean.

    Bandwidths are in GB/s (1e9 bytes a second): all bytes by all time. None where nothing was timed.
    """

    group: str
    kind: str
    dtype: str
    ranks: int
    bytes: float
    count: int
    min_ns: int | None
    mean_ns: float | None
    max_ns: int | None
    algorithm_gb_s: float | None
    bus_gb_s: float | None


def bus_factor(kind: CollectiveKind, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth."""
    if kind is CollectiveKind.ALL_REDUCE:
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if kind in _TO_OTHERS else 1.0


def operations(trace: Trace, met: list[Meeting], began: _Begins) -> Iterator[Operation]:
    """Each collective and each message once, however many ranks took part."""
    size_of = {group.id: len(group.ranks) for group in trace.groups}
    for meeting in met:
        ops = {rank: op for rank, (_, op) in meeting.parts.items()}
        first = next(iter(ops.values()))
        ranks = size_of.get(meeting.group, len(ops))
        mean = sum(op_bytes(op) for op in ops.values()) / len(ops)
        starts = [began[rank].get(index) for rank, (index, _) in meeting.parts.items()]
        ends = [op.origin.end_ns for op in ops.values()]
        time = _time(starts, ends) if len(ops) == ranks else None  # who was not recorded may have been the last
        kind = "all_to_allv" if any(op.send_splits for op in ops.values()) else first.kind.value
        whole = mean * ranks if first.kind in _PARTS else mean
        yield Operation(
            meeting.group, kind, first.dtype.value, ranks, whole, time, bus_factor(first.kind, max(ranks, 1))
        )
    yield from _messages(trace, began)


def rows(kin: Sequence[Family], found: list[Operation]) -> tuple[OperationRow, ...]:
    """`found` put together, family by family of groups, largest first."""
    family_of = {group.id: (family.groups[0].id, family.name) for family in kin for group in family.groups}
    alike: dict[tuple[tuple[int, str], str, str, float], list[Operation]] = defaultdict(list)
    for op in found:
        size = -1 if op.kind == "all_to_allv" else op.bytes
        alike[family_of.get(op.group, (op.group, str(op.group))), op.kind, op.dtype, -size].append(op)
    return tuple(_row(key[0][1], mine) for key, mine in sorted(alike.items()))


def _row(group: str, alike: list[Operation]) -> OperationRow:
    one, timed = alike[0], [op for op in alike if op.time_ns is not None]
    times = [op.time_ns for op in timed if op.time_ns is not None]
    total = sum(times)
    algorithm = sum(op.bytes for op in timed) / total if total else None  # bytes a ns are GB/s
    return OperationRow(
        group=group,
        kind=one.kind,
        dtype=one.dtype,
        ranks=one.ranks,
        bytes=sum(op.bytes for op in alike) / len(alike),
        count=len(alike),
        min_ns=min(times, default=None),
        mean_ns=total / len(times) if times else None,
        max_ns=max(times, default=None),
        algorithm_gb_s=algorithm,
        bus_gb_s=algorithm * one.bus_factor if algorithm is not None else None,
    )


def _messages(trace: Trace, began: _Begins) -> Iterator[Operation]:
    """The n-th send with the n-th receive of the same peers, group and tag; a send without one has no time."""
    received: dict[tuple[int, int, int, int], list[tuple[int | None, int]]] = defaultdict(list)
    for rank, program in trace.programs.items():
        for index, op in enumerate(program.ops):
            if isinstance(op, Recv):
                received[op.peer, rank, op.group, op.tag].append((began[rank].get(index), op.origin.end_ns))
    taken: dict[tuple[int, int, int, int], int] = defaultdict(int)
    for rank, program in trace.programs.items():
        for index, op in enumerate(program.ops):
            if isinstance(op, Send):
                key = (rank, op.peer, op.group, op.tag)
                number, taken[key] = taken[key], taken[key] + 1
                there = received[key][number] if number < len(received[key]) else (None, -1)
                time = _time([began[rank].get(index), there[0]], [there[1]])
                yield Operation(op.group, "send", op.dtype.value, 2, op_bytes(op), time, 1.0)


def _time(starts: list[int | None], ends: list[int]) -> int | None:
    known = [start for start in starts if start is not None]
    return max(0, max(ends) - max(known)) if len(known) == len(starts) and min(ends) >= 0 else None
