"""A trace in numbers: what the tables of `tracebed info` show. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from traces.bandwidth import Operation, OperationRow, operations, rows
from traces.families import Family, families
from traces.meetings import Meeting, begins, meetings
from traces.program import Communication, Compute, Program, StepMark, Trace, Wait, op_bytes
from traces.steps import recorded_step_ns


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step; means over the ranks. None where the recording has no times.

    `exposed_ns` is how long a rank stopped for communication, `communication_ns` how long some of its operations were open;
    `overlap` is the part of that in which it did not stop. `skew_ns`: how much later than the first the last rank came to a
    collective, on average.
    """

    step: int
    recorded_ns: int | None
    compute_ns: float
    exposed_ns: float | None
    communication_ns: float | None
    overlap: float | None
    skew_ns: float | None


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One process group, or several alike: how many collectives and messages, their bytes as nccl-tests count, all their time."""

    name: str
    description: str
    ranks: tuple[int, ...]
    collectives: int
    messages: int
    bytes: float
    time_ns: int | None


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank: `compute_ns` per step, `waited_ns` over all steps, `bytes` as its calls give them.

    `exposed` is the waited part of compute and waiting. `late_ns`: how much later than the first rank it came to a
    collective, on average; `last`: to how many it came last. None where the recording has no times.
    """

    rank: int
    host: str
    operations: int
    bytes: int
    compute_ns: tuple[int, ...]
    waited_ns: int | None
    exposed: float | None
    late_ns: float | None
    last: int
    clock_residual_ns: int


@dataclass(frozen=True, slots=True)
class Summary:
    """Everything `tracebed info` shows. `collectives` is how many were seen by all of their ranks, with times."""

    world_size: int
    steps: tuple[StepRow, ...]
    operations: tuple[OperationRow, ...]
    groups: tuple[GroupRow, ...]
    ranks: tuple[RankRow, ...]
    collectives: int


@dataclass(frozen=True, slots=True)
class _Arrivals:
    """Collectives that all ranks saw: by step (of the lowest rank), how much later than the first the last one came; by
    rank, how much later than the first it came to each; and to how many it came last.
    """

    skews_ns: Mapping[int, list[int]]
    late_ns: Mapping[int, list[int]]
    last: Mapping[int, int]
    collectives: int


@dataclass(frozen=True, slots=True)
class _Spent:
    """What one rank did in one step, in ns; waited and communication are None without times."""

    compute_ns: int
    waited_ns: int | None
    communication_ns: int | None


def summarise(trace: Trace, *, together: bool = False) -> Summary:
    """Count and add up `trace`; `together`: groups that are alike as one, with the sums of all."""
    lane_of = {group.id: group.lane for group in trace.groups}
    began = {rank: begins(program, lane_of) for rank, program in trace.programs.items()}
    met = meetings(trace.programs)
    arrivals = _arrivals(trace, met, began)
    found = list(operations(trace, met, began))
    kin = _kin(trace, found) if together else tuple(Family((group,)) for group in trace.groups)
    spent = {rank: _spent(program)[: trace.step_count] for rank, program in sorted(trace.programs.items())}
    return Summary(
        world_size=trace.world_size,
        steps=_steps(trace, spent, arrivals),
        operations=rows(kin, found),
        groups=_groups(kin, found),
        ranks=tuple(_rank(trace, rank, spent[rank], arrivals) for rank in spent),
        collectives=arrivals.collectives,
    )


def _arrivals(trace: Trace, met: list[Meeting], began: Mapping[int, Mapping[int, int]]) -> _Arrivals:
    sizes = {group.id: len(group.ranks) for group in trace.groups}
    marks = {rank: _steps_before(program) for rank, program in trace.programs.items()}
    skews: dict[int, list[int]] = defaultdict(list)
    late: dict[int, list[int]] = defaultdict(list)
    last: Counter[int] = Counter()
    collectives = 0
    for meeting in met:
        at = {rank: began[rank][index] for rank, (index, _) in meeting.parts.items() if index in began[rank]}
        if len(at) != sizes.get(meeting.group) or len(at) < 2:
            continue
        collectives += 1
        first_ns, last_ns, lowest = min(at.values()), max(at.values()), min(at)
        skews[marks[lowest][meeting.parts[lowest][0]]].append(last_ns - first_ns)
        for rank, moment in at.items():
            late[rank].append(moment - first_ns)
            last[rank] += moment == last_ns
    return _Arrivals(skews, late, last, collectives)


