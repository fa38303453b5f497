"""What one run is to do: the part of `run.json` from which the run can be done again, on any ground."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, TypedDict

import msgspec

from emulator.network import Network, from_dict
from replay.choosing import with_algorithms
from replay.plan import DEFAULT_SEGMENT, Plan, lower
from replay.whatif.compute import scaled
from replay.whatif.registry import Scenario, apply
from traces import archive
from traces.checks import check, is_replayable
from traces.errors import TraceError
from traces.steps import select

GROUNDS = ("virtual", "host")
BEDS = ("netns", "docker")
LIBRARIES = {"gloo": "torch", "mpi": "mpi"}
"""The extra of tracebed that each needs; it is the module of replay.library that is called so."""
FIDELITIES = ("auto", "packet", "burst")
STALL_S = 900.0
"""About what TCP takes to give a path up (tcp_retries2, tcp(7))."""


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One replay: a trace, changed by what-ifs, on a network.

    `network` is the resolved form (`emulator.network.to_dict`); `steps` is "A:B" or "" for all; `trace_hash` is that of the
    file's bytes; `image` is what a docker bed's containers are made of, "" for an empty one; `pcap` are the links that are
    captured; `dilation` is by how much time is stretched while it runs, as in `replay.dilation`; `algorithms` are rules as in
    `replay.choosers.rules`, `segment` the most bytes of a pipelined message; after `stall_s`
    seconds of the run's own time in which nothing moves it is given up; `library` is whose operations run, one of
    LIBRARIES or "" for ours.
    """

    trace: str
    trace_hash: str
    network: dict[str, Any]
    what_if: tuple[str, ...] = ()
    steps: str = ""
    ground: str = "virtual"
    bed: str = "netns"
    image: str = ""
    fidelity: str = "auto"
    verify: bool = False
    pcap: tuple[str, ...] = ()
    dilation: str = "1"
    algorithms: tuple[str, ...] = ()
    segment: int = DEFAULT_SEGMENT
    stall_s: float = STALL_S
    library: str = ""

    def resolved_network(self) -> Network:
        return from_dict(self.network)


class How(TypedDict, total=False):
    """What a caller may say of a request besides the job and the network, as `Request` has it."""

    ground: str
    bed: str
    image: str
    fidelity: str
    verify: bool
    pcap: tuple[str, ...]
    dilation: str
    algorithms: tuple[str, ...]
    segment: int
    stall_s: float
    library: str


def parse_steps(text: str, count: int) -> tuple[int, int]:
    """ "A:B", "A:" or ":B" as (first, last + 1). Raises TraceError."""
    found = re.fullmatch(r"(\d*):(\d*)", text)
    if found is None:
        raise TraceError(f"--steps {text}: expected A:B, as in 1:3 for the second and third step")
    return int(found[1] or 0), int(found[2] or count)


def prepare(path: Path, what_if: tuple[str, ...], steps: str) -> Scenario:
    """The job to replay, changed by its what-ifs, and what they assume.

    Raises:
        TraceError: the file can't be read, or replaying it would not be right; with the first reason.
    """
    trace = archive.read(path)
    findings = check(trace)
    if not is_replayable(findings):
        first = next(finding for finding in findings if not finding.replayable)
        where = ", ".join(
            f"{what} {number}" for what, number in (("rank", first.rank), ("op", first.op)) if number >= 0
        )
        mend = "`tracebed check` lists all that is wrong"
        raise TraceError(
            f"can't be replayed: {first.message} [{first.code}]", file=path, place=where or None, mend=mend
        )
    if not trace.step_count:
        raise TraceError("marks no step, so there is no step time to measure", file=path, mend="record with step marks")
    if steps:
        trace = select(trace, *parse_steps(steps, trace.step_count))
    return apply(trace, what_if)


def takes_costs(request: Request) -> bool:
    """Whether hosts take what the network's `costs` say: not in real time, where their processors take time themselves, unless
    that is stretched; nor among ranks that somebody else started, for those share no memory in which to add it up.
    """
    return request.bed != "compose" and (request.ground == "virtual" or Fraction(request.dilation) != 1)


def plan_of(request: Request) -> Plan:
    """The plan that the request asks for, dilated. Algorithms are chosen for the network as it is: all of it is dilated alike."""
    scenario = prepare(Path(request.trace), request.what_if, request.steps)
    plan = lower(scaled(scenario.trace, Fraction(request.dilation)), segment=request.segment)
    if request.algorithms:
        plan, _ = with_algorithms(plan, request.algorithms, request.resolved_network())
    return Plan({rank: replace(own, sending=scenario.sending) for rank, own in plan.ranks.items()})
