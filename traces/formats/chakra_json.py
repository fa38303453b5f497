"""Chakra execution traces as JSON: `{"workload_graph": [{"Id", "Name", "NodeType", "data_deps", "runtime", ...}]}`.

Names of fields: MLCommons Chakra src/feeder/JSONNode.cpp; one file a rank, `NAME.RANK.json`. The converter writes the kernel of a
collective without kind and size: the kernel's name tells the kind (NCCL src/device: ncclKernel_AllReduce_...), nothing the size.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Annotated

import msgspec

from traces.errors import TraceError
from traces.files import Opened
from traces.formats.chakra_nodes import COLLECTIVE, COMPUTE, KEYS, Raw
from traces.program import CollectiveKind

_SNIFF = re.compile(rb'"workload_graph"\s*:\s*\[')
_KERNEL = re.compile(r"nccl(?:Dev)?Kernel_?(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce)_")
_KIND = {
    "AllReduce": CollectiveKind.ALL_REDUCE, "AllGather": CollectiveKind.ALL_GATHER, "Reduce": CollectiveKind.REDUCE,
    "ReduceScatter": CollectiveKind.REDUCE_SCATTER, "Broadcast": CollectiveKind.BROADCAST,
}  # fmt: skip

_Natural = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Attribute = _Natural | str | None


class _Node(msgspec.Struct, frozen=True, rename={"id": "Id", "name": "Name", "type": "NodeType"}):
    """Files call what a node follows by control `ctrlDeps` or `ctrl_deps`."""

    id: _Natural
    type: _Natural
    name: str = ""
    runtime: _Natural = 0
    is_cpu_op: bool = True
    ctrlDeps: tuple[_Natural, ...] = ()  # noqa: N815
    ctrl_deps: tuple[_Natural, ...] = ()
    data_deps: tuple[_Natural, ...] = ()
    comm_type: _Attribute = None
    comm_size: _Attribute = None
    comm_src: _Attribute = None
    comm_dst: _Attribute = None
    comm_tag: _Attribute = None
    pg_name: _Attribute = None


class _File(msgspec.Struct, frozen=True):
    workload_graph: tuple[_Node, ...]


_ATTRIBUTES = ("comm_type", "comm_size", "comm_src", "comm_dst", "comm_tag", "pg_name")


def sniff(head: bytes) -> bool:
    """Whether a file that starts with `head` is a Chakra trace as JSON."""
    return head.lstrip().startswith(b"{") and _SNIFF.search(head) is not None


def nodes(file: Opened, said: Counter[str]) -> Iterator[tuple[str, Raw]]:
    """The nodes of one file, each with its place, and in `said` what was assumed. Raises TraceError."""
    try:
        decoded = msgspec.json.decode(file.data, type=_File).workload_graph
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"not a Chakra trace: {error}", file=file.name, place=f"{len(file.data)} bytes") from error
    for node in decoded:
        attributes: dict[str, object] = {
            name: value for name in _ATTRIBUTES if (value := getattr(node, name)) is not None
        }
        kind = node.type
        if kind == COLLECTIVE and not node.is_cpu_op and "comm_type" not in attributes:
            named = _KERNEL.match(node.name)
            said["assumed-kind" if named else "no-kind"] += 1
            if named:
                attributes["comm_type"] = KEYS[_KIND[named[1]]]
            else:
                kind = COMPUTE
        # A kernel's time holds its waiting for the network, which is no compute.
        duration = 0 if kind != node.type else node.runtime
        control = (*node.ctrlDeps, *node.ctrl_deps)
        yield f"node {node.id}", Raw(node.id, kind, node.name, duration, control, node.data_deps, attributes)