def _steps_before(program: Program) -> list[int]:
    """For each operation, how many steps have ended before it."""
    ended, found = 0, []
    for op in program.ops:
        found.append(ended)
        ended += isinstance(op, StepMark)
    return found


def _spent(program: Program) -> list[_Spent]:
    """What a rank did in each step, the last one being what lies behind its last mark."""
    found = []
    compute = waited = 0
    has_times = True
    spans: list[tuple[int, int]] = []
    for op in (*program.ops, StepMark(-1)):
        start, end = op.origin.start_ns, op.origin.end_ns
        if isinstance(op, Compute):
            compute += op.ns
        elif isinstance(op, Wait):
            has_times = has_times and start >= 0
            waited += end - start
        elif isinstance(op, Communication):
            spans.append((start, end))
        else:
            found.append(_Spent(compute, waited if has_times else None, _covered(spans) if has_times else None))
            compute = waited = 0
            spans = []
    return found


def _covered(spans: list[tuple[int, int]]) -> int:
    """How long at least one span is open; one whose end was lost is not."""
    total, until = 0, -1
    for start, end in sorted(spans):
        total += max(0, end - max(start, until))
        until = max(until, end)
    return total


def _steps(trace: Trace, spent: Mapping[int, list[_Spent]], arrivals: _Arrivals) -> tuple[StepRow, ...]:
    recorded = recorded_step_ns(trace)
    numbers = [op.step for op in next(iter(trace.programs.values())).ops if isinstance(op, StepMark)] if spent else []
    found = []
    for step in range(trace.step_count):
        mine = [ranks[step] for ranks in spent.values()]
        exposed = _mean([each.waited_ns for each in mine])
        communication = _mean([each.communication_ns for each in mine])
        hidden = None if exposed is None or not communication else max(0.0, 1 - exposed / communication)
        found.append(
            StepRow(
                step=numbers[step],
                recorded_ns=recorded[step] if recorded else None,
                compute_ns=sum(each.compute_ns for each in mine) / len(mine),
                exposed_ns=exposed,
                communication_ns=communication,
                overlap=hidden,
                skew_ns=_mean(arrivals.skews_ns.get(step, [])),
            )
        )
    return tuple(found)


def _mean(numbers: list[int] | list[int | None]) -> float | None:
    known = [number for number in numbers if number is not None]
    return sum(known) / len(known) if known and len(known) == len(numbers) else None


def _kin(trace: Trace, found: list[Operation]) -> tuple[Family, ...]:
    kinds: dict[int, set[str]] = defaultdict(set)
    for op in found:
        kinds[op.group].add(op.kind)
    return families(trace.groups, {group: frozenset(said) for group, said in kinds.items()})


def _groups(kin: tuple[Family, ...], found: list[Operation]) -> tuple[GroupRow, ...]:
    by_group: dict[int, list[Operation]] = defaultdict(list)
    for op in found:
        by_group[op.group].append(op)
    used = []
    for family in kin:
        mine = [op for group in family.groups for op in by_group[group.id]]
        times = [op.time_ns for op in mine if op.time_ns is not None]
        messages = sum(op.kind == "send" for op in mine)
        total, time = sum(op.bytes for op in mine), sum(times) if times else None
        description = family.groups[0].description
        used.append(GroupRow(family.name, description, family.ranks, len(mine) - messages, messages, total, time))
    return tuple(used)


def _rank(trace: Trace, rank: int, spent: list[_Spent], arrivals: _Arrivals) -> RankRow:
    calls = [op for op in trace.programs[rank].ops if isinstance(op, Communication)]
    compute = tuple(step.compute_ns for step in spent)
    waits = [step.waited_ns for step in spent if step.waited_ns is not None]
    waited = sum(waits) if len(waits) == len(spent) else None
    busy = sum(compute) + (waited or 0)
    return RankRow(
        rank=rank,
        host=trace.hosts.get(rank, ""),
        operations=len(calls),
        bytes=sum(op_bytes(op) for op in calls),
        compute_ns=compute,
        waited_ns=waited,
        exposed=waited / busy if waited is not None and busy else None,
        late_ns=_mean(arrivals.late_ns.get(rank, [])),
        last=arrivals.last.get(rank, 0),
        clock_residual_ns=trace.clock_residual_ns.get(rank, 0),
    )
