"""What is wrong with a trace, as findings with rank and operation: each says whether replay is still right."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from traces.program import (
    ROOTED,
    Collective,
    CollectiveKind,
    Finding,
    Group,
    Op,
    Recv,
    Send,
    StepMark,
    Trace,
    Wait,
    op_bytes,
)

_Seen = tuple[int, Collective]  # (index in the rank's program, the collective)


def check(trace: Trace) -> tuple[Finding, ...]:
    """The importer's findings and all that the programs themselves show, worst first."""
    found = [*trace.findings]
    for look in _LOOKS:
        found += look(trace)
    order = {"error": 0, "warning": 1, "info": 2}
    return tuple(sorted(found, key=lambda finding: (order[finding.severity], finding.rank, finding.op)))


def is_replayable(findings: Sequence[Finding]) -> bool:
    """Whether a trace with these findings can be replayed."""
    return all(finding.replayable for finding in findings)


def _error(code: str, message: str, *, rank: int = -1, op: int = -1) -> Finding:
    return Finding(code, message, "error", rank, op, replayable=False)


def _missing_ranks(trace: Trace) -> Iterator[Finding]:
    missing = [rank for rank in range(trace.world_size) if rank not in trace.programs]
    if missing:
        text = f"not recorded: rank {_ranges(missing)} of a job of {trace.world_size} ranks"
        yield _error("missing-rank", text, rank=missing[0])


def _ranges(numbers: Sequence[int]) -> str:
    """[0, 1, 2, 5] as "0-2, 5"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _no_communication(trace: Trace) -> Iterator[Finding]:
    if not any(isinstance(op, Collective | Send | Recv) for program in trace.programs.values() for op in program.ops):
        yield _error("no-communication", "no rank communicates: there is nothing to replay")


def _steps(trace: Trace) -> Iterator[Finding]:
    marks = {rank: [op.step for op in p.ops if isinstance(op, StepMark)] for rank, p in trace.programs.items()}
    first, expected = next(iter(marks.items()), (-1, []))
    for rank, steps in marks.items():
        if steps != expected:
            yield _error("steps-differ", f"rank {rank} has steps {steps}, rank {first} has {expected}", rank=rank)


def _waits(trace: Trace) -> Iterator[Finding]:
    for rank, program in trace.programs.items():
        waited: set[int] = set()
        for index, op in enumerate(program.ops):
            if not isinstance(op, Wait):
                continue
            is_started = 0 <= op.op < index and isinstance(program.ops[op.op], Collective | Send | Recv)
            if not is_started:
                yield _error(
                    "dangling-wait", f"waits for operation {op.op}, which was not started", rank=rank, op=index
                )
            elif op.op in waited:
                yield _error("dangling-wait", f"waits for operation {op.op} a second time", rank=rank, op=index)
            waited.add(op.op)


def _collectives(trace: Trace) -> Iterator[Finding]:
    groups = {group.id: group for group in trace.groups}
    seen: dict[int, dict[int, list[_Seen]]] = defaultdict(lambda: defaultdict(list))
    for rank, program in trace.programs.items():
        for index, op in enumerate(program.ops):
            if not isinstance(op, Collective):
                continue
            group = groups.get(op.group)
            if group is None or rank not in group.ranks:
                yield _error(
                    "not-a-member", f"{_name(op)} is of group {op.group}, not of this rank's", rank=rank, op=index
                )
            else:
                seen[op.group][rank].append((index, op))
    for identity, by_rank in seen.items():
        present = [rank for rank in groups[identity].ranks if rank in trace.programs]
        yield from _in_step(groups[identity], {rank: by_rank[rank] for rank in present})


def _in_step(group: Group, by_rank: dict[int, list[_Seen]]) -> Iterator[Finding]:
    """Hold the n-th collective of each rank against the others'; a group that is out of order is reported once."""
    longest = max(by_rank, key=lambda rank: len(by_rank[rank]))
    for position, (index, op) in enumerate(by_rank[longest]):
        absent = [rank for rank, mine in by_rank.items() if position >= len(mine)]
        if absent:
            text = f"{_name(op)} of group {group.name!r} is not seen by ranks {absent}"
            yield _error("op-seen-by-some", text, rank=longest, op=index)
            return
        same = {rank: mine[position] for rank, mine in by_rank.items()}
        for rank, (own_index, own) in same.items():
            if own.kind is not op.kind:
                text = f"{_name(own)} of group {group.name!r} where rank {longest} has {_name(op)}"
                yield _error("op-seen-by-some", text, rank=rank, op=own_index)
                return
        yield from _agree(group, same, longest)


