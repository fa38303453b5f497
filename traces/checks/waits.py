"""Waits for nothing."""

from __future__ import annotations

from collections.abc import Iterator

from traces.checks.said import error
from traces.program import Communication, Finding, Trace, Wait


def waits(trace: Trace) -> Iterator[Finding]:
    """Waits for what is no operation, has not been started, or has been waited for."""
    for rank, program in trace.programs.items():
        waited: set[int] = set()
        for index, op in enumerate(program.ops):
            if not isinstance(op, Wait):
                continue
            is_started = 0 <= op.op < index and isinstance(program.ops[op.op], Communication)
            if not is_started:
                text = f"waits for operation {op.op}, which was not started"
                yield error("dangling-wait", text, rank=rank, op=index)
            elif op.op in waited:
                yield error("dangling-wait", f"waits for operation {op.op} a second time", rank=rank, op=index)
            waited.add(op.op)
