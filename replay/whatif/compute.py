"""How long ranks compute: all of it by a ratio, or to a time a step."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction

from emulator.errors import NetworkError
from emulator.units import Duration
from replay.whatif.registry import what_if
from traces.errors import TraceError
from traces.program import Compute, Op, Program, Trace


@what_if("compute")
def compute(trace: Trace, value: str) -> tuple[Trace, str]:
    """`compute=0.1`: all compute takes a tenth. `compute=128ms`: a step's compute is 128 ms, in the mean over ranks and
    steps.

    Every Compute is scaled by the same ratio, so what differed between ranks and steps still does. Rounding to whole ns
    does not add up: a rank's total is exact to 1 ns.
    """
    recorded = mean_compute(trace)
    if re.fullmatch(r"[0-9]*\.?[0-9]+", value):
        ratio = Fraction(value)
    else:
        try:
            wanted = Duration.parse(value)
        except NetworkError as error:
            mend = "write a ratio (0.1) or a time (128ms)"
            raise TraceError(f"what-if 'compute={value}': {error}", mend=mend) from None
        if not recorded:
            raise TraceError(f"what-if 'compute={value}': the trace has no compute to scale", mend="give a ratio")
        ratio = wanted / recorded
    before, after = (f"{float(mean) / 1e6:.3f} ms" for mean in (recorded, recorded * ratio))
    change = f"{before} a step (mean over ranks) becomes {after}"
    statement = f"compute x {float(ratio):.6g}: {change}; messages stay as recorded"
    return scaled(trace, ratio), statement


def scaled(trace: Trace, ratio: Fraction) -> Trace:
    """The trace with every Compute `ratio` times as long; a rank's total is exact to 1 ns."""
    return replace(trace, programs={rank: _scale(program, ratio) for rank, program in trace.programs.items()})


def mean_compute(trace: Trace) -> Fraction:
    """Recorded compute of a step in ns: all of a rank's Compute over the number of steps, in the mean over ranks."""
    total = sum(op.ns for program in trace.programs.values() for op in program.ops if isinstance(op, Compute))
    return Fraction(total, max(1, trace.step_count) * max(1, len(trace.programs)))


def _scale(program: Program, ratio: Fraction) -> Program:
    ops: list[Op] = []
    before = after = 0
    for op in program.ops:
        if isinstance(op, Compute):
            before += op.ns
            due = before * ratio.numerator // ratio.denominator
            ops.append(replace(op, ns=due - after))
            after = due
        else:
            ops.append(op)
    return replace(program, ops=tuple(ops))
