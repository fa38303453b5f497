"""PyTorch execution traces (ExecutionTraceObserver), schemas 1.0.1 to 1.1.1: what was communicated, without times
unless the trace was linked with Kineto's.

Layout: torch/csrc/profiler/standalone/execution_trace_observer.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec

from traces.errors import TraceError
from traces.formats.pytorch_nodes import Node, linked
from traces.program import UNROOTED, CollectiveKind, Finding
from traces.pytorch import nccl
from traces.pytorch.calls import (
    COMMS_NAMES,
    UNKNOWN,
    Argument,
    Call,
    c10d_call,
    dtype_of,
    in_elements,
    strided,
    unknown_operations,
)
from traces.recording import GroupInfo, Recording

NAME = "pytorch-et"

_SCHEMAS = ("1.0.1", "1.0.2", "1.0.3", "1.0.4", "1.1.0", "1.1.1")
_LONGEST = 4096  # of a longer list the recorder writes this much (torch 2.14: one more), and no sign of the rest
_GROUPS_NODE = "## process_group:init ##"
_ENDS = Finding(
    "assumed-ends",
    "linked traces keep when GPU work was launched and how long it ran, not when: it was put where its stream was free",
    "info",
)


class _Values(msgspec.Struct, frozen=True):
    values: list[Any] = []
    types: list[str] = []


class _File(msgspec.Struct, frozen=True):
    schema: str
    nodes: list[Node]
    pid: int = UNKNOWN


class _GroupConfig(msgspec.Struct, frozen=True):
    """`backend_id` is the pointer by which calls name the group in schema 1.0.2."""

    pg_name: str
    pg_desc: str = ""
    ranks: list[int] = []
    group_size: int = 0
    backend_id: int | None = None


@dataclass(frozen=True, slots=True)
class _Told:
    """What a node tells: its call, None where nothing is known of `name`, and its group where it lists that's ranks."""

    node: Node
    name: str
    call: Call | None
    group: GroupInfo | None = None


def sniff(head: bytes) -> bool:
    """Whether a file that starts with `head` (the first few KB) is an execution trace."""
    return b'"schema"' in head and b'"traceEvents"' not in head and b'"schemaVersion"' not in head


def read(data: bytes, file: str) -> Recording:
    """Decode one rank's execution trace. Raises TraceError naming `file` and the byte or field that is wrong."""
    try:
        decoded = msgspec.json.decode(data, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"not an execution trace: {error}", file=file, place=f"{len(data)} bytes") from error
    comms = [node for node in decoded.nodes if node.name == "record_param_comms"]
    told = [_told(node, file) for node in (*comms, *_untold(decoded.nodes, comms))]
    configs, findings = _configs(decoded.nodes, file)
    names = {str(config.backend_id): config.pg_name for config in configs if config.backend_id is not None}
    made = [
        (item.node, replace(item.call, group=names.get(item.call.group, item.call.group)))
        for item in told
        if item.call is not None
    ]
    made.sort(key=lambda pair: pair[1].event)
    calls = tuple(call for _, call in made)
    groups = _groups(configs, told)
    try:
        spans = linked(decoded.nodes, [node for node, _ in made], file)
    except (OverflowError, ValueError) as error:
        raise TraceError(f"a time that no clock shows: {error}", file=file) from error
    return Recording(
        file=file,
        format=NAME,
        rank=_rank(calls, groups),
        pid=decoded.pid,
        groups=groups,
        calls=calls,
        timeline=partial(nccl.timeline, spans, spans.gpu) if spans and spans.gpu else None,
        findings=(
            *_schema(decoded.schema),
            *findings,
            *([_ENDS] if spans else ()),
            *unknown_operations(item.name for item in told if item.call is None),
        ),
    )


def _untold(nodes: list[Node], comms: list[Node]) -> list[Node]:
    """Operators in which no record_param_comms lies: gloo's, and over NCCL _allgather_base before torch 2.1."""
    by_id = {node.id: node for node in nodes}
    told: set[int] = set()
    for node in comms:
        outer: Node | None = node
        while outer is not None and outer.id not in told:
            told.add(outer.id)
            outer = by_id.get(outer.above)
    return [node for node in nodes if node.name.startswith("c10d::") and node.id not in told]


