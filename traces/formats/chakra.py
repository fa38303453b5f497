"""Chakra execution traces (`NAME.RANK.et`): each rank a graph of nodes in protobuf, one file a rank.

Schema: MLCommons Chakra schema/protobuf/et_def.proto. A file is messages with their lengths in front: GlobalMetadata, then
Nodes. Sizes are in bytes, durations in microseconds; a collective's `comm_size` is the sum of what goes in.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

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
    Finding,
    Group,
    Recv,
    Send,
    Severity,
    Trace,
)

NAME = "chakra"
MAX_RANKS = 1 << 20
MAX_TAG = (1 << 31) - 1

_SEND, _RECV, _COLLECTIVE = 5, 6, 7
_KINDS = {
    0: CollectiveKind.ALL_REDUCE, 1: CollectiveKind.REDUCE, 2: CollectiveKind.ALL_GATHER, 3: CollectiveKind.GATHER,
    4: CollectiveKind.SCATTER, 5: CollectiveKind.BROADCAST, 6: CollectiveKind.ALL_TO_ALL,
    7: CollectiveKind.REDUCE_SCATTER, 8: CollectiveKind.REDUCE_SCATTER, 9: CollectiveKind.BARRIER,
}  # fmt: skip
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_RANK = re.compile(r"\.(\d{1,6})\.et$")


def sniff(head: bytes) -> bool:
    """Whether a file that starts with `head` is a Chakra trace: metadata, then a node with its id (left out if 0) or name."""
    try:
        size, at = _varint(head, 0)
        if size == 0 or head[at : at + 1] not in (b"\x0a", b"\x12"):
            return False
        if at + size >= len(head):
            return at + size == len(head) or size > len(head)
        _, behind = _varint(head, at + size)
        return {number for number, _ in _fields(head[at : at + size])} <= {1, 2} and head[behind] in b"\x08\x12"
    except (ValueError, IndexError):
        return False


def read(files: Sequence[Opened]) -> Trace:
    """The job in these files, of one rank each. Raises TraceError naming the file and byte that are wrong."""
    ranks: dict[int, _Rank] = {}
    for file in files:
        rank = _rank(file.name, alone=len(files) == 1)
        if rank in ranks:
            raise TraceError(f"rank {rank} is given twice", file=file.name)
        ranks[rank] = _Rank(file)
    partners = [op.peer for r in ranks.values() for op in r.ops.values() if isinstance(op, Send | Recv)]
    world_size = max([*ranks, *partners]) + 1
    if world_size > MAX_RANKS:
        raise TraceError(f"rank {world_size - 1} is beyond {MAX_RANKS}", file=files[0].name)
    said: Counter[str] = Counter()
    graphs = {rank: own.graph(world_size, said) for rank, own in sorted(ranks.items())}
    programs, findings = graph.programs(graphs, {0: world_size})
    return Trace(
        world_size=world_size,
        groups=(Group(0, "0", tuple(range(world_size)), 0, "default_pg"),),
        programs=graph.one_step(programs),
        step_count=1,
        findings=(*(_finding(code, number) for code, number in sorted((+said).items())), *findings),
    )


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
    follows: list[int] = field(default_factory=list)
    attributes: dict[str, int | bytes] = field(default_factory=dict)


class _Rank:
    """One file: its nodes in order, and the operations they stand for."""

    def __init__(self, file: Opened) -> None:
        self._file = file.name
        self._nodes: dict[int, _Raw] = {}
        self.ops: dict[int, Compute | Communication] = {}
        for start, number, message in _messages(file):
            try:
                if number:
                    identity, raw = _node(message)
                    self._nodes[identity] = raw
                    self.ops[identity] = _operation(raw)
            except ValueError as error:
                raise TraceError(f"not a Chakra node: {error}", file=file.name, place=f"byte {start}") from error

    def graph(self, world_size: int, said: Counter[str]) -> Graph:
        places = {identity: place for place, identity in enumerate(self._nodes)}
        follows = {
            place: {places[earlier] for earlier in raw.follows if earlier in places}
            for place, raw in enumerate(self._nodes.values())
        }
        said["missing-dependency"] += sum(e not in places for raw in self._nodes.values() for e in raw.follows)
        try:
            TopologicalSorter(follows).prepare()
        except CycleError:
            said["circles"] += sum(earlier >= place for place, after in follows.items() for earlier in after)
            follows = {place: {earlier for earlier in after if earlier < place} for place, after in follows.items()}
        return tuple(
            Node(self._completed(op, raw, world_size, said), tuple(sorted(after)))
            for op, raw, after in zip(self.ops.values(), self._nodes.values(), follows.values(), strict=True)
        )

    def _completed(
        self, op: Compute | Communication, raw: _Raw, size: int, said: Counter[str]
    ) -> Compute | Communication:
        """`op` with what has to be known of the job: counts as our collectives have them; and what was taken for granted."""
        if isinstance(op, Compute):
            return op
        if "comm_size" not in raw.attributes and not (isinstance(op, Collective) and op.kind is CollectiveKind.BARRIER):
            said["no-sizes"] += 1
        if not isinstance(op, Collective):
            return op
        said["assumed-reduce-op"] += op.kind in (
            CollectiveKind.ALL_REDUCE,
            CollectiveKind.REDUCE,
            CollectiveKind.REDUCE_SCATTER,
        )
        said["assumed-root"] += op.kind in ROOTED
        said["assumed-group"] += bool(raw.attributes.get("pg_name"))
        parts = size if op.kind in (CollectiveKind.REDUCE_SCATTER, CollectiveKind.SCATTER) else 1
        root = 0 if op.kind in ROOTED else -1
        return Collective(op.kind, 0, op.count // parts, root=root, name=raw.name)


def _operation(raw: _Raw) -> Compute | Communication:
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
    return Compute(raw.duration_us * 1000, raw.name if raw.duration_us else "")


def _number(raw: _Raw, name: str, default: int | None = None, most: int = 1 << 62) -> int:
    value = raw.attributes.get(name, default)
    if not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError(f"{name} of {raw.name!r} is {value!r}")
    return value


def _node(message: bytes) -> tuple[int, _Raw]:
    identity, raw = 0, _Raw()
    for number, value in _fields(message):
        match number, value:
            case 1, int():
                identity = value
            case 2, bytes():
                raw.name = value.decode("utf-8", "replace")
            case 3, int():
                raw.type = value
            case ((4 | 5), int()):
                raw.follows.append(value)
            case ((4 | 5), bytes()):
                at = 0
                while at < len(value):
                    earlier, at = _varint(value, at)
                    raw.follows.append(earlier)
            case 7, int():
                raw.duration_us = min(value, 1 << 50)
            case 10, bytes():
                parts = dict(_fields(value))
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
            size, at = _varint(file.data, at)
        except ValueError as error:
            raise TraceError(f"no length: {error}", file=file.name, place=f"byte {start}") from error
        if at + size > len(file.data):
            raise TraceError("the file ends inside a node", file=file.name, place=f"byte {start}", mend="copy it again")
        yield start, number, file.data[at : at + size]
        at += size
        number += 1


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """(the number, where it ends), protobuf's base 128. ValueError where it is cut or has more than 64 bits."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("a number is cut")
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
    raise ValueError("a number has more than 64 bits")


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) of a message. ValueError where it is none."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        value: int | bytes
        if key & 7 == _VARINT:
            value, at = _varint(data, at)
        elif key & 7 in (_FIXED64, _BYTES, _FIXED32):
            size, at = _varint(data, at) if key & 7 == _BYTES else (8 if key & 7 == _FIXED64 else 4, at)
            if at + size > len(data):
                raise ValueError("a field is cut")
            value, at = data[at : at + size], at + size
        else:
            raise ValueError(f"field type {key & 7}")
        yield key >> 3, value
