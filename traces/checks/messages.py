"""Sends and receives that do not meet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from traces.checks.said import error, name, ranges
from traces.program import Finding, Recv, Send, Trace, op_bytes

_Part = tuple[int, int, int]  # (rank, index in its program, bytes)


def messages(trace: Trace) -> Iterator[Finding]:
    """The n-th send of rank a to rank b with one group and tag is for b's n-th receive of the same."""
    groups = {group.id: group.ranks for group in trace.groups}
    sent: dict[tuple[int, int, int, int], list[_Part]] = defaultdict(list)
    received: dict[tuple[int, int, int, int], list[_Part]] = defaultdict(list)
    for rank, program in trace.programs.items():
        for index, op in enumerate(program.ops):
            if not isinstance(op, Send | Recv):
                continue
            if op.group not in groups:
                text = f"{name(op)} is of group {op.group}, which the trace does not have"
                yield error("not-a-member", text, rank=rank, op=index)
            elif op.peer == rank:
                yield error("self-message", f"{name(op)} is of this rank with itself", rank=rank, op=index)
            elif rank not in groups[op.group] or op.peer not in (*groups[op.group], -1):
                text = f"{name(op)} with rank {op.peer} is in a group of rank {ranges(groups[op.group])}"
                mend = "; a rank within a group may have been read as one of the job"  # as PyTorch issue 153819 tells
                yield error("outside-group", text + mend, rank=rank, op=index)
            elif isinstance(op, Send):
                sent[rank, op.peer, op.group, op.tag].append((rank, index, op_bytes(op)))
            else:
                received[op.peer, rank, op.group, op.tag].append((rank, index, op_bytes(op)))
    lost = set(range(trace.world_size)) - trace.programs.keys()  # what these sent can't be known
    for key in sorted({*sent, *received}):
        source, target = key[:2]
        if source not in lost and target not in lost:
            yield from _pairs(sent[key], received[key], source, target)


def _pairs(sends: list[_Part], receives: list[_Part], source: int, target: int) -> Iterator[Finding]:
    matched = min(len(sends), len(receives))
    for (_, _, size), (rank, index, room) in zip(sends, receives, strict=False):
        if size != room:
            text = f"receives {room} bytes of rank {source}, which sends {size}"
            yield error("size-mismatch", text, rank=rank, op=index)
    for rank, index, _ in sends[matched:]:
        yield error("unmatched-send", f"nothing at rank {target} receives this send", rank=rank, op=index)
    for rank, index, _ in receives[matched:]:
        sender = f"rank {source}" if source >= 0 else "any rank"
        yield error("unmatched-receive", f"nothing that {sender} sends is for this receive", rank=rank, op=index)
