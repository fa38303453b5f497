"""Chakra execution traces (`NAME.RANK.et`): each rank a graph of nodes in protobuf, one file a rank.

Schema: MLCommons Chakra schema/protobuf/et_def.proto. A file is messages with their lengths in front: GlobalMetadata, then
Nodes. Sizes are in bytes, durations in microseconds; a collective's `comm_size` is the sum of what goes in. Beside them may lie
ASTRA-sim's comm_group.json, the ranks of the groups that `pg_name` names. Steps are nodes of our own that take no time.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Annotated

import msgspec

from traces import graph
from traces.errors import TraceError
from traces.files import Opened
from traces.graph import Graph, Node
from traces.program import (
    ROOTED,
    Collective,
    CollectiveKind,
    Communication,
    Compute,
    DType,
    Finding,
    Group,
    Recv,
    Send,
    Severity,
    StepMark,
    Trace,
    op_bytes,
)
from traces.protobuf import encoded, field, fields, varint

NAME = "chakra"
MAX_RANKS = 1 << 20
MAX_TAG = (1 << 31) - 1

_SEND, _RECV, _COLLECTIVE = 5, 6, 7
_KINDS = {
    0: CollectiveKind.ALL_REDUCE, 1: CollectiveKind.REDUCE, 2: CollectiveKind.ALL_GATHER, 3: CollectiveKind.GATHER,
    4: CollectiveKind.SCATTER, 5: CollectiveKind.BROADCAST, 6: CollectiveKind.ALL_TO_ALL,
    7: CollectiveKind.REDUCE_SCATTER, 8: CollectiveKind.REDUCE_SCATTER, 9: CollectiveKind.BARRIER,
}  # fmt: skip
_COMPUTE = 4
_KEYS = {kind: key for key, kind in reversed(_KINDS.items())}
_GROUPS = re.compile(rb'\s*\{\s*"\d{1,9}"\s*:\s*\[')
_STEP = re.compile(r"step (\d{1,9}) ends$")
_IN_ALL = {CollectiveKind.REDUCE_SCATTER, CollectiveKind.SCATTER}  # a rank's count is a part of what goes in
_REDUCING = {CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE, CollectiveKind.REDUCE_SCATTER}
_RANK = re.compile(r"\.(\d{1,6})\.et$")


_RankNumber = Annotated[int, msgspec.Meta(ge=0, lt=MAX_RANKS)]


def sniff(head: bytes) -> bool:
    """Whether a file that starts with `head` is a Chakra trace: metadata, then a node with its id (left out if 0) or name.

    Or the groups of one.
    """
    if _GROUPS.match(head):
        return True
    try:
        size, at = varint(head, 0)
        if size == 0 or head[at : at + 1] not in (b"\x0a", b"\x12"):
            return False
        if at + size >= len(head):
            return at + size == len(head) or size > len(head)
        _, behind = varint(head, at + size)
        return {number for number, _ in fields(head[at : at + size])} <= {1, 2} and head[behind] in b"\x08\x12"
    except (ValueError, IndexError):
        return False


def read(files: Sequence[Opened]) -> Trace:
    """The job in these files, of one rank each. Raises TraceError naming the file and byte that are wrong."""
    ranks: dict[int, _Rank] = {}
    told: dict[str, tuple[int, ...]] = {}
    traces = [file for file in files if not _GROUPS.match(file.data)]
    if not traces:
        raise TraceError("groups without a trace", file=files[0].name, mend="name the .et files too")
    for file in files:
        if file not in traces:
            told |= _told(file)
            continue
        rank = _rank(file.name, alone=len(traces) == 1)
        if rank in ranks:
            raise TraceError(f"rank {rank} is given twice", file=file.name)
        ranks[rank] = _Rank(file)
    partners = [op.peer for r in ranks.values() for op in r.ops.values() if isinstance(op, Send | Recv)]
    world_size = max([*ranks, *partners, *(member for members in told.values() for member in members)]) + 1
    if world_size > MAX_RANKS:
        raise TraceError(f"rank {world_size - 1} is beyond {MAX_RANKS}", file=traces[0].name)
    groups = [Group(0, "0", tuple(range(world_size)), 0, "default_pg")]
    groups += [Group(number, name, members, number) for number, (name, members) in enumerate(told.items(), 1)]
    said: Counter[str] = Counter()
    graphs = {rank: own.graph(groups, said) for rank, own in sorted(ranks.items())}
    programs, findings = graph.programs(graphs, {group.id: len(group.ranks) for group in groups})
    programs = graph.one_step(programs)
    return Trace(
        world_size=world_size,
        groups=tuple(groups),
        programs=programs,
        step_count=min(sum(isinstance(op, StepMark) for op in p.ops) for p in programs.values()),
        findings=(*(_finding(code, number) for code, number in sorted((+said).items())), *findings),
    )


def _told(file: Opened) -> dict[str, tuple[int, ...]]:
    """comm_group.json: a group's name and its ranks."""
    try:
        return msgspec.json.decode(file.data, type=dict[str, tuple[_RankNumber, ...]])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"not a list of groups: {error}", file=file.name) from error


