"""How long ranks compute: all of it by a ratio, or to a time a step."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction

from replay.whatif.options import VALUE, Options
from replay.whatif.registry import Scenario, what_if
from traces.program import Compute, Op, Program, Trace


@what_if(
    "compute=RATIO|TIME",
    does="scales all compute by a ratio (0.1), or so that a step has this much (128ms), in the mean over ranks and steps",
    assumes="what differed between ranks and steps still does; messages stay as recorded",
)
def compute(scenario: Scenario, options: Options) -> tuple[Scenario, str]:
    """Every Compute is scaled by the same ratio. Rounding to whole ns does not add up: a rank's total is exact to 1 ns."""
    recorded = mean_compute(scenario.trace)
    if re.fullmatch(r"[0-9.]+%?", options.said[VALUE]):
        ratio = options.ratio(VALUE)
    else:
        wanted = options.duration(VALUE)
        if not recorded:
            raise options.error("the trace has no compute to scale", "give a ratio")
        ratio = wanted / recorded
    before, after = (f"{float(mean) / 1e6:.3f} ms" for mean in (recorded, recorded * ratio))
    change = f"{before} a step (mean over ranks) becomes {after}"
    statement = f"compute x {float(ratio):.6g}: {change}; messages stay as recorded"
    return scenario.on(scaled(scenario.trace, ratio)), statement


def scaled(trace: Trace, ratio: Fraction) -> Trace:
    """The trace with every Compute `ratio` times as long; a rank's total is exact to 1 ns."""
    return replace(trace, programs={rank: _scale(program, ratio) for rank, program in trace.programs.items()})


def mean_compute(trace: Trace) -> Fraction:
    """Recorded compute of a step in ns: all of a rank's Compute over the number of steps, in the mean over ranks."""
    total = sum(op.ns for program in trace.programs.values() for op in program.ops if isinstance(op, Compute))
    return Fraction(total, max(1, trace.step_count) * max(1, len(trace.workers)))


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
