"""How findings are worded."""

from __future__ import annotations

from collections.abc import Iterable

from traces.program import Collective, Communication, Finding, Trace


def error(code: str, message: str, *, rank: int = -1, op: int = -1) -> Finding:
    """A finding because of which replay would not be right."""
    return Finding(code, message, "error", rank, op, replayable=False)


def name(op: Communication) -> str:
    """What `op` is: all_reduce, send, recv."""
    return op.kind.value if isinstance(op, Collective) else type(op).__name__.lower()


def ranges(numbers: Iterable[int]) -> str:
    """[0, 1, 2, 5] as "0-2, 5"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def where(trace: Trace, finding: Finding) -> str:
    """The place of `finding`: "rank 3, op 12 (all_reduce; rank-3.json, event 107)"; what does not apply is left out."""
    place = [f"{what} {number}" for what, number in (("rank", finding.rank), ("op", finding.op)) if number >= 0]
    program = trace.programs.get(finding.rank)
    if program is None or not 0 <= finding.op < len(program.ops):
        return ", ".join(place)
    op = program.ops[finding.op]
    known = [name(op) if isinstance(op, Communication) else type(op).__name__.lower()]
    recorded = [trace.sources[op.origin.source].name] if 0 <= op.origin.source < len(trace.sources) else []
    if op.origin.event >= 0:
        recorded.append(f"event {op.origin.event}")
    if recorded:
        known.append(", ".join(recorded))
    return f"{', '.join(place)} ({'; '.join(known)})"
