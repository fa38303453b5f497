"""What is wrong with a trace as a whole: ranks, communication, steps, clocks."""

from __future__ import annotations

from collections.abc import Iterator

from traces.checks.said import error, ranges
from traces.program import Communication, Finding, StepMark, Trace
from traces.steps import recorded_step_ns

_CLOCK_SHARE = 100  # a residual of more than this part of a step shows in the compute between operations


def missing_ranks(trace: Trace) -> Iterator[Finding]:
    """Ranks of the job that have no program."""
    missing = [rank for rank in range(trace.world_size) if rank not in trace.programs]
    if missing:
        text = f"not recorded: rank {ranges(missing)} of a job of {trace.world_size} ranks"
        yield error("missing-rank", text, rank=missing[0])


def no_communication(trace: Trace) -> Iterator[Finding]:
    """A trace in which no rank communicates."""
    if not any(isinstance(op, Communication) for program in trace.programs.values() for op in program.ops):
        yield error("no-communication", "no rank communicates: there is nothing to replay")


def steps(trace: Trace) -> Iterator[Finding]:
    """Ranks that mark other steps than the first one does."""
    marks = {rank: [op.step for op in p.ops if isinstance(op, StepMark)] for rank, p in trace.programs.items()}
    first, expected = next(iter(marks.items()), (-1, []))
    for rank, marked in marks.items():
        if marked != expected:
            yield error("steps-differ", f"rank {rank} has steps {marked}, rank {first} has {expected}", rank=rank)


def clocks(trace: Trace) -> Iterator[Finding]:
    """The rank whose collectives end farthest from the others', if by more than a hundredth of the shortest step.

    Ranks that are known to be of one host have one clock, and are left alone.
    """
    steps_ns = recorded_step_ns(trace)
    clocks = {trace.hosts.get(rank, f"rank {rank}") for rank in trace.programs}
    if not steps_ns or not trace.clock_residual_ns or len(clocks) == 1:
        return
    rank, residual = max(trace.clock_residual_ns.items(), key=lambda pair: pair[1])
    if residual * _CLOCK_SHARE > min(steps_ns):
        apart, step = f"{residual / 1e6:.3f} ms", f"{min(steps_ns) / 1e6:.3f} ms"
        text = f"after alignment, ends of one collective are up to {apart} apart, of a step of {step}; compute is off by as much"
        yield Finding("clock-residual", text, "warning", rank)
