"""Recordings that lost what overlaps: where the async flag was not recorded, tools take all for synchronous, or nothing.

Both happened: operations taken as asynchronous ran out of memory (PyTorch pull request 169416), and where async was told from
the waits that were left, overlap was lost (torchcomms issue 333).
"""

from __future__ import annotations

from collections.abc import Iterator

from traces.checks.said import name, ranges
from traces.program import Communication, Compute, Finding, Program, Trace, Wait, op_bytes

_DEVICE_BYTES = 80_000_000_000  # what an A100 or H100 has (NVIDIA's data sheets)
_FEW = 10  # operations that may well all be synchronous


def in_flight(trace: Trace) -> Iterator[Finding]:
    """Ranks that at some time have more in flight than a device's memory holds."""
    for rank, program in trace.programs.items():
        most, at = _most_in_flight(program)
        if most > _DEVICE_BYTES:
            op = program.ops[at]
            assert isinstance(op, Communication)
            text = (
                f"{most / 1e9:,.0f} GB are in flight at this {name(op)}, more than a device of {_DEVICE_BYTES // 10**9} GB holds: "
                "waits were lost, or operations that were synchronous were taken to be asynchronous"
            )
            yield Finding("in-flight", text, "warning", rank, at)


def _most_in_flight(program: Program) -> tuple[int, int]:
    """The most bytes that were started and not waited for, and the operation at which they were."""
    open_bytes: dict[int, int] = {}
    now = most = 0
    at = -1
    for index, op in enumerate(program.ops):
        if isinstance(op, Communication):
            open_bytes[index] = op_bytes(op)
            now += open_bytes[index]
            if now > most:
                most, at = now, index
        elif isinstance(op, Wait):
            now -= open_bytes.pop(op.op, 0)
    return most, at


def all_synchronous(trace: Trace) -> Iterator[Finding]:
    """Ranks that compute and wait for each operation at once, where the waits of a file's operations have no times."""
    ranks = [rank for rank, program in trace.programs.items() if _is_synchronous(program)]
    if ranks and trace.sources:
        text = (
            f"rank {ranges(ranks)}: each operation is waited for as soon as it is started, and no wait was recorded with its "
            "time: if the job overlaps communication with compute, that was lost"
        )
        yield Finding("all-synchronous", text, "info", ranks[0])


def _is_synchronous(program: Program) -> bool:
    started = [index for index, op in enumerate(program.ops) if isinstance(op, Communication)]
    waits = [op for op in program.ops if isinstance(op, Wait)]
    behind = {index + 1 for index in started}
    return (
        len(started) > _FEW
        and any(isinstance(op, Compute) for op in program.ops)
        and all(wait.origin.start_ns < 0 for wait in waits)
        and all(at < len(program.ops) and program.ops[at] == Wait(at - 1, program.ops[at].origin) for at in behind)
    )
