"""Chakra's nodes, whichever way they are written down: what operations they stand for, and the job they make.

Meaning of types and attributes: MLCommons Chakra schema/protobuf/et_def.proto. Sizes are in bytes, durations in microseconds; a
collective's `comm_size` is the sum of what goes in. Steps are nodes of our own that take no time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Annotated

import msgspec

from traces import graph
from traces.counted import counted
from traces.errors import TraceError
from traces.files import Opened
from traces.graph import Graph, Node
from traces.program import (
    ROOTED,
    Collective,
    CollectiveKind,
    Communication,
    Compute,
    Group,
    Recv,
    Send,
    Severity,
    StepMark,
    Trace,
)
from traces.pytorch.calls import MAX_RANKS

MAX_TAG = (1 << 31) - 1
COMPUTE, SEND, RECV, COLLECTIVE = 4, 5, 6, 7  # NodeType
KINDS = {
    0: CollectiveKind.ALL_REDUCE, 1: CollectiveKind.REDUCE, 2: CollectiveKind.ALL_GATHER, 3: CollectiveKind.GATHER,
    4: CollectiveKind.SCATTER, 5: CollectiveKind.BROADCAST, 6: CollectiveKind.ALL_TO_ALL,
    7: CollectiveKind.REDUCE_SCATTER, 8: CollectiveKind.REDUCE_SCATTER, 9: CollectiveKind.BARRIER,
}  # fmt: skip
KEYS = {kind: key for key, kind in reversed(KINDS.items())}
IN_ALL = {CollectiveKind.REDUCE_SCATTER, CollectiveKind.SCATTER}  # a rank's count is a part of what goes in
REDUCING = {CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE, CollectiveKind.REDUCE_SCATTER}

_MAX_US = 1 << 50
_GROUPS = re.compile(rb'\s*\{\s*"\d{1,9}"\s*:\s*\[')
_STEP = re.compile(r"step (\d{1,9}) ends$")
_RANK = re.compile(r"\.(\d{1,6})\.(?:et|json)$")
_RankNumber = Annotated[int, msgspec.Meta(ge=0, lt=MAX_RANKS)]


@dataclass(slots=True)
class Raw:
    """A node as it is written. `attributes` holds numbers and text by name."""

    id: int
    type: int = 0
    name: str = ""
    duration_us: int = 0
    control: Sequence[int] = ()
    data: Sequence[int] = ()
    attributes: dict[str, object] = field(default_factory=dict)


def is_groups(head: bytes) -> bool:
    """Whether this is ASTRA-sim's comm_group.json, the ranks of the groups that `pg_name` names."""
    return _GROUPS.match(head) is not None


def job(files: Sequence[Opened], nodes: Callable[[Opened, Counter[str]], Iterable[tuple[str, Raw]]]) -> Trace:
    """The job in these files, of one rank each; `nodes` gives a file's, each with its place, and counts what it assumed.

    Raises TraceError naming the file and place that are wrong.
    """
    ranks: dict[int, _Rank] = {}
    told: dict[str, tuple[int, ...]] = {}
    said: Counter[str] = Counter()
    traces = [file for file in files if not is_groups(file.data)]
    if not traces:
        raise TraceError("groups without a trace", file=files[0].name, mend="name the files of the ranks too")
    for file in files:
        if file not in traces:
            told |= _told(file)
            continue
        rank = _rank(file.name, alone=len(traces) == 1)
        if rank in ranks:
            raise TraceError(f"rank {rank} is given twice", file=file.name)
        ranks[rank] = _Rank(file.name, nodes(file, said))
    if not any(isinstance(op, Communication) for own in ranks.values() for op in own.ops.values()):
        raise TraceError("no node communicates", file=traces[0].name, mend="record or convert it with its collectives")
    partners = [op.peer for r in ranks.values() for op in r.ops.values() if isinstance(op, Send | Recv)]
    world_size = max([*ranks, *partners, *(member for members in told.values() for member in members)]) + 1
    if world_size > MAX_RANKS:
        raise TraceError(f"rank {world_size - 1} is beyond {MAX_RANKS}", file=traces[0].name)
    groups = [Group(0, "0", tuple(range(world_size)), 0, "default_pg")]
    groups += [Group(number, name, members, number) for number, (name, members) in enumerate(told.items(), 1)]
    graphs = {rank: own.graph(groups, said) for rank, own in sorted(ranks.items())}
    programs, findings = graph.programs(graphs, {group.id: len(group.ranks) for group in groups})
    programs = graph.one_step(programs)
    return Trace(
        world_size=world_size,
        groups=tuple(groups),
        programs=programs,
        step_count=min(sum(isinstance(op, StepMark) for op in p.ops) for p in programs.values()),
        findings=(*counted(sorted(said.items()), _SAID), *findings),
    )


def _told(file: Opened) -> dict[str, tuple[int, ...]]:
    """comm_group.json: a group's name and its ranks."""
    try:
        return msgspec.json.decode(file.data, type=dict[str, tuple[_RankNumber, ...]])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"not a list of groups: {error}", file=file.name) from error


