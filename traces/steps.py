"""Steps of a trace: cutting some out, and how long each took when it was recorded."""

from __future__ import annotations

from dataclasses import replace

from traces.errors import TraceError
from traces.program import Finding, Op, Program, StepMark, Trace, Wait


def recorded_step_ns(trace: Trace) -> tuple[int, ...]:
    """Each step's recorded time in ns: from the last rank passing the mark before to the last rank passing its own.

    The first step is counted from the first operation's start. Empty where the recording has no times.
    """
    marks = [[op.origin.end_ns for op in p.ops if isinstance(op, StepMark)] for p in trace.programs.values()]
    if not (marks and all(marks)) or any(moment < 0 for mine in marks for moment in mine):
        return ()
    passed = [max(moments) for moments in zip(*marks, strict=False)]
    starts = [op.origin.start_ns for p in trace.programs.values() for op in p.ops[:1]]
    if min(starts, default=-1) < 0:
        return ()
    return tuple(after - before for before, after in zip([min(starts), *passed], passed, strict=False))


def select(trace: Trace, first: int, last: int) -> Trace:
    """The trace with only its steps `first` up to but not including `last`, counted from 0. Raises TraceError.

    An operation from before the cut loses its wait; one that is waited for after it is waited for at its end. Both are
    findings.
    """
    if not 0 <= first < last <= trace.step_count:
        raise TraceError(f"no steps {first}:{last}", mend=f"the trace has steps 0:{trace.step_count}")
    programs: dict[int, Program] = {}
    findings = list(trace.findings)
    for rank, program in trace.programs.items():
        programs[rank], said = _cut(program, first, last)
        findings += said
    kept = [finding if finding.op < 0 else replace(finding, op=-1) for finding in findings]
    return replace(trace, programs=programs, step_count=last - first, findings=tuple(kept))


def _cut(program: Program, first: int, last: int) -> tuple[Program, list[Finding]]:
    marks = [index for index, op in enumerate(program.ops) if isinstance(op, StepMark)]
    begin, end = (marks[first - 1] + 1 if first else 0), marks[last - 1]
    waited = {op.op for op in program.ops[begin:end] if isinstance(op, Wait)}
    ops: list[Op] = []
    new_index: dict[int, int] = {}
    dangling = 0
    for index in range(begin, end):
        op = program.ops[index]
        if isinstance(op, Wait):
            if op.op < begin:
                dangling += 1
                continue
            op = replace(op, op=new_index[op.op])
        new_index[index] = len(ops)
        ops.append(op)
    waits_later = [
        op.op for op in program.ops[end:] if isinstance(op, Wait) and begin <= op.op < end and op.op not in waited
    ]
    ops += [Wait(new_index[target]) for target in waits_later]
    ops.append(program.ops[end])
    said = []
    if dangling:
        text = f"{dangling} waits are for operations from before step {first}; left out"
        said.append(Finding("dangling-wait", text, rank=program.rank))
    if waits_later:
        text = f"{len(waits_later)} operations are waited for after step {last - 1}; their waits were put at its end"
        said.append(Finding("wait-after-window", text, rank=program.rank))
    return Program(program.rank, tuple(ops)), said
