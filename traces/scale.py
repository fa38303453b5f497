"""Other sizes of a recorded job: more or fewer data-parallel ranks, its steps repeated, its names taken out. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from traces.checks import check
from traces.checks.said import name, ranges
from traces.errors import TraceError
from traces.program import (
    Collective,
    CollectiveKind,
    Compute,
    Finding,
    Group,
    Op,
    Origin,
    Program,
    Recv,
    Send,
    StepMark,
    Trace,
    Wait,
)
from traces.steps import select

# What sharded data parallelism (ZeRO, FSDP) calls on shards: the whole tensor does not change with the number of ranks.
_SHARDED = frozenset({CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_GATHER})


def with_ranks(trace: Trace, ranks: int) -> Trace:
    """The job on `ranks` ranks, each with the batch that a rank had (weak scaling).

    New rank r does what the r-th recorded rank did, counted round, so a recording of one rank is enough. all_reduce,
    broadcast and reduce keep their tensors; gather and scatter keep a rank's part; of reduce_scatter and all_gather the whole
    tensor stays, with its padding, and a rank's part becomes an equal share of it, rounded up: FSDP2, which pads each parameter
    to whole rows, is met to within a row. Recorded times and hosts are left out. What was assumed is a finding of the result.

    Raises:
        TraceError: the job is not data-parallel over all ranks (the groups are named), a root is no rank of the result, or
            the trace is wrong in itself.
    """
    recorded = sorted(trace.programs)
    if ranks == trace.world_size == len(recorded):
        return trace
    if wrong := next((f for f in check(trace) if not f.replayable and f.code != "missing-rank"), None):
        raise TraceError(
            f"can't be scaled: {wrong.message} [{wrong.code}]", mend="`tracebed check` lists all that is wrong"
        )
    groups = _data_parallel(trace)
    text = (
        f"{ranks} ranks from {len(recorded)} recorded of {trace.world_size}: rank r does what recorded rank "
        f"r mod {len(recorded)} did, with as much compute; all_reduce, broadcast and reduce keep their tensors, gather and "
        "scatter a rank's part, reduce_scatter and all_gather the whole, padding included, of which a rank has an equal share"
    )
    kept = [replace(finding, op=-1) for finding in trace.findings if finding.rank < ranks]
    return replace(
        trace,
        world_size=ranks,
        groups=tuple(replace(group, ranks=_resized(group.ranks, ranks)) for group in groups),
        programs={
            rank: Program(rank, _resharded(trace.programs[recorded[rank % len(recorded)]], trace.world_size, ranks))
            for rank in range(ranks)
        },
        findings=(*kept, Finding("assumed-ranks", text, "info")),
        hosts={},
        clock_residual_ns={},
    )


def _data_parallel(trace: Trace) -> list[Group]:
    """The groups that are used, each of all ranks. Raises TraceError naming those that are not, or what can't be rescaled."""
    users: dict[int, set[str]] = {}
    for program in trace.programs.values():
        for op in program.ops:
            if isinstance(op, Collective | Send | Recv):
                users.setdefault(op.group, set()).add(name(op))
    used = [group for group in trace.groups if group.id in users]
    part = [group for group in used if len(group.ranks) < trace.world_size]
    if part:
        listed = ", ".join(f"{group.name!r} (rank {ranges(group.ranks)})" for group in part)
        text = f"not data-parallel over all {trace.world_size} ranks: group {listed}"
        raise TraceError(text, mend="only jobs whose groups all have every rank can be given more or fewer")
    for group in used:
        fixed = users[group.id] & {CollectiveKind.ALL_TO_ALL.value, "send", "recv"}
        if fixed:
            text = f"not data-parallel: group {group.name!r} has {', '.join(sorted(fixed))}"
            raise TraceError(text, mend="who sends what to whom on other ranks can't be told from a recording")
    return used


def _resized(members: Sequence[int], ranks: int) -> tuple[int, ...]:
    """The group's order for the ranks that stay, then the new ones."""
    return (*(rank for rank in members if rank < ranks), *range(len(members), ranks))


def _resharded(program: Program, before: int, after: int) -> tuple[Op, ...]:
    ops: list[Op] = []
    for index, op in enumerate(program.ops):
        if isinstance(op, Collective):
            if op.root >= after:
                text = f"{name(op)} has root {op.root}, which is no rank of a job of {after}"
                raise TraceError(text, place=f"rank {program.rank}, op {index}")
            if op.kind in _SHARDED:
                op = replace(op, count=-(-op.count * before // after))
        ops.append(_untimed(op))
    return tuple(ops)


def _untimed(op: Op) -> Op:
    return replace(op, origin=Origin(op.origin.source, op.origin.event))


def repeated(trace: Trace, times: int) -> Trace:
    """All steps, `times` over: a longer job of the same steps. What lies behind the last step is left out.

    Steps are numbered on from the first; recorded times, which the later ones don't have, are left out. Raises TraceError
    where the trace has no steps.
    """
    if times == 1:
        return trace
    whole = select(trace, 0, trace.step_count)
    text = f"{trace.step_count} recorded steps, {times} times over"
    return replace(
        whole,
        programs={rank: _repeat(program, times) for rank, program in whole.programs.items()},
        step_count=whole.step_count * times,
        findings=(*whole.findings, Finding("repeated-steps", text, "info")),
    )


def _repeat(program: Program, times: int) -> Program:
    ops: list[Op] = []
    step = next(op.step for op in program.ops if isinstance(op, StepMark))
    for _ in range(times):
        start = len(ops)
        for op in program.ops:
            if isinstance(op, Wait):
                op = replace(op, op=op.op + start)
            elif isinstance(op, StepMark):
                op = replace(op, step=step)
                step += 1
            ops.append(_untimed(op))
    return replace(program, ops=tuple(ops))


def anonymised(trace: Trace) -> Trace:
    """The trace without what tells whose it is: names of operations, groups, hosts and files, hashes of files, messages.

    Equal names stay equal: they are numbered in the order in which they are met. Numbers (sizes, times, event ids) stay.
    """
    names = _Numbered("op")
    hosts = _Numbered("host")
    programs = {
        rank: replace(program, ops=tuple(_renamed(op, names) for op in program.ops))
        for rank, program in trace.programs.items()
    }
    return replace(
        trace,
        groups=tuple(replace(group, name=str(group.id), description="") for group in trace.groups),
        programs=programs,
        sources=tuple(replace(source, name=f"source{index}", sha256="") for index, source in enumerate(trace.sources)),
        findings=tuple(replace(finding, message="(message left out)") for finding in trace.findings),
        hosts={rank: hosts.of(host) for rank, host in sorted(trace.hosts.items())},
        provenance={key: value for key, value in trace.provenance.items() if key == "tracebed"},
    )


class _Numbered:
    """Names in place of others: `kind` and a number, the same for the same name, "" for none."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._known: dict[str, str] = {}

    def of(self, secret: str) -> str:
        return self._known.setdefault(secret, f"{self._kind}{len(self._known)}") if secret else ""


def _renamed(op: Op, names: _Numbered) -> Op:
    return replace(op, name=names.of(op.name)) if isinstance(op, Compute | Collective | Send | Recv) else op