_SAID: dict[str, tuple[str, Severity]] = {
    "assumed-group": ("collectives name a group whose ranks no file says; all ranks were taken", "warning"),
    "assumed-kind": ("collectives have no recorded kind; the name of their kernel tells it", "info"),
    "assumed-reduce-op": ("reductions have no recorded operation; sum was taken", "info"),
    "assumed-root": ("operations have no recorded root; the group's first rank was taken", "info"),
    "circles": ("dependencies on nodes further down were left out, as nodes follow each other in circles", "warning"),
    "missing-dependency": ("dependencies are on nodes that the file does not hold; left out", "warning"),
    "no-kind": ("collectives have no recorded kind and were left out", "error"),
    "no-sizes": ("operations have no recorded size", "error"),
}


def _rank(name: str, *, alone: bool) -> int:
    found = _RANK.search(name)
    if found is None and not alone:
        raise TraceError("which rank this is can't be told", file=name, mend="name it NAME.RANK.et or NAME.RANK.json")
    return int(found[1]) if found else 0


class _Rank:
    """One file: its nodes in order, and the operations they stand for."""

    def __init__(self, file: str, nodes: Iterable[tuple[str, Raw]]) -> None:
        self._nodes: dict[int, Raw] = {}
        self.ops: dict[int, Compute | Communication | StepMark] = {}
        for place, raw in nodes:
            try:
                self._nodes[raw.id] = raw
                self.ops[raw.id] = _operation(raw)
            except ValueError as error:
                raise TraceError(f"not a Chakra node: {error}", file=file, place=place) from error

    def graph(self, groups: Sequence[Group], said: Counter[str]) -> Graph:
        places = {identity: place for place, identity in enumerate(self._nodes)}
        ops = [
            _completed(op, raw, groups, said) for op, raw in zip(self.ops.values(), self._nodes.values(), strict=True)
        ]
        after: dict[int, set[int]] = {}
        beside: dict[int, set[int]] = {}
        for place, raw in enumerate(self._nodes.values()):
            said["missing-dependency"] += sum(earlier not in places for earlier in (*raw.control, *raw.data))
            control, data = ({places[e] for e in earlier if e in places} for earlier in (raw.control, raw.data))
            beside[place] = {earlier for earlier in control - data if _in_one_lane(ops[place], ops[earlier])}
            after[place] = data | control - beside[place]
        try:
            TopologicalSorter({place: after[place] | beside[place] for place in after}).prepare()
        except CycleError:
            for kept in (after, beside):
                said["circles"] += sum(earlier >= place for place in kept for earlier in kept[place])
                kept |= {place: {earlier for earlier in kept[place] if earlier < place} for place in kept}
        return tuple(Node(op, tuple(sorted(after[i])), tuple(sorted(beside[i]))) for i, op in enumerate(ops))


def _in_one_lane(one: object, other: object) -> bool:
    """A collective that the host calls behind one of its group needn't wait for it: the group does one at a time."""
    return isinstance(one, Collective) and isinstance(other, Collective) and one.group == other.group


def _completed(
    op: Compute | Communication | StepMark, raw: Raw, groups: Sequence[Group], said: Counter[str]
) -> Compute | Communication | StepMark:
    """`op` with what has to be known of the job: counts as our collectives have them; and what was taken for granted."""
    if not isinstance(op, Communication):
        return op
    said["no-sizes"] += (
        "comm_size" not in raw.attributes and raw.attributes.get("comm_type") != KEYS[CollectiveKind.BARRIER]
    )
    if not isinstance(op, Collective):
        return op
    named = raw.attributes.get("pg_name", "")
    group = next((group for group in groups[1:] if group.name == named), groups[0])
    said["assumed-group"] += bool(named) and group is groups[0]
    said["assumed-reduce-op"] += op.kind in REDUCING
    said["assumed-root"] += op.kind in ROOTED
    parts = max(1, len(group.ranks)) if op.kind in IN_ALL else 1
    root = group.ranks[0] if op.kind in ROOTED and group.ranks else -1
    return Collective(op.kind, group.id, op.count // parts, root=root, name=raw.name)


def _operation(raw: Raw) -> Compute | Communication | StepMark:
    """Collectives that the CPU only calls have type 7 too, but no `comm_type`: they are the CPU's work."""
    count = _number(raw, "comm_size", 0)
    if raw.type == SEND:
        return Send(_number(raw, "comm_dst"), count, tag=_number(raw, "comm_tag", 0, MAX_TAG), name=raw.name)
    if raw.type == RECV:
        return Recv(_number(raw, "comm_src"), count, tag=_number(raw, "comm_tag", 0, MAX_TAG), name=raw.name)
    if raw.type == COLLECTIVE and "comm_type" in raw.attributes:
        kind = KINDS.get(_number(raw, "comm_type"))
        if kind is None:
            raise ValueError(f"no collective has the number {raw.attributes['comm_type']!r}")
        return Collective(kind, 0, count, name=raw.name)
    if marked := _STEP.match(raw.name):
        return StepMark(int(marked[1]))
    return Compute(min(raw.duration_us, _MAX_US) * 1000, raw.name if raw.duration_us else "")


def _number(raw: Raw, name: str, default: int | None = None, most: int = 1 << 62) -> int:
    value = raw.attributes.get(name, default)
    if not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError(f"{name} of {raw.name!r} is {value!r}")
    return value
