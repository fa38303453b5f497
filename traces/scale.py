"""Other sizes of a recorded job: more or fewer replicas of its model, its steps repeated, its names taken out. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from traces.checks import check
from traces.checks.said import name
from traces.errors import TraceError
from traces.program import (
    Collective,
    CollectiveKind,
    Communication,
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
from traces.replicas import Replicas, replicas
from traces.steps import select

# What sharded data parallelism (ZeRO, FSDP) calls on shards: the whole tensor does not change with the number of ranks.
_SHARDED = frozenset({CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_GATHER})


def with_ranks(trace: Trace, ranks: int, *, along: str | None = None) -> Trace:
    """The job on `ranks` ranks: more or fewer replicas of the model, each with the batch that one had (weak scaling).

    New replica r does what the r-th recorded replica did, counted round, with its own tensor parallel, pipeline and other groups;
    `along` names a group that joins replicas, where more than one kind does (see traces/replicas.py). Where each rank is
    a replica, a recording of one rank is enough. In groups that join replicas all_reduce, broadcast and reduce keep their
    tensors; gather and scatter keep a rank's part; of reduce_scatter and all_gather the whole tensor stays, with its padding,
    and a rank's part becomes an equal share of it, rounded up: FSDP2, which pads each parameter to whole rows, is met to
    within a row. Recorded times and hosts are left out. What was assumed is a finding of the result.

    Raises:
        TraceError: no group or several join replicas, `ranks` are not whole replicas, a root is no rank of the result, or the
            trace is wrong in itself.
    """
    if ranks == trace.world_size == len(trace.programs):
        return trace
    if wrong := next((f for f in check(trace) if not f.replayable and f.code != "missing-rank"), None):
        raise TraceError(
            f"can't be scaled: {wrong.message} [{wrong.code}]", mend="`tracebed check` lists all that is wrong"
        )
    found = replicas(trace, along)
    if ranks % found.size:
        text = f"{ranks} ranks are no whole replicas: each is {found.size} ranks"
        raise TraceError(text, place="--ranks", mend=f"say a multiple of {found.size}")
    new = _Numbering(found, ranks // found.size)
    groups, ids = _groups(trace, found, new)
    programs = {}
    for replica in range(new.count):
        number, members = found.recorded[replica % len(found.recorded)]
        for place, rank in enumerate(members):
            at = new.rank(replica, place)
            programs[at] = Program(at, _moved(trace.programs[rank], found, new, (number, replica), ids))
    kept = [replace(finding, op=-1) for finding in trace.findings if finding.rank < ranks]
    return replace(
        trace,
        world_size=ranks,
        groups=groups,
        programs=dict(sorted(programs.items())),
        findings=(*kept, Finding("assumed-ranks", _assumed(trace, found, ranks), "info")),
        hosts={},
        clock_residual_ns={},
    )


def _assumed(trace: Trace, found: Replicas, ranks: int) -> str:
    recorded = len(found.recorded)
    who = "rank" if found.size == 1 else "replica"
    joined = sorted(group.name for group in trace.groups if group.id in found.shared)
    cut = f", {found.size} ranks a replica, joined by groups {', '.join(joined)}" if found.size > 1 else ""
    return (
        f"{ranks} ranks from {len(trace.programs)} recorded of {trace.world_size}{cut}: {who} r does what recorded {who} "
        f"r mod {recorded} did, with as much compute; all_reduce, broadcast and reduce keep their tensors, gather and "
        "scatter a rank's part, reduce_scatter and all_gather the whole, padding included, of which a rank has an equal share"
    )


class _Numbering:
    """Ranks of `count` replicas, numbered as the recorded ones: which ranks of a replica were neighbours still are."""

    def __init__(self, found: Replicas, count: int) -> None:
        self.count = count
        ranks = found.recorded[0][1]
        starts = [place for place, rank in enumerate(ranks) if not place or ranks[place - 1] != rank - 1]
        ends = [*starts[1:], len(ranks)]
        self._runs = [(start, end - start) for start, end in zip(starts, ends, strict=True) for _ in range(start, end)]

    def rank(self, replica: int, place: int) -> int:
        """The number of the rank at `place` of `replica`."""
        start, length = self._runs[place]
        return start * self.count + replica * length + place - start


_Ids = dict[tuple[int, int], int]
"""The id of the group that stands for a recorded one in a new replica."""


def _groups(trace: Trace, found: Replicas, new: _Numbering) -> tuple[tuple[Group, ...], _Ids]:
    """The new job's groups: those that join replicas, of all of them, and each replica's own."""
    by_id = {group.id: group for group in trace.groups}
    made: list[Group] = []
    ids: _Ids = {}
    for group in trace.groups:
        if group.id in found.shared:
            made.append(replace(group, ranks=_resized(group.ranks, found, new)))
            ids |= {(group.id, replica): group.id for replica in range(new.count)}
    unused = 1 + max(by_id)
    for replica in range(new.count):
        _, members = found.recorded[replica % len(found.recorded)]
        used = {op.group for rank in members for op in trace.programs[rank].ops if isinstance(op, Communication)}
        for group in (by_id[one] for one in sorted(used - found.shared)):
            ranks = tuple(new.rank(replica, found.places[rank][1]) for rank in group.ranks)
            name = group.name if replica < len(found.recorded) else f"{group.name}, replica {replica}"
            is_taken = replica >= len(found.recorded)
            ids[group.id, replica] = unused if is_taken else group.id
            unused += is_taken
            made.append(replace(group, id=ids[group.id, replica], name=name, ranks=ranks))
    return tuple(made), ids


def _resized(members: Sequence[int], found: Replicas, new: _Numbering) -> tuple[int, ...]:
    """The group's order for the ranks that stay, then the new ones; in order where it was."""
    places = dict.fromkeys(found.places[rank][1] for rank in members)
    kept = [new.rank(*found.places[rank]) for rank in members if found.places[rank][0] < new.count]
    more = [new.rank(replica, place) for replica in range(found.count, new.count) for place in places]
    return tuple(sorted(kept + more) if list(members) == sorted(members) else kept + more)


def _moved(program: Program, found: Replicas, new: _Numbering, change: tuple[int, int], ids: _Ids) -> tuple[Op, ...]:
    """The operations of a rank of replica `change[0]` as one of replica `change[1]` does them."""
    ops: list[Op] = []
    for index, op in enumerate(program.ops):
        if isinstance(op, Collective):
            is_shared = op.group in found.shared
            if op.root >= 0:
                replica, place = found.places[op.root]
                if is_shared and replica >= new.count:
                    text = f"{name(op)} has root {op.root}, which is no rank of a job of {new.count * found.size}"
                    raise TraceError(text, place=f"rank {program.rank}, op {index}")
                op = replace(op, root=new.rank(replica if is_shared else change[1], place))
            if op.kind in _SHARDED and is_shared:
                op = replace(op, count=-(-op.count * found.count // new.count))
            op = replace(op, group=ids[op.group, change[1]])
        elif isinstance(op, Send | Recv):
            peer = new.rank(change[1], found.places[op.peer][1])
            op = replace(op, peer=peer, group=ids[op.group, change[1]])
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
