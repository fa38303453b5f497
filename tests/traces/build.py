"""Traces for tests, in few words."""

from __future__ import annotations

from collections.abc import Sequence

from traces.program import Collective, CollectiveKind, DType, Group, Op, Origin, Program, StepMark, Trace, Wait


def reduce(count: int = 8, *, group: int = 0, end_ns: int = -1) -> Collective:
    return Collective(CollectiveKind.ALL_REDUCE, group, count, DType.FLOAT32, origin=Origin(0, -1, end_ns, end_ns))


def exchange(sends: Sequence[int], receives: Sequence[int]) -> Collective:
    return Collective(
        CollectiveKind.ALL_TO_ALL, 0, sum(sends), DType.INT32, send_splits=tuple(sends), recv_splits=tuple(receives)
    )


def trace(*ranks: Sequence[Op], world_size: int | None = None, groups: Sequence[Sequence[int]] = ()) -> Trace:
    size = world_size or len(ranks)
    members = [tuple(range(size)), *(tuple(group) for group in groups)]
    return Trace(
        world_size=size,
        groups=tuple(Group(index, str(index), ranks_of, index) for index, ranks_of in enumerate(members)),
        programs={rank: Program(rank, tuple(ops)) for rank, ops in enumerate(ranks)},
        step_count=sum(isinstance(op, StepMark) for op in ranks[0]),
    )


def sync(op: Collective, at: int = 0) -> tuple[Op, Op]:
    """An operation that is number `at` of its program, and its wait."""
    return op, Wait(at)
