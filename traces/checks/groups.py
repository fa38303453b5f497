"""Process groups whose list of ranks can't be right."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from traces.checks.said import error, name, ranges
from traces.program import Collective, Finding, Group, Trace


def groups(trace: Trace) -> Iterator[Finding]:
    """Lists with a rank twice or one that the job does not have, lists that were cut, and ranks that are in no list."""
    for group in trace.groups:
        yield from _listed(group, trace.world_size)
    known = {group.id: group for group in trace.groups}
    started: dict[int, dict[int, list[tuple[int, Collective]]]] = defaultdict(lambda: defaultdict(list))
    for rank, program in trace.programs.items():
        for index, op in enumerate(program.ops):
            if isinstance(op, Collective):
                started[op.group][rank].append((index, op))
    for identity, by_rank in started.items():
        listed = known[identity].ranks if identity in known else ()
        outside = {rank: ops for rank, ops in by_rank.items() if rank not in listed}
        same = {tuple(op.kind for _, op in by_rank[rank]) for rank in listed if rank in by_rank}
        cut = {rank for rank, ops in outside.items() if tuple(op.kind for _, op in ops) in same}
        if cut:
            text = f"group {known[identity].name!r} lists {len(listed)} ranks, but rank {ranges(cut)} start the same"
            yield error("truncated-group", f"{text} operations: the list was cut", rank=min(cut))
        for rank in sorted(outside.keys() - cut):
            index, op = outside[rank][0]
            text = f"{name(op)} is of group {identity}, not of this rank's"
            yield error("not-a-member", text, rank=rank, op=index)


def _listed(group: Group, world_size: int) -> Iterator[Finding]:
    absent = {rank for rank in group.ranks if not 0 <= rank < world_size}
    if absent:
        text = f"group {group.name!r} lists rank {ranges(absent)} of a job of {world_size} ranks"
        yield error("group-ranks", text, rank=min(absent))
    twice = {rank for rank in group.ranks if group.ranks.count(rank) > 1}
    if twice:
        yield error("group-ranks", f"group {group.name!r} lists rank {ranges(twice)} more than once", rank=min(twice))
