"""Operations that move nothing, and numbers below zero."""

from __future__ import annotations

from collections.abc import Iterator

from traces.checks.said import error, name
from traces.program import Collective, CollectiveKind, Communication, Compute, Finding, Trace


def sizes(trace: Trace) -> Iterator[Finding]:
    """Operations of 0 bytes, once a rank; a trace in which all are so has lost its sizes (Chakra of before 2023)."""
    moving = False
    empty: dict[int, list[int]] = {}
    for rank, program in trace.programs.items():
        for index, op in enumerate(program.ops):
            if isinstance(op, Compute):
                if op.ns < 0:
                    yield error("negative-number", f"computes for {op.ns} ns", rank=rank, op=index)
            elif isinstance(op, Communication) and not _is_barrier(op):
                numbers = (op.count, *_splits(op))
                if min(numbers) < 0:
                    yield error("negative-number", f"{name(op)} of {min(numbers)} elements", rank=rank, op=index)
                moving = moving or any(numbers)
                if not any(numbers):
                    empty.setdefault(rank, []).append(index)
    for rank, indices in empty.items():
        text = f"{len(indices)} operations of 0 bytes: they move nothing"
        first = trace.programs[rank].ops[indices[0]]
        assert isinstance(first, Communication)
        if moving:
            yield Finding("zero-bytes", f"{text}; the first: {name(first)}", "warning", rank, indices[0])
        else:
            yield error("no-sizes", f"{text}, so sizes were not recorded", rank=rank, op=indices[0])


def _is_barrier(op: Communication) -> bool:
    return isinstance(op, Collective) and op.kind is CollectiveKind.BARRIER


def _splits(op: Communication) -> tuple[int, ...]:
    return (*op.send_splits, *op.recv_splits) if isinstance(op, Collective) else ()
