"""Traces of some ranks each, of one job, to one trace: what the nodes of a job wrote. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from traces import clocks
from traces.clock_fit import Clock
from traces.errors import TraceError
from traces.peers import resolved
from traces.program import Communication, Group, Op, Origin, Program, Trace


def merged(traces: Sequence[Trace]) -> Trace:
    """The job whose ranks are spread over `traces`. Groups are one where name and ranks are the same.

    Steps are those that all have. Raises TraceError where two hold the same rank or say different numbers of ranks.
    """
    sizes = sorted({trace.world_size for trace in traces})
    if len(sizes) != 1:
        raise TraceError(f"not one job: the traces are of jobs of {' and '.join(map(str, sizes))} ranks")
    twice = sorted(
        {
            rank
            for at, trace in enumerate(traces)
            for rank in trace.programs
            if any(rank in t.programs for t in traces[:at])
        }
    )
    if twice:
        raise TraceError(f"rank {twice[0]} is in two traces", mend="merge each node's trace once")
    groups: dict[tuple[str, tuple[int, ...]], Group] = {}
    programs: dict[int, Program] = {}
    sources = 0
    starts = [int(trace.provenance.get(clocks.STARTED, "0")) for trace in traces]
    for trace, start in zip(traces, starts, strict=True):
        ids: dict[int, int] = {}
        lanes: dict[int, int] = {}
        for group in trace.groups:
            known = groups.setdefault((group.name, group.ranks), replace(group, id=len(groups), lane=-1))
            lane = lanes.setdefault(group.lane, known.id)
            groups[group.name, group.ranks] = replace(known, lane=lane if known.lane < 0 else known.lane)
            ids[group.id] = known.id
        for rank, program in trace.programs.items():
            moved = clocks.shifted(program, Clock(((0, start - min(starts)),)))
            programs[rank] = Program(rank, tuple(_moved(op, ids, sources) for op in moved.ops))
        sources += len(trace.sources)
    hosts = {rank: host for trace in traces for rank, host in trace.hosts.items()}
    aligned = clocks.align(dict(sorted(programs.items())), hosts)
    named, said = resolved(aligned.programs)
    return replace(
        traces[0],
        groups=tuple(groups.values()),
        programs=named,
        step_count=min(trace.step_count for trace in traces),
        sources=tuple(source for trace in traces for source in trace.sources),
        findings=tuple(dict.fromkeys(finding for trace in traces for finding in trace.findings))
        + aligned.findings
        + said,
        hosts=hosts,
        clock_residual_ns=aligned.after_ns,
        provenance={**traces[0].provenance, clocks.STARTED: str(min(starts) + aligned.started_ns)},
    )


def _moved(op: Op, ids: dict[int, int], sources: int) -> Op:
    at = op.origin
    origin = Origin(at.source + sources, at.event, at.start_ns, at.end_ns) if at.source >= 0 else at
    if isinstance(op, Communication):
        return replace(op, group=ids[op.group], origin=origin)
    return replace(op, origin=origin)
