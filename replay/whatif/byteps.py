"""BytePS: machines without accelerators help, and every machine's wire is used in full."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from emulator.units import Size
from replay.sending import Sending
from replay.whatif.options import VALUE, Options
from replay.whatif.registry import Scenario, what_if
from replay.whatif.servers import Architecture, gradient_groups, partition, serve
from traces.program import Seat, Serving

_CREDIT = 4
"""Partitions that the kernel is given at a time by default; BYTEPS_SCHEDULING_CREDIT counts bytes too."""


@what_if(
    "byteps=SPARE,partition=SIZE,credit=SIZE,along=GROUP",
    does="gradients are summed by a service on every worker's host and on SPARE hosts more, split so that all are done at once",
    assumes="workers count as machines, and all links are alike; partitions (of 4.096 MB at most) are dealt by the optimum shares "
    "and leave in order under a credit (4 partitions), which keeps all wires busy together",
    source="Jiang et al., OSDI 2020, section 4.1",
)
def byteps(scenario: Scenario, options: Options) -> tuple[Scenario, str]:
    """Of n workers and k spare hosts, a spare one sums 2(n-1)/(n^2+kn-2k) of the gradients and a worker's (n-k) of the same.

    Then each wire carries 2n(n-1)/(n^2+kn-2k) of them each way. With k = n the workers' sum nothing.
    """
    trace = scenario.trace
    groups, smallest = gradient_groups(trace, options), partition(options)
    credit = options.size("credit", str(Size(_CREDIT * smallest)))
    workers = trace.world_size
    spare = options.whole(VALUE, 0, workers)
    parts = workers * workers + spare * workers - 2 * spare
    here, there = Fraction(workers - spare, parts), Fraction(2 * (workers - 1), parts)
    first = workers + spare
    shares = dict.fromkeys(range(workers, first), there)
    seats = {server: Seat() for server in shares}
    if here:
        shares |= dict.fromkeys(range(first, first + workers), here)
        seats |= {first + worker: Seat(worker) for worker in range(workers)}
    made, became = serve(trace, groups, Architecture(seats, shares, Serving(smallest), dealt=True))
    statement = (
        f"BytePS on {workers} workers and {spare} spare hosts: {became}; partitions of {smallest} are dealt, "
        f"{float(there):.2%} to each spare host and {float(here):.2%} to each worker's; they leave in order, {credit} at a time"
    )
    return replace(scenario, trace=made, sending=scenario.sending or Sending("fifo", credit)), statement
