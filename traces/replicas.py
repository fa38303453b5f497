"""What is data-parallel in a job: which ranks together hold one replica of the model, and which groups join the replicas.

No name is trusted. Two ranks of a data-parallel group do the same, so their operations are laid side by side: a group that is
the same for both joins replicas; one that is not is its replica's own, and its ranks correspond place by place (tensor
parallel ranks, stages of a pipeline). From there their operations are laid side by side in turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest

from traces.checks.said import name, ranges
from traces.errors import TraceError
from traces.program import CollectiveKind, Communication, Group, Trace

_MEND = "--along names a group whose ranks each belong to another replica of the model"
_TO_SINGLE = frozenset({CollectiveKind.ALL_TO_ALL.value, "send", "recv"})
"""What is sent to single ranks of a group, each its own."""


@dataclass(frozen=True, slots=True)
class Replicas:
    """`count` replicas of `size` ranks. `places` has replica and place in it of each rank that is known.

    `recorded` are the replicas that were recorded whole: number, and ranks by place. `shared` are the ids of groups that join
    replicas.
    """

    count: int
    size: int
    places: Mapping[int, tuple[int, int]]
    recorded: tuple[tuple[int, tuple[int, ...]], ...]
    shared: frozenset[int]


def replicas(trace: Trace, along: str | None) -> Replicas:
    """The replicas that the group called `along` joins; without it, those of the only group that does.

    Raises TraceError: no group does, or several do differently, or one does but another that could as well does not fit, or
    what they join can't be rescaled.
    """
    used = _used(trace)
    if along is not None:
        named = [group for group in used if group.name == along]
        if len(named) != 1:
            text = f"{len(named)} groups that are used are called {along!r}"
            raise TraceError(text, place="--along", mend=f"there are {', '.join(group.name for group in used)}")
        return _Sides(trace, used, named[0]).replicas()
    found: dict[str, Replicas] = {}
    refused: dict[str, TraceError] = {}
    for group in used:
        if not any(group.id in one.shared for one in found.values()):
            try:
                found[group.name] = _Sides(trace, used, group).replicas()
            except TraceError as error:
                refused[group.name] = error
    if len(found) == 1:
        ((only, its),) = found.items()
        # Beside context parallel ranks, which differ within a data-parallel group, the tensor parallel group is the only one.
        to_single = {op.group for rank in trace.programs for op in _calls(trace, rank) if name(op) in _TO_SINGLE}
        misfits = [group.name for group in used if group.name in refused and group.id not in to_single]
        if misfits:
            text = f"group {only!r} joins replicas, {misfits[0]!r} does not, and which is data-parallel is not said"
            raise TraceError(text, place="--along", mend=f"--along {only} takes the first's")
        return its
    if found:
        text = f"groups {', '.join(map(repr, found))} each join replicas, and which are data-parallel is not said"
        raise TraceError(text, place="--along", mend=f"--along {next(iter(found))} takes the first's")
    if len(refused) == 1:
        raise next(iter(refused.values()))
    part = [group for group in used if len(group.ranks) < trace.world_size]
    listed = ", ".join(f"{group.name!r} (rank {ranges(group.ranks)})" for group in part)
    raise TraceError(f"not data-parallel over all {trace.world_size} ranks: group {listed}", mend=_MEND)


def _used(trace: Trace) -> list[Group]:
    ids = {op.group for rank in trace.programs for op in _calls(trace, rank)}
    return [group for group in trace.groups if group.id in ids]


def _calls(trace: Trace, rank: int) -> Iterator[Communication]:
    return (op for op in trace.programs[rank].ops if isinstance(op, Communication))


class _Sides:
    """Lays the replicas that `along` joins side by side."""

    def __init__(self, trace: Trace, used: list[Group], along: Group) -> None:
        self._trace, self._along = trace, along
        self._names = {group.id: group.name for group in used}
        self._members = {group.id: group.ranks for group in used}
        self._shared = {group.id for group in used if len(group.ranks) == trace.world_size}
        self._own: set[int] = set()

    def replicas(self) -> Replicas:
        """What was found. Raises TraceError with what does not fit."""
        self._refuse_fixed()
        numbers = {rank: number for number, rank in enumerate(sorted(self._along.ranks))}
        anchors = [rank for rank in numbers if rank in self._trace.programs]
        if not anchors:
            raise self._wrong("none of its ranks was recorded")
        maps = [self._side_by_side(anchors[0], anchor) for anchor in anchors[1:]]
        first = sorted(maps[0]) if maps else anchors[:1]
        if any(sorted(one) != first for one in maps):
            raise self._wrong("replicas of different sizes")
        whole = [(numbers[anchors[0]], tuple(first))]
        whole += [(numbers[to], tuple(one[rank] for rank in first)) for to, one in zip(anchors[1:], maps, strict=True)]
        places = {rank: (number, first.index(anchors[0])) for rank, number in numbers.items()}
        places |= {rank: (number, place) for number, ranks in whole for place, rank in enumerate(ranks)}
        known = {rank for _, ranks in whole for rank in ranks}
        if len(numbers) * len(first) != self._trace.world_size or len(known) != len(whole) * len(first):
            raise self._wrong(f"{len(numbers)} replicas of {len(first)} ranks are not {self._trace.world_size} ranks")
        if len(first) > 1 and len(known) < self._trace.world_size:
            raise self._wrong("a job of several ranks a replica has to be recorded whole")
        if both := self._shared & self._own:
            raise self._wrong(f"group {self._names[min(both)]!r} joins some replicas and belongs to others")
        self._refuse_fixed()
        return Replicas(len(numbers), len(first), places, tuple(whole), frozenset(self._shared))

    def _side_by_side(self, one: int, other: int) -> dict[int, int]:
        """For each rank of `one`'s replica the rank of `other`'s that does the same."""
        found = {one: other}
        todo = [one]
        while todo:
            rank = todo.pop()
            for group, its in self._groups_beside(rank, found[rank]):
                if group == its:
                    self._shared.add(group)
                    continue
                self._own |= {group, its}
                if len(self._members[group]) != len(self._members[its]):
                    raise self._wrong(f"groups {self._names[group]!r} and {self._names[its]!r} have different sizes")
                for member, beside in zip(self._members[group], self._members[its], strict=True):
                    if member not in self._trace.programs or beside not in self._trace.programs:
                        raise self._wrong(f"rank {member} or {beside} was not recorded")
                    if member not in found:
                        found[member] = beside
                        todo.append(member)
                    elif found[member] != beside:
                        raise self._wrong(f"rank {member} would correspond to ranks {found[member]} and {beside}")
        return found

    def _groups_beside(self, one: int, other: int) -> set[tuple[int, int]]:
        """Pairs of groups in which the two ranks did the same."""
        pairs = set()
        for left, right in zip_longest(_calls(self._trace, one), _calls(self._trace, other)):
            if left is None or right is None or name(left) != name(right):
                raise self._wrong(f"ranks {one} and {other} do not call the same")
            pairs.add((left.group, right.group))
        return pairs

    def _refuse_fixed(self) -> None:
        """What is sent to single replicas: nothing tells to whom on other ranks."""
        for rank in self._trace.programs:
            for op in _calls(self._trace, rank):
                if op.group in self._shared and name(op) in _TO_SINGLE:
                    raise self._wrong(f"group {self._names[op.group]!r}, which joins them, has {name(op)}")

    def _wrong(self, why: str) -> TraceError:
        return TraceError(f"group {self._along.name!r} does not join replicas: {why}", mend=_MEND)
