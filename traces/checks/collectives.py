"""Collectives that the ranks of a group do not start alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from traces.checks.said import error, name
from traces.program import ROOTED, Collective, CollectiveKind, Finding, Group, Trace, op_bytes

_Seen = tuple[int, Collective]  # (index in the rank's program, the collective)


def collectives(trace: Trace) -> Iterator[Finding]:
    """In each group, the n-th collective must be the same one at all ranks: kind, size, type, root, splits."""
    groups = {group.id: group for group in trace.groups}
    seen: dict[int, dict[int, list[_Seen]]] = defaultdict(lambda: defaultdict(list))
    for rank, program in trace.programs.items():
        for index, op in enumerate(program.ops):
            if isinstance(op, Collective) and op.group in groups and rank in groups[op.group].ranks:
                seen[op.group][rank].append((index, op))
    for identity, by_rank in seen.items():
        present = [rank for rank in groups[identity].ranks if rank in trace.programs]
        yield from _in_step(groups[identity], {rank: by_rank[rank] for rank in present})


def _in_step(group: Group, by_rank: dict[int, list[_Seen]]) -> Iterator[Finding]:
    """Hold the n-th collective of each rank against the others'; a group that is out of order is reported once."""
    longest = max(by_rank, key=lambda rank: len(by_rank[rank]))
    late = list(_late(group, by_rank, longest))
    if late:
        yield from late
        return
    for position, (index, op) in enumerate(by_rank[longest]):
        absent = [rank for rank, mine in by_rank.items() if position >= len(mine)]
        if absent:
            text = f"{name(op)} of group {group.name!r} is not seen by ranks {absent}"
            yield error("op-seen-by-some", text, rank=longest, op=index)
            return
        same = {rank: mine[position] for rank, mine in by_rank.items()}
        for rank, (own_index, own) in same.items():
            if own.kind is not op.kind:
                text = f"{name(own)} of group {group.name!r} where rank {longest} has {name(op)}"
                yield error("op-seen-by-some", text, rank=rank, op=own_index)
                return
        yield from _agree(group, same, longest)


def _late(group: Group, by_rank: dict[int, list[_Seen]], longest: int) -> Iterator[Finding]:
    """Ranks whose recording began later: what they have is the end of what `longest` has, and not its beginning."""
    whole = _shapes(by_rank[longest])
    for rank, mine in by_rank.items():
        shapes, lacking = _shapes(mine), len(whole) - len(mine)
        if mine and lacking and shapes == whole[lacking:] and shapes != whole[: len(mine)]:
            text = (
                f"the recording began later than rank {longest}'s, which has {lacking} more operations of group "
                f"{group.name!r} before; dropping the first step may mend it (tracebed scale --drop-warm-up 1)"
            )
            yield error("window-edge", text, rank=rank, op=mine[0][0])


def _shapes(seen: list[_Seen]) -> list[tuple[CollectiveKind, int]]:
    return [(op.kind, -1 if op.kind is CollectiveKind.ALL_TO_ALL else op_bytes(op)) for _, op in seen]


def _agree(group: Group, same: dict[int, _Seen], reference: int) -> Iterator[Finding]:
    reference_index, expected = same[reference]
    if expected.kind in ROOTED and expected.root not in group.ranks:
        text = f"{name(expected)} has root {expected.root}, which is not in group {group.name!r}"
        yield error("root-mismatch", text, rank=reference, op=reference_index)
    is_split = expected.kind is CollectiveKind.ALL_TO_ALL
    for rank, (index, op) in same.items():
        if not is_split and op_bytes(op) != op_bytes(expected):
            text = f"{name(op)} of {op_bytes(op)} bytes, {op_bytes(expected)} at rank {reference}"
            yield error("size-mismatch", text, rank=rank, op=index)
        elif op.dtype.itemsize != expected.dtype.itemsize:
            text = f"{name(op)} of {op.dtype}, {expected.dtype} at rank {reference}"
            yield error("type-mismatch", text, rank=rank, op=index)
        elif op.root != expected.root:
            text = f"{name(op)} has root {op.root}, {expected.root} at rank {reference}"
            yield error("root-mismatch", text, rank=rank, op=index)
        elif op.reduce_op != expected.reduce_op:
            text = f"{name(op)} reduces by {op.reduce_op}, {expected.reduce_op} at rank {reference}"
            yield error("reduce-op-mismatch", text, rank=rank, op=index)
    if is_split:
        yield from _splits(group, same)


def _splits(group: Group, same: dict[int, _Seen]) -> Iterator[Finding]:
    """What rank r expects of s must be what s sends to r."""
    size = len(group.ranks)
    parts: dict[int, tuple[Sequence[int], Sequence[int]]] = {}
    for rank, (index, op) in same.items():
        is_even = not op.send_splits and not op.recv_splits
        equal = [op.count // size] * size
        sends, receives = (equal, equal) if is_even else (op.send_splits, op.recv_splits)
        if len(sends) != size or len(receives) != size or sum(sends) != op.count:
            text = f"{name(op)} of {op.count} elements is split {list(sends)} and {list(receives)} in a group of {size}"
            yield error("splits-mismatch", text, rank=rank, op=index)
        else:
            parts[rank] = (sends, receives)
    for place, rank in enumerate(group.ranks):
        for other_place, other in enumerate(group.ranks):
            if rank in parts and other in parts and parts[rank][1][other_place] != parts[other][0][place]:
                expected, sent = parts[rank][1][other_place], parts[other][0][place]
                text = f"{name(same[rank][1])} expects {expected} elements of rank {other}, which sends {sent}"
                yield error("splits-mismatch", text, rank=rank, op=same[rank][0])
