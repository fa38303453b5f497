"""What is wrong with a trace, as findings with rank and operation: each says whether replay is still right.

One file a family of findings, each a function Trace -> findings; `_LOOKS` lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from traces.checks.collectives import collectives
from traces.checks.deadlock import deadlock
from traces.checks.groups import groups
from traces.checks.messages import messages
from traces.checks.overlap import all_synchronous, in_flight
from traces.checks.sizes import sizes
from traces.checks.waits import waits
from traces.checks.whole import clocks, missing_ranks, no_communication, steps
from traces.program import Finding, Trace

_LOOKS: tuple[Callable[[Trace], Iterator[Finding]], ...] = (
    missing_ranks,
    no_communication,
    steps,
    clocks,
    groups,
    sizes,
    waits,
    in_flight,
    all_synchronous,
    collectives,
    messages,
    deadlock,
)


def check(trace: Trace) -> tuple[Finding, ...]:
    """The importer's findings and all that the programs themselves show, worst first."""
    found = [*trace.findings]
    for look in _LOOKS:
        found += look(trace)
    order = {"error": 0, "warning": 1, "info": 2}
    return tuple(sorted(found, key=lambda finding: (order[finding.severity], finding.rank, finding.op)))


def is_replayable(findings: Sequence[Finding]) -> bool:
    """Whether a trace with these findings can be replayed."""
    return all(finding.replayable for finding in findings)
