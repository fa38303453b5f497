"""Chakra execution traces (`NAME.RANK.et`): each rank a graph of nodes in protobuf or JSON, one file a rank.

In protobuf a file is messages with their lengths in front: GlobalMetadata, then Nodes (`chakra_schema`); `chakra_nodes` has what
they mean. Beside them may lie ASTRA-sim's comm_group.json, the ranks of the groups that `pg_name` names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from traces import graph
from traces.counted import counted
from traces.errors import TraceError
from traces.files import Opened
from traces.formats import chakra_json
from traces.formats import chakra_schema as schema
from traces.formats.chakra_nodes import (
    COLLECTIVE,
    COMPUTE,
    IN_ALL,
    KEYS,
    MAX_TAG,
    RECV,
    REDUCING,
    SEND,
    Raw,
    is_groups,
    job,
)
from traces.graph import Node
from traces.program import (
    ROOTED,
    Collective,
    CollectiveKind,
    Compute,
    DType,
    Finding,
    Group,
    Send,
    StepMark,
    Trace,
    op_bytes,
)

NAME = "chakra"

_HEAD_BYTES = 1 << 14
_MAX_BYTES = (1 << 63) - 1  # of an int64

# What ASTRA-sim simulates (astra-sim/workload/Workload.cc, issue_coll_comm); it stops at others.
SIMULATED = frozenset(
    {
        CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_TO_ALL, CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER,
        CollectiveKind.BROADCAST,
    }
)  # fmt: skip


def sniff(head: bytes) -> bool:
    """Whether a file that starts with `head` is a Chakra trace, or the groups of one."""
    return is_groups(head) or schema.starts(head) or chakra_json.sniff(head)


def read(files: Sequence[Opened]) -> Trace:
    """The job in these files, of one rank each. Raises TraceError naming the file and byte that are wrong."""
    return job(files, _nodes)


def _nodes(file: Opened, said: Counter[str]) -> Iterator[tuple[str, Raw]]:
    if chakra_json.sniff(file.data[:_HEAD_BYTES]):
        yield from chakra_json.nodes(file, said)
        return
    messages = schema.parsed(file.data, file.name)
    next(messages, None)  # the metadata
    for start, node in messages:
        attributes = {a.name: getattr(a, which) for a in node.attr if (which := a.WhichOneof("value")) is not None}
        deps = node.ctrl_deps, node.data_deps
        yield f"byte {start}", Raw(node.id, node.type, node.name, node.duration_micros, *deps, attributes)


def write(trace: Trace) -> tuple[dict[str, bytes], tuple[Finding, ...]]:
    """The files by name, and what they do not say. Groups that are not all ranks are in comm_group.json.

    Raises TraceError for a tag or a size that the format's integers can't hold.
    """
    everyone = tuple(range(trace.world_size))
    # ASTRA-sim takes "" and "0" for all ranks, and other names for numbers (Workload.cc, extract_comm_group).
    small = [group for group in trace.groups if group.ranks != everyone]
    names = {group.id: str(number) for number, group in enumerate(small, 1)}
    groups = {group.id: group for group in trace.groups}
    said: Counter[str] = Counter()
    files = {}
    for rank, program in sorted(trace.programs.items()):
        nodes = graph.graph_of(program, {group.id: group.lane for group in trace.groups})
        messages = (_message(index, node, groups, names, said) for index, node in enumerate(nodes, 1))
        files[f"trace.{rank}.et"] = schema.strung([schema.GlobalMetadata(version="0.0.4"), *messages])
    if small:
        files["comm_group.json"] = msgspec.json.encode({names[group.id]: group.ranks for group in small})
    return files, counted(sorted(said.items()), _LOST)


_LOST = {
    "lost-dtype": "operations have element types; the format has bytes only",
    "lost-group": "messages are of a group of their own; the format has their tags only",
    "lost-reduce-op": "reductions are no sums; the format has no operation",
    "lost-root": "operations have a root that is not their group's first rank; the format has none",
    "lost-splits": "all_to_alls are uneven; the format has their size only",
    "not-simulated": "collectives are of kinds at which ASTRA-sim stops; export to goal or smpi-ti has them as messages",
    "rounded": "computations were rounded to a microsecond",
}


def _message(index: int, node: Node, groups: Mapping[int, Group], names: Mapping[int, str], said: Counter[str]) -> Any:
    """A schema.Node. Ids are from 1 on: protobuf leaves 0 out."""
    op = node.op
    message = schema.Node(id=index, type=COMPUTE)
    message.ctrl_deps.extend(earlier + 1 for earlier in node.beside)
    message.data_deps.extend(earlier + 1 for earlier in node.after)
    message.attr.add(name="is_cpu_op", bool_val=False)
    if isinstance(op, StepMark):
        message.name = f"step {op.step} ends"
        return message
    if isinstance(op, Compute):
        message.name, message.duration_micros = op.name or "compute", (op.ns + 500) // 1000
        said["rounded"] += op.ns % 1000 > 0
        return message
    size = op_bytes(op)
    said["lost-dtype"] += op.dtype is not DType.UINT8
    if isinstance(op, Collective):
        message.type, message.name, ranks = COLLECTIVE, op.name or op.kind, groups[op.group].ranks
        size *= len(ranks) if op.kind in IN_ALL else 1
        said["lost-reduce-op"] += op.kind in REDUCING and op.reduce_op != "sum"
        said["lost-root"] += op.kind in ROOTED and op.root != ranks[0]
        said["lost-splits"] += len({*op.send_splits, *op.recv_splits}) > 1
        said["not-simulated"] += op.kind not in SIMULATED
        message.attr.add(name="comm_type", int64_val=KEYS[op.kind])
        if op.group in names:
            message.attr.add(name="pg_name", string_val=names[op.group])
    else:
        message.type, way = (SEND, "dst") if isinstance(op, Send) else (RECV, "src")
        message.name = op.name or type(op).__name__.lower()
        said["lost-group"] += op.group != 0
        if not 0 <= op.tag <= MAX_TAG:
            raise TraceError(f"{message.name} has tag {op.tag}", mend=f"the format's tags are from 0 to {MAX_TAG}")
        message.attr.add(name=f"comm_{way}", int32_val=op.peer)
        message.attr.add(name="comm_tag", int32_val=op.tag)
    if size > _MAX_BYTES:
        raise TraceError(f"{message.name} is of {size} bytes", mend=f"the format's sizes are {_MAX_BYTES} at most")
    message.attr.add(name="comm_size", int64_val=size)
    return message
