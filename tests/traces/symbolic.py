"""Runs programs of messages without time: who gets stuck."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from traces.program import Program, Recv, Send, Wait


def stuck(programs: Mapping[int, Program]) -> dict[int, int]:
    """The ranks that don't come to their end, each with the operation that it stops at.

    A message ends when both sides have started it (nothing is buffered): the n-th of a sender, receiver and tag.
    """
    at = dict.fromkeys(programs, 0)
    started: Counter[tuple[type, int, int, int]] = Counter()
    number: dict[tuple[int, int], int] = {}

    def key(rank: int, op: Send | Recv, kind: type) -> tuple[type, int, int, int]:
        return (kind, rank, op.peer, op.tag) if isinstance(op, Send) else (kind, op.peer, rank, op.tag)

    def passes(rank: int, index: int) -> bool:
        op = programs[rank].ops[index]
        if isinstance(op, Send | Recv):
            started[key(rank, op, type(op))] += 1
            number[rank, index] = started[key(rank, op, type(op))]
        if not isinstance(op, Wait):
            return True
        of = programs[rank].ops[op.op]
        if not isinstance(of, Send | Recv):
            return True
        other = Recv if isinstance(of, Send) else Send
        return started[key(rank, of, other)] >= number[rank, op.op]

    moved = True
    while moved:
        moved = False
        for rank, program in programs.items():
            while at[rank] < len(program.ops) and passes(rank, at[rank]):
                at[rank] += 1
                moved = True
    return {rank: index for rank, index in at.items() if index < len(programs[rank].ops)}
