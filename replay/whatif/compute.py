"""How long ranks compute: a ratio or a time for all or some of them, stragglers, jitter."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from fractions import Fraction
from random import Random

from emulator import draws
from replay.whatif.options import VALUE, Options
from replay.whatif.registry import Scenario, what_if
from traces.program import Compute, Op, Program, StepMark, Trace

_RANKS = "rank=RANKS"
_FINE = 10**9  # parts of 1 to which a drawn factor is kept


@what_if(
    f"compute=RATIO|TIME,{_RANKS}",
    does="scales all compute, or that of some ranks, by a ratio (0.1), or so that a step has this much (128ms) in the mean over "
    "ranks and steps",
    assumes="what differed between ranks and steps still does; messages stay as recorded",
)
def compute(scenario: Scenario, options: Options) -> tuple[Scenario, str]:
    """Every Compute is scaled by the same ratio. Rounding to whole ns does not add up: a rank's total is exact to 1 ns."""
    trace = scenario.trace
    ranks = _ranks(trace, options)
    recorded = mean_compute(trace, ranks)
    if re.fullmatch(r"[0-9.]+%?", options.said[VALUE]):
        ratio = options.ratio(VALUE)
    else:
        wanted = options.duration(VALUE)
        if not recorded:
            raise options.error("the trace has no compute to scale", "give a ratio")
        ratio = wanted / recorded
    before, after = (f"{float(mean) / 1e6:.3f} ms" for mean in (recorded, recorded * ratio))
    change = f"{before} a step (mean over ranks) becomes {after}"
    of = f" of ranks {options.said['rank']}" if "rank" in options else ""
    statement = f"compute{of} x {float(ratio):.6g}: {change}; messages stay as recorded"
    return scenario.on(_rescaled(trace, lambda rank, step: ratio if rank in ranks else Fraction(1))), statement


@what_if(
    f"straggler=FACTOR,{_RANKS},chance=RATIO,seed=N",
    does="ranks compute FACTOR times as long: those named, always; or with chance=10% any rank in any step, drawn anew each time",
    assumes="a rank that is slow is slow for a whole step, and for itself alone",
)
def straggler(scenario: Scenario, options: Options) -> tuple[Scenario, str]:
    """Slow ranks."""
    trace, factor = scenario.trace, options.ratio(VALUE)
    if ("rank" in options) == ("chance" in options):
        raise options.error("who is slow is not said", "write rank=0 for one rank, or chance=10% for any in any step")
    if "rank" in options:
        ranks = _ranks(trace, options)
        changed = _rescaled(trace, lambda rank, step: factor if rank in ranks else Fraction(1))
        return scenario.on(changed), f"straggler: ranks {options.said['rank']} compute {float(factor):g} times as long"
    chance, seed = options.ratio("chance"), options.whole("seed", 0, 2**32, 1)
    if chance > 1:
        raise options.error("a chance above 1", "write chance=10%, say")
    slow = {key: Random(f"{seed} {key}").random() < chance for key in _steps_of(trace)}
    changed = _rescaled(trace, lambda rank, step: factor if slow.get((rank, step)) else Fraction(1))
    said = (
        f"straggler: {sum(slow.values())} of {len(slow)} steps of ranks compute {float(factor):g} times as long, drawn with chance "
        f"{float(chance):g} and seed {seed}"
    )
    return scenario.on(changed), said


@what_if(
    "jitter=RATIO,seed=N",
    does="each rank's compute of each step takes a factor that is drawn: lognormal, mean 1, and this deviation of its logarithm",
    assumes="factors are independent; what was recorded has its own jitter, which stays",
)
def jitter(scenario: Scenario, options: Options) -> tuple[Scenario, str]:
    """Compute that varies."""
    sigma, seed = options.ratio(VALUE), options.whole("seed", 0, 2**32, 1)
    if sigma > 2:
        raise options.error("a deviation above 2 is no jitter", "write 5%, say")
    factors = {
        key: Fraction(draws.lognormal(Random(f"{seed} {key}"), float(sigma), _FINE), _FINE)
        for key in _steps_of(scenario.trace)
    }
    changed = _rescaled(scenario.trace, lambda rank, step: factors.get((rank, step), Fraction(1)))
    lowest, highest = float(min(factors.values())), float(max(factors.values()))
    said = f"jitter: compute x {lowest:.4f} to {highest:.4f}, lognormal with sigma {float(sigma):g}, seed {seed}"
    return scenario.on(changed), said


def scaled(trace: Trace, ratio: Fraction) -> Trace:
    """The trace with every Compute `ratio` times as long; a rank's total is exact to 1 ns."""
    return _rescaled(trace, lambda rank, step: ratio)


def mean_compute(trace: Trace, ranks: Collection[int] | None = None) -> Fraction:
    """Recorded compute of a step in ns: all of a rank's Compute over the number of steps, in the mean over ranks."""
    programs = [trace.programs[rank] for rank in trace.workers if ranks is None or rank in ranks]
    total = sum(op.ns for program in programs for op in program.ops if isinstance(op, Compute))
    return Fraction(total, max(1, trace.step_count) * max(1, len(programs)))


def _ranks(trace: Trace, options: Options) -> Collection[int]:
    """The ranks that the options name; all where they name none."""
    return set(options.numbers("rank", trace.world_size)) if "rank" in options else trace.programs.keys()


def _steps_of(trace: Trace) -> list[tuple[int, int]]:
    return [(rank, step) for rank in sorted(trace.programs) for step in range(trace.step_count)]


def _rescaled(trace: Trace, ratio: Callable[[int, int], Fraction]) -> Trace:
    """The trace with each rank's compute of each step `ratio(rank, step)` times as long."""
    return replace(
        trace,
        programs={
            rank: _scale(program, [ratio(rank, step) for step in range(trace.step_count + 1)])
            for rank, program in trace.programs.items()
        },
    )


def _scale(program: Program, ratios: Sequence[Fraction]) -> Program:
    """By the ratio of each step, and of what lies behind the last."""
    parts = math.lcm(*(ratio.denominator for ratio in ratios))
    ops: list[Op] = []
    step = due = after = 0
    for op in program.ops:
        if isinstance(op, Compute):
            due += op.ns * int(ratios[step] * parts)
            ops.append(replace(op, ns=due // parts - after))
            after = due // parts
        else:
            step += isinstance(op, StepMark)
            ops.append(op)
    return replace(program, ops=tuple(ops))
