"""Which operations of different ranks are one collective: the n-th of a group at each of its ranks. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from traces.program import Collective, CollectiveKind, Communication, Program, op_bytes

_Shape = tuple[CollectiveKind, int]


@dataclass(frozen=True, slots=True)
class Meeting:
    """One collective: its number in the group, and at each rank that was recorded (index in its program, operation)."""

    group: int
    number: int
    parts: Mapping[int, tuple[int, Collective]]


def meetings(programs: Mapping[int, Program]) -> list[Meeting]:
    """All collectives of `programs`, group by group in order.

    A rank that has fewer collectives of a group than another has lost those before or behind its window, which its kinds
    and sizes tell; where they don't, its operations of that group are in no meeting.
    """
    started: dict[int, dict[int, list[tuple[int, Collective]]]] = defaultdict(dict)
    for rank, program in programs.items():
        for index, op in enumerate(program.ops):
            if isinstance(op, Collective):
                started[op.group].setdefault(rank, []).append((index, op))
    found = []
    for group, by_rank in sorted(started.items()):
        shapes = {rank: [shape(op) for _, op in mine] for rank, mine in by_rank.items()}
        whole = max(shapes.values(), key=len)
        met: list[dict[int, tuple[int, Collective]]] = [{} for _ in whole]
        for rank, mine in by_rank.items():
            lost = _lost_before(shapes[rank], whole)
            for number, part in enumerate(mine, lost or 0):
                if lost is not None:
                    met[number][rank] = part
        found += [Meeting(group, number, parts) for number, parts in enumerate(met) if parts]
    return found


def shape(op: Collective) -> _Shape:
    """What all ranks have in common of one collective: kind and bytes, of an all_to_all only the kind."""
    return op.kind, -1 if op.kind is CollectiveKind.ALL_TO_ALL else op_bytes(op)


def _lost_before(mine: list[_Shape], whole: list[_Shape]) -> int | None:
    """How many of `whole` come before `mine`; None where that can't be told."""
    lacking = len(whole) - len(mine)
    if not lacking:
        return 0
    is_start, is_end = mine == whole[: len(mine)], mine == whole[lacking:]
    if is_start == is_end:
        return None
    return 0 if is_start else lacking


def begins(program: Program, lane_of: Mapping[int, int]) -> dict[int, int]:
    """When each recorded communication could begin at this rank, in ns, by its index: started, and its lane free.

    A recording says when an operation was queued; DDP queues many at once, and they run one after the other.
    """
    free: dict[int, int] = {}
    found = {}
    for index, op in enumerate(program.ops):
        if isinstance(op, Communication) and 0 <= op.origin.start_ns <= op.origin.end_ns:
            start, end = op.origin.start_ns, op.origin.end_ns
            if isinstance(op, Collective):
                lane = lane_of.get(op.group, -1 - op.group)
                start = max(start, min(free.get(lane, 0), end))
                free[lane] = max(free.get(lane, 0), end)
            found[index] = start
    return found