_SAID: dict[str, tuple[str, Severity]] = {
    "assumed-reduce-op": ("reductions have no recorded operation; sum was taken", "info"),
    "assumed-root": ("operations have no recorded root; the group's first rank was taken", "info"),
    "assumed-group": ("collectives name a group whose ranks no file says; all ranks were taken", "warning"),
    "circles": ("dependencies on nodes further down were left out, as nodes follow each other in circles", "warning"),
    "missing-dependency": ("dependencies are on nodes that the file does not hold; left out", "warning"),
    "no-sizes": ("operations have no recorded size", "error"),
}


def _finding(code: str, number: int) -> Finding:
    text, severity = _SAID[code]
    return Finding(code, f"{number} {text}", severity, replayable=severity != "error")


def _rank(name: str, *, alone: bool) -> int:
    found = _RANK.search(name)
    if found is None and not alone:
        raise TraceError("which rank this is can't be told", file=name, mend="name it NAME.RANK.et")
    return int(found[1]) if found else 0


@dataclass(slots=True)
class _Raw:
    """A node as it is written. `attributes` holds numbers and text by name."""

    type: int = 0
    name: str = ""
    duration_us: int = 0
    control: list[int] = dataclasses.field(default_factory=list)
    data: list[int] = dataclasses.field(default_factory=list)
    attributes: dict[str, int | bytes] = dataclasses.field(default_factory=dict)