def _schema(schema: str) -> tuple[Finding, ...]:
    """ "1.1.1-chakra.0.0.4" is a layout of PyTorch's, and behind the dash what it was made for."""
    if schema.partition("-")[0] in _SCHEMAS:
        return ()
    text = f"schema {schema!r} is not known here; it was read as {_SCHEMAS[-1]}"
    return (Finding("unknown-schema", text, "warning"),)


def _rank(calls: tuple[Call, ...], groups: tuple[GroupInfo, ...]) -> int:
    """The global rank of the caller: an operation without root or peer gives the caller's rank in the group."""
    members = {group.name: group.ranks for group in groups}
    for call in calls:
        ranks = members.get(call.group, ())
        if call.kind in UNROOTED and 0 <= call.root < len(ranks):
            return ranks[call.root]
    return UNKNOWN


def _told(node: Node, file: str) -> _Told:
    try:
        values, types = _inputs(node, file)
        attributes = {attribute.name: attribute.value for attribute in node.attrs}
        event = node.rf_id if node.rf_id != UNKNOWN else int(attributes.get("rf_id", UNKNOWN))
        if node.name == "record_param_comms":
            return _comms_call(node, values, types, attributes, event, file=file)
        arguments = [_argument(v, t) for v, t in zip(values, types, strict=True)]
        call = c10d_call(node.name, arguments, event=event)
        if call is not None and any(map(_is_cut, values)):
            call = replace(call, count=UNKNOWN, send_splits=(), recv_splits=(), is_cut=True)
        return _Told(node, node.name, call)
    except (TypeError, ValueError, IndexError, OverflowError, RecursionError) as error:
        if isinstance(error, TraceError):
            raise
        raise TraceError(f"{node.name} can't be read: {error}", file=file, place=f"node {node.id}") from error


def _inputs(node: Node, file: str) -> tuple[list[Any], list[str]]:
    try:
        if bytes(node.inputs).lstrip().startswith(b"["):
            values, types = msgspec.json.decode(node.inputs, type=list[Any]), node.input_types
        else:
            inner = msgspec.json.decode(node.inputs, type=_Values)
            values, types = inner.values, inner.types
    except msgspec.DecodeError as error:
        raise TraceError(f"inputs can't be read: {error}", file=file, place=f"node {node.id}") from error
    if len(values) != len(types):
        raise TraceError(f"{len(values)} inputs but {len(types)} types", file=file, place=f"node {node.id}")
    return values, types


def _argument(value: Any, type_name: str) -> Argument:
    if "Tensor" in type_name:
        return Argument(numels=tuple(_numels(value)), dtype=dtype_of(type_name))
    return Argument(value=value)


def _numels(value: Any) -> list[int]:
    """Element counts of all tensors in a value; one is [tensor id, storage id, offset, elements, item size, device]."""
    if not isinstance(value, list):
        return []
    if len(value) == 6 and isinstance(value[5], str):
        return [int(value[3])]
    return [count for part in value for count in _numels(part)]


