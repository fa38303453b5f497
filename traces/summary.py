"""A trace in numbers: what its tables show. Pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from traces.program import Collective, Compute, Recv, Send, StepMark, Trace, Wait, op_bytes
from traces.steps import recorded_step_ns


@dataclass(frozen=True, slots=True)
class OperationRow:
    """All operations of one kind in one group: `per_rank` is (fewest, most) a rank starts, `bytes` is all ranks'."""

    group: str
    kind: str
    dtype: str
    operations: int
    per_rank: tuple[int, int]
    bytes: int


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank: `compute_ns` per step, `waited_ns` as recorded over all steps, `bytes` as its calls give them."""

    rank: int
    host: str
    operations: int
    bytes: int
    compute_ns: tuple[int, ...]
    waited_ns: int
    clock_residual_ns: int


@dataclass(frozen=True, slots=True)
class Summary:
    """Everything `tracebed info` shows. `step_ns` is the recorded time of each step, () where there are no times."""

    world_size: int
    steps: int
    operations: tuple[OperationRow, ...]
    ranks: tuple[RankRow, ...]
    step_ns: tuple[int, ...]


def summarise(trace: Trace) -> Summary:
    """Count and add up `trace`."""
    return Summary(
        world_size=trace.world_size,
        steps=trace.step_count,
        operations=_operations(trace),
        ranks=tuple(_rank(trace, rank) for rank in sorted(trace.programs)),
        step_ns=recorded_step_ns(trace),
    )


def _operations(trace: Trace) -> tuple[OperationRow, ...]:
    names = {group.id: group.name for group in trace.groups}
    counts: dict[tuple[int, str, str], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    sizes: dict[tuple[int, str, str], int] = defaultdict(int)
    for rank, program in trace.programs.items():
        for op in program.ops:
            if isinstance(op, Collective | Send | Recv):
                kind = op.kind.value if isinstance(op, Collective) else type(op).__name__.lower()
                key = (op.group, kind, op.dtype.value)
                counts[key][rank] += 1
                sizes[key] += op_bytes(op)
    rows = []
    for (group, kind, dtype), by_rank in sorted(counts.items()):
        per_rank = (min(by_rank.values()), max(by_rank.values()))
        rows.append(
            OperationRow(
                names.get(group, str(group)), kind, dtype, sum(by_rank.values()), per_rank, sizes[group, kind, dtype]
            )
        )
    return tuple(rows)


def _rank(trace: Trace, rank: int) -> RankRow:
    ops = trace.programs[rank].ops
    calls = [op for op in ops if isinstance(op, Collective | Send | Recv)]
    compute = [0]
    for op in ops:
        if isinstance(op, Compute):
            compute[-1] += op.ns
        elif isinstance(op, StepMark):
            compute.append(0)
    return RankRow(
        rank=rank,
        host=trace.hosts.get(rank, ""),
        operations=len(calls),
        bytes=sum(op_bytes(op) for op in calls),
        compute_ns=tuple(compute[: trace.step_count]),
        waited_ns=sum(op.origin.end_ns - op.origin.start_ns for op in ops if isinstance(op, Wait)),
        clock_residual_ns=trace.clock_residual_ns.get(rank, 0),
    )