class _Rank:
    """One file: its nodes in order, and the operations they stand for."""

    def __init__(self, file: Opened) -> None:
        self._file = file.name
        self._nodes: dict[int, _Raw] = {}
        self.ops: dict[int, Compute | Communication | StepMark] = {}
        for start, number, message in _messages(file):
            try:
                if number:
                    identity, raw = _node(message)
                    self._nodes[identity] = raw
                    self.ops[identity] = _operation(raw)
            except ValueError as error:
                raise TraceError(f"not a Chakra node: {error}", file=file.name, place=f"byte {start}") from error

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
    op: Compute | Communication | StepMark, raw: _Raw, groups: Sequence[Group], said: Counter[str]
) -> Compute | Communication | StepMark:
    """`op` with what has to be known of the job: counts as our collectives have them; and what was taken for granted."""
    if not isinstance(op, Communication):
        return op
    said["no-sizes"] += (
        "comm_size" not in raw.attributes and raw.attributes.get("comm_type") != _KEYS[CollectiveKind.BARRIER]
    )
    if not isinstance(op, Collective):
        return op
    named = raw.attributes.get("pg_name", b"")
    group = next((g for g in groups[1:] if isinstance(named, bytes) and g.name.encode() == named), groups[0])
    said["assumed-group"] += bool(named) and group is groups[0]
    said["assumed-reduce-op"] += op.kind in _REDUCING
    said["assumed-root"] += op.kind in ROOTED
    parts = max(1, len(group.ranks)) if op.kind in _IN_ALL else 1
    root = group.ranks[0] if op.kind in ROOTED and group.ranks else -1
    return Collective(op.kind, group.id, op.count // parts, root=root, name=raw.name)


def _operation(raw: _Raw) -> Compute | Communication | StepMark:
    """Collectives that the CPU only calls have type 7 too, but no `comm_type`: they are the CPU's work."""
    count = _number(raw, "comm_size", 0)
    if raw.type == _SEND:
        return Send(_number(raw, "comm_dst"), count, tag=_number(raw, "comm_tag", 0, MAX_TAG), name=raw.name)
    if raw.type == _RECV:
        return Recv(_number(raw, "comm_src"), count, tag=_number(raw, "comm_tag", 0, MAX_TAG), name=raw.name)
    if raw.type == _COLLECTIVE and "comm_type" in raw.attributes:
        kind = _KINDS.get(_number(raw, "comm_type"))
        if kind is None:
            raise ValueError(f"no collective has the number {raw.attributes['comm_type']!r}")
        return Collective(kind, 0, count, name=raw.name)
    if marked := _STEP.match(raw.name):
        return StepMark(int(marked[1]))
    return Compute(raw.duration_us * 1000, raw.name if raw.duration_us else "")


def _number(raw: _Raw, name: str, default: int | None = None, most: int = 1 << 62) -> int:
    value = raw.attributes.get(name, default)
    if not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError(f"{name} of {raw.name!r} is {value!r}")
    return value


def _node(message: bytes) -> tuple[int, _Raw]:
    identity, raw = 0, _Raw()
    for number, value in fields(message):
        match number, value:
            case 1, int():
                identity = value
            case 2, bytes():
                raw.name = value.decode("utf-8", "replace")
            case 3, int():
                raw.type = value
            case ((4 | 5), int()):
                (raw.control if number == 4 else raw.data).append(value)
            case ((4 | 5), bytes()):
                at = 0
                while at < len(value):
                    earlier, at = varint(value, at)
                    (raw.control if number == 4 else raw.data).append(earlier)
            case 7, int():
                raw.duration_us = min(value, 1 << 50)
            case 10, bytes():
                parts = dict(fields(value))
                name = parts.pop(1, b"")
                if isinstance(name, bytes) and parts:
                    raw.attributes[name.decode("utf-8", "replace")] = next(iter(parts.values()))
    return identity, raw


def _messages(file: Opened) -> Iterator[tuple[int, int, bytes]]:
    """(where it starts, its number, its bytes) of each message. Raises TraceError where the file is cut."""
    at = number = 0
    while at < len(file.data):
        start = at
        try:
            size, at = varint(file.data, at)
        except ValueError as error:
            raise TraceError(f"no length: {error}", file=file.name, place=f"byte {start}") from error
        if at + size > len(file.data):
            raise TraceError("the file ends inside a node", file=file.name, place=f"byte {start}", mend="copy it again")
        yield start, number, file.data[at : at + size]
        at += size
        number += 1


def write(trace: Trace) -> tuple[dict[str, bytes], tuple[Finding, ...]]:
    """The files by name, and what they do not say. Groups that are not all ranks are in comm_group.json.

    Raises TraceError for a tag below 0.
    """
    groups = {group.id: group for group in trace.groups}
    everyone = tuple(range(trace.world_size))
    said: Counter[str] = Counter()
    files = {}
    for rank, program in sorted(trace.programs.items()):
        nodes = graph.graph_of(program, {group.id: group.lane for group in trace.groups})
        messages = [field(1, b"0.0.4"), *(_message(i, node, groups, everyone, said) for i, node in enumerate(nodes))]
        files[f"trace.{rank}.et"] = b"".join(encoded(len(message)) + message for message in messages)
    small = {str(group.id): group.ranks for group in trace.groups if group.ranks != everyone}
    if small:
        files["comm_group.json"] = msgspec.json.encode(small)
    return files, tuple(Finding(code, f"{n} {_LOST[code]}", "info") for code, n in sorted((+said).items()))


_LOST = {
    "lost-dtype": "operations have element types; the format has bytes only",
    "lost-group": "messages are of a group of their own; the format has their tags only",
    "lost-reduce-op": "reductions are no sums; the format has no operation",
    "lost-root": "operations have a root that is not their group's first rank; the format has none",
    "lost-splits": "all_to_alls are uneven; the format has their size only",
    "rounded": "computations were rounded to a microsecond",
}


def _message(
    index: int, node: Node, groups: Mapping[int, Group], everyone: tuple[int, ...], said: Counter[str]
) -> bytes:
    """A Node. Ids are from 1 on: protobuf leaves 0 out."""
    op, attributes, duration = node.op, [_attribute("is_cpu_op", 27, 0)], 0
    if isinstance(op, StepMark):
        kind, name = _COMPUTE, f"step {op.step} ends"
    elif isinstance(op, Compute):
        kind, name, duration = _COMPUTE, op.name or "compute", (op.ns + 500) // 1000
        said["rounded"] += op.ns % 1000 > 0
    else:
        size = op_bytes(op)
        said["lost-dtype"] += op.dtype is not DType.UINT8
        if isinstance(op, Collective):
            kind, name, ranks = _COLLECTIVE, op.name or op.kind, groups[op.group].ranks
            size *= len(ranks) if op.kind in _IN_ALL else 1
            said["lost-reduce-op"] += op.kind in _REDUCING and op.reduce_op != "sum"
            said["lost-root"] += op.kind in ROOTED and op.root != ranks[0]
            said["lost-splits"] += len({*op.send_splits, *op.recv_splits}) > 1
            attributes.append(_attribute("comm_type", 9, _KEYS[op.kind]))
            attributes += [_attribute("pg_name", 29, str(op.group).encode())] if ranks != everyone else []
        else:
            kind, way = (_SEND, "dst") if isinstance(op, Send) else (_RECV, "src")
            name = op.name or type(op).__name__.lower()
            said["lost-group"] += op.group != 0
            if op.tag < 0:
                raise TraceError(f"{name} has tag {op.tag}", mend="the format's tags are from 0 on")
            attributes += [_attribute(f"comm_{way}", 7, op.peer), _attribute("comm_tag", 7, op.tag)]
        attributes.append(_attribute("comm_size", 9, size))
    control, data = (b"".join(encoded(earlier + 1) for earlier in nodes) for nodes in (node.beside, node.after))
    parts = [field(1, index + 1), field(2, name.encode()), field(3, kind), field(4, control), field(5, data)]
    parts.append(field(7, duration))
    return b"".join([*parts, *attributes])


def _attribute(name: str, number: int, value: int | bytes) -> bytes:
    return field(10, field(1, name.encode()) + field(number, value))