def _agree(group: Group, same: dict[int, _Seen], reference: int) -> Iterator[Finding]:
    _, expected = same[reference]
    if expected.kind is CollectiveKind.ALL_TO_ALL:
        yield from _splits(group, same)
        return
    for rank, (index, op) in same.items():
        if op_bytes(op) != op_bytes(expected):
            text = f"{_name(op)} of {op_bytes(op)} bytes, {op_bytes(expected)} at rank {reference}"
            yield _error("size-mismatch", text, rank=rank, op=index)
        elif op.kind in ROOTED and op.root != expected.root:
            text = f"{_name(op)} has root {op.root}, {expected.root} at rank {reference}"
            yield _error("root-mismatch", text, rank=rank, op=index)


def _splits(group: Group, same: dict[int, _Seen]) -> Iterator[Finding]:
    """What rank r expects of s must be what s sends to r."""
    size = len(group.ranks)
    parts: dict[int, tuple[Sequence[int], Sequence[int]]] = {}
    for rank, (index, op) in same.items():
        equal = [op.count // size] * size
        sends, receives = op.send_splits or equal, op.recv_splits or equal
        if len(sends) != size or len(receives) != size or sum(sends) != op.count:
            text = (
                f"{_name(op)} of {op.count} elements is split {list(sends)} and {list(receives)} in a group of {size}"
            )
            yield _error("splits-mismatch", text, rank=rank, op=index)
        else:
            parts[rank] = (sends, receives)
    for place, rank in enumerate(group.ranks):
        for other_place, other in enumerate(group.ranks):
            if rank in parts and other in parts and parts[rank][1][other_place] != parts[other][0][place]:
                expected, sent = parts[rank][1][other_place], parts[other][0][place]
                text = f"{_name(same[rank][1])} expects {expected} elements of rank {other}, which sends {sent}"
                yield _error("splits-mismatch", text, rank=rank, op=same[rank][0])


def _point_to_point(trace: Trace) -> Iterator[Finding]:
    """The n-th send of rank a to rank b with one group and tag is for b's n-th receive of the same."""
    sent: dict[tuple[int, int, int, int], list[tuple[int, int, int]]] = defaultdict(list)
    received: dict[tuple[int, int, int, int], list[tuple[int, int, int]]] = defaultdict(list)
    for rank, program in trace.programs.items():
        for index, op in enumerate(program.ops):
            if isinstance(op, Send):
                sent[rank, op.peer, op.group, op.tag].append((rank, index, op_bytes(op)))
            elif isinstance(op, Recv):
                received[op.peer, rank, op.group, op.tag].append((rank, index, op_bytes(op)))
    for key in sorted({*sent, *received}):
        source, target = key[:2]
        if (source in trace.programs and target in trace.programs) or source < 0 or target < 0:
            yield from _pairs(sent[key], received[key], source, target)


def _pairs(
    sends: list[tuple[int, int, int]], receives: list[tuple[int, int, int]], source: int, target: int
) -> Iterator[Finding]:
    matched = min(len(sends), len(receives))
    for (_, _, size), (rank, index, room) in zip(sends, receives, strict=False):
        if size != room:
            text = f"receives {room} bytes of rank {source}, which sends {size}"
            yield _error("size-mismatch", text, rank=rank, op=index)
    for rank, index, _ in sends[matched:]:
        yield _error("unmatched-send", f"nothing at rank {target} receives this send", rank=rank, op=index)
    for rank, index, _ in receives[matched:]:
        sender = f"rank {source}" if source >= 0 else "any rank"
        yield _error("unmatched-receive", f"nothing that {sender} sends is for this receive", rank=rank, op=index)


def _name(op: Op) -> str:
    assert isinstance(op, Collective)
    return op.kind.value


_LOOKS: tuple[Callable[[Trace], Iterator[Finding]], ...] = (
    _missing_ranks,
    _no_communication,
    _steps,
    _waits,
    _collectives,
    _point_to_point,
)
