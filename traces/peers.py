"""Receives recorded without a sender (`recv_any_source_`): who it was, from the other ranks' sends."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace

from traces.program import Finding, Op, Program, Recv, Send

_Message = tuple[int, int, int, int]  # receiver, group, tag, bytes


def resolved(programs: Mapping[int, Program]) -> tuple[dict[int, Program], tuple[Finding, ...]]:
    """Programs in which each such receive takes from the rank that sent it a fitting message nobody else receives.

    What can't be found keeps the peer -1, which `traces.checks` reports.
    """
    left = _unreceived(programs)
    found: dict[int, Program] = {}
    findings = []
    for rank, program in programs.items():
        ops: list[Op] = []
        named = 0
        for op in program.ops:
            senders = left[rank, op.group, op.tag, op.count * op.dtype.itemsize] if isinstance(op, Recv) else []
            if isinstance(op, Recv) and op.peer < 0 and senders:
                ops.append(replace(op, peer=senders.pop(0)))
                named += 1
            else:
                ops.append(op)
        found[rank] = Program(rank, tuple(ops))
        if named:
            text = f"{named} receives from any source were given the sender whose message nobody else receives"
            findings.append(Finding("assumed-peer", text, "info", rank=rank))
    return found, tuple(findings)


def _unreceived(programs: Mapping[int, Program]) -> defaultdict[_Message, list[int]]:
    """The senders of messages that no receive names, in the order sent."""
    received: Counter[tuple[int, _Message]] = Counter()
    for rank, program in programs.items():
        for op in program.ops:
            if isinstance(op, Recv) and op.peer >= 0:
                received[op.peer, (rank, op.group, op.tag, op.count * op.dtype.itemsize)] += 1
    left: defaultdict[_Message, list[int]] = defaultdict(list)
    for rank, program in programs.items():
        for op in program.ops:
            if isinstance(op, Send):
                message = (op.peer, op.group, op.tag, op.count * op.dtype.itemsize)
                if received[rank, message] > 0:
                    received[rank, message] -= 1
                else:
                    left[message].append(rank)
    return left
