"""PyTorch execution traces (ExecutionTraceObserver), schemas 1.0.1 to 1.1.1: what was communicated, without times.

Layout: torch/csrc/profiler/standalone/execution_trace_observer.cpp.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from traces.errors import TraceError
from traces.program import ROOTED, CollectiveKind
from traces.pytorch.calls import (
    COMMS_NAMES,
    UNKNOWN,
    Argument,
    Call,
    c10d_call,
    dtype_of,
    in_elements,
    unknown_operations,
)
from traces.recording import GroupInfo, Recording

NAME = "pytorch-et"

_CALLERS = {*CollectiveKind} - ROOTED
_GROUPS_NODE = "## process_group:init ##"


class _Values(msgspec.Struct, frozen=True):
    values: list[Any] = []
    types: list[str] = []


class _Attribute(msgspec.Struct, frozen=True):
    name: str
    value: Any = None


class _Node(msgspec.Struct, frozen=True):
    """Schema 1.0.1 has `parent`, and `inputs` as a plain list (with `input_types` beside it), an object later."""

    name: str
    id: int
    parent: int = UNKNOWN
    ctrl_deps: int = UNKNOWN  # the parent since 1.0.2
    rf_id: int = UNKNOWN
    inputs: msgspec.Raw = msgspec.Raw(b"[]")
    input_types: list[str] = []
    attrs: list[_Attribute] = []


class _File(msgspec.Struct, frozen=True):
    schema: str
    nodes: list[_Node]
    pid: int = UNKNOWN


class _GroupConfig(msgspec.Struct, frozen=True):
    pg_name: str
    pg_desc: str = ""
    ranks: list[int] = []
    group_size: int = 0


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
    calls: list[Call] = []
    unknown: Counter[str] = Counter()
    for node in [*comms, *_untold(decoded.nodes, comms)]:
        call = _checked_call(node, file)
        if isinstance(call, Call):
            calls.append(call)
        else:
            unknown[call] += 1
    calls.sort(key=lambda call: call.event)
    groups = _groups(decoded.nodes, file)
    return Recording(
        file=file,
        format=NAME,
        rank=_rank(calls, groups),
        pid=decoded.pid,
        groups=groups,
        calls=tuple(calls),
        findings=unknown_operations(unknown),
    )


def _untold(nodes: list[_Node], comms: list[_Node]) -> list[_Node]:
    """Operators in which no record_param_comms lies: gloo's, and over NCCL _allgather_base before torch 2.1."""
    by_id = {node.id: node for node in nodes}
    told: set[int] = set()
    for node in comms:
        outer: _Node | None = node
        while outer is not None and outer.id not in told:
            told.add(outer.id)
            outer = by_id.get(outer.parent if outer.parent != UNKNOWN else outer.ctrl_deps)
    return [node for node in nodes if node.name.startswith("c10d::") and node.id not in told]


def _rank(calls: list[Call], groups: tuple[GroupInfo, ...]) -> int:
    """The global rank of the caller: an operation without root or peer gives the caller's rank in the group."""
    members = {group.name: group.ranks for group in groups}
    for call in calls:
        ranks = members.get(call.group, ())
        if call.kind in _CALLERS and 0 <= call.root < len(ranks):
            return ranks[call.root]
    return UNKNOWN


def _checked_call(node: _Node, file: str) -> Call | str:
    try:
        return _call(node, file)
    except (TypeError, ValueError, IndexError) as error:
        if isinstance(error, TraceError):
            raise
        raise TraceError(f"{node.name} can't be read: {error}", file=file, place=f"node {node.id}") from error


def _call(node: _Node, file: str) -> Call | str:
    """The call, or the name of an operation of no known kind."""
    values, types = _inputs(node, file)
    attributes = {attribute.name: attribute.value for attribute in node.attrs}
    event = node.rf_id if node.rf_id != UNKNOWN else int(attributes.get("rf_id", UNKNOWN))
    if node.name == "record_param_comms":
        return _comms_call(values, types, attributes, event, place=f"node {node.id}", file=file)
    return c10d_call(node.name, [_argument(v, t) for v, t in zip(values, types, strict=True)], event=event) or node.name


def _inputs(node: _Node, file: str) -> tuple[list[Any], list[str]]:
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
    values: list[Any], types: list[str], attributes: dict[str, Any], event: int, *, place: str, file: str
) -> Call | str:
    """record_param_comms: [tensors,] seq, group, rank, *name*, in split, out split, [start, stride,] [group size]."""
    at = next((index for index, type_name in enumerate(types) if type_name == "String"), None)
    if at is None or at < 3:
        raise TraceError("record_param_comms without a collective's name", file=file, place=place)
    name = str(attributes.get("collective_name") or values[at])
    kind = COMMS_NAMES.get(name)
    if kind is None:
        return name
    group = values[at - 2]
    seq = values[at - 3]
    sizes = types[at + 3 :].count("Int")
    group_size = int(values[-1]) if sizes else UNKNOWN
    tensors = _argument(values[0], types[0]) if at > 3 else Argument()
    # `rank` is the root or the peer where the operation has one (ProcessGroupNCCL.cpp).
    other = int(values[at - 1])
    is_async = attributes.get("is_asynchronized_op")
    count = _count(kind, sum(tensors.numels), bool(tensors.numels), attributes, group_size)
    received = int(attributes.get("out_msg_nelems") or UNKNOWN)
    send, receive = in_elements((_split(values, at + 1), count), (_split(values, at + 2), received))
    return Call(
        kind=kind,
        name=name,
        count=count,
        dtype=tensors.dtype or dtype_of(str(attributes.get("dtype", ""))),
        group=str(attributes.get("pg_name") or (group[0] if isinstance(group, list) else group)),
        group_size=group_size,
        root=other,
        peer=other,
        send_splits=send,
        recv_splits=receive,
        is_async=bool(is_async) if is_async is not None else None,
        seq=int(seq[0] if isinstance(seq, list) else seq),
        event=event,
    )


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


def _split(values: list[Any], at: int) -> tuple[int, ...]:
    part = values[at] if at < len(values) else None
    return tuple(int(size) for size in part) if isinstance(part, list) else ()


def _groups(nodes: list[_Node], file: str) -> tuple[GroupInfo, ...]:
    """Process groups from the node that lists them; `ranks` of () there means every rank."""
    for node in nodes:
        if node.name != _GROUPS_NODE:
            continue
        values, _ = _inputs(node, file)
        try:
            listed = msgspec.json.decode(str(values[0]), type=list[_GroupConfig])
        except (msgspec.DecodeError, IndexError):
            # The node's string is cut where it is long; the groups then come from elsewhere.
            return ()
        return tuple(GroupInfo(g.pg_name, g.pg_desc, tuple(g.ranks) or tuple(range(g.group_size))) for g in listed)
    return ()