def _comms_call(
    node: Node, values: list[Any], types: list[str], attributes: dict[str, Any], event: int, *, file: str
) -> _Told:
    """record_param_comms: [tensors,] seq, group, rank, *name*, in split, out split, [start, stride,] [group size]."""
    at = next((index for index, type_name in enumerate(types) if type_name == "String"), None)
    if at is None or at < 3:
        text = "record_param_comms without a collective's name"
        raise TraceError(text, file=file, place=f"node {node.id}")
    name = str(attributes.get("collective_name") or values[at])
    kind = COMMS_NAMES.get(name)
    if kind is None:
        return _Told(node, name, None)
    group, seq = values[at - 2], values[at - 3]
    numbers = [int(value) for value, of in zip(values[at + 3 :], types[at + 3 :], strict=True) if of == "Int"]
    splits = [values[at + way] if at + way < len(values) else None for way in (1, 2)]
    group_size = numbers[-1] if numbers else max(map(_length, splits)) or UNKNOWN
    tensors = _argument(values[0], types[0]) if at > 3 else Argument()
    # `rank` is the root or the peer where the operation has one (ProcessGroupNCCL.cpp).
    other = int(values[at - 1])
    is_async = attributes.get("is_asynchronized_op")
    has_all = bool(tensors.numels) and not _is_cut(values[0])
    count = _count(kind, sum(tensors.numels), has_all, attributes, group_size)
    received = int(attributes.get("out_msg_nelems") or UNKNOWN)
    is_cut = any(_is_cut(part) and _length(part) != group_size for part in splits)
    parts = [() if is_cut else _split(part) for part in splits]
    send, receive = in_elements((parts[0], count), (parts[1], received))
    called = str(attributes.get("pg_name") or (group[0] if isinstance(group, list) else group))
    ranks = strided(*numbers) if len(numbers) == 3 else ()
    described = str(group[-1]) if isinstance(group, list) and len(group) > 1 else ""
    call = Call(
        kind=kind,
        name=name,
        count=count,
        dtype=tensors.dtype or dtype_of(str(attributes.get("dtype", ""))),
        group=called,
        group_size=group_size,
        root=other,
        peer=other,
        send_splits=send,
        recv_splits=receive,
        is_async=bool(is_async) if is_async is not None else None,
        seq=int(seq[0] if isinstance(seq, list) else seq),
        event=event,
        is_cut=is_cut or (bool(tensors.numels) and not has_all and count == UNKNOWN),
    )
    return _Told(node, name, call, GroupInfo(called, described, ranks) if ranks and kind != "wait" else None)


def _count(kind: object, numel: int, has_tensor: bool, attributes: dict[str, Any], group_size: int) -> int:
    if kind is CollectiveKind.BARRIER:
        return 0
    if kind is CollectiveKind.REDUCE_SCATTER:
        out = attributes.get("out_msg_nelems")
        if out is not None:
            return int(out)
        return numel // group_size if has_tensor and group_size > 0 else UNKNOWN
    counted = attributes.get("in_msg_nelems")
    if counted is not None and kind != "recv":
        return int(counted)
    return numel if has_tensor else UNKNOWN


def _length(part: Any) -> int:
    return len(part) if isinstance(part, list) and "..." not in part else 0


def _is_cut(value: Any) -> bool:
    """Whether a list may have been longer; one of that very length is complete only where a group has as many ranks."""
    return isinstance(value, list) and (len(value) >= _LONGEST or "..." in value)


def _split(part: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in part) if isinstance(part, list) else ()


def _configs(nodes: Sequence[Node], file: str) -> tuple[list[_GroupConfig], tuple[Finding, ...]]:
    """What the node that lists the process groups says. Recorders cut its string where it is long."""
    node = next((node for node in nodes if node.name == _GROUPS_NODE), None)
    if node is None:
        return [], ()
    values, _ = _inputs(node, file)
    text = str(values[0]) if values else ""
    try:
        return msgspec.json.decode(text, type=list[_GroupConfig]), ()
    except msgspec.DecodeError:
        whole, closes, _ = text.rpartition("}")
    said = Finding("cut-list", "the list of process groups was cut by the recorder; the rest of it is not known")
    try:
        return msgspec.json.decode(f"{whole}{closes}]", type=list[_GroupConfig]), (said,)
    except msgspec.DecodeError:
        return [], (said,)


def _groups(configs: Sequence[_GroupConfig], told: Sequence[_Told]) -> tuple[GroupInfo, ...]:
    """Process groups as the trace lists them, where `ranks` of () means every rank; else as their calls do."""
    groups = {
        config.pg_name: GroupInfo(
            config.pg_name, config.pg_desc, tuple(config.ranks) or strided(0, 1, config.group_size)
        )
        for config in configs
    }
    for item in told:
        if item.group is not None:
            groups.setdefault(item.group.name, item.group)
    return tuple(group for group in groups.values() if group.ranks)
