"""Putting the hosts' clocks together: all ranks of a symmetric collective see it end at nearly the same moment.

On one machine NCCL kernels of one collective end within 49 us of each other while their starts differ by up to 41.7 ms
(8 ranks of Megatron TP8), so ends are what clocks are aligned by. Ranks of one host share its clock. Hosts are aligned one
after the other, each to those that are already, beginning with the host of the lowest rank and taking next the one that has
most collectives in common with them. Where a host has none, messages and rooted collectives bound its offset: nothing ends
before what it needs has started.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from traces.clock_fit import Clock, fit
from traces.meetings import Meeting, meetings
from traces.program import CollectiveKind, Finding, Op, Origin, Program, Recv, Send, Severity

# The kinds that no rank can leave before all have come: the others' ends say little about a clock.
SYMMETRIC = frozenset(
    {
        CollectiveKind.ALL_REDUCE,
        CollectiveKind.ALL_GATHER,
        CollectiveKind.REDUCE_SCATTER,
        CollectiveKind.ALL_TO_ALL,
        CollectiveKind.BARRIER,
    }
)
_FROM_ROOT = {CollectiveKind.BROADCAST, CollectiveKind.SCATTER}
STARTED = "started_ns"
"""Key of a trace's provenance: its time 0, in ns since the epoch of its lowest rank's clock."""

_Ends = list[dict[str, int]]  # of each collective, the first end in ns that each clock has
_Needs = list[tuple[int, int, int, int]]  # (rank, when something started, rank, when what needs it ended)


@dataclass(frozen=True, slots=True)
class Aligned:
    """Programs with times since the first event of all, which was at `started_ns` on the clock of the lowest rank's host.

    `before_ns` and `after_ns` are the residuals of each rank as recorded and now.
    """

    programs: Mapping[int, Program]
    started_ns: int
    before_ns: Mapping[int, int]
    after_ns: Mapping[int, int]
    findings: tuple[Finding, ...]


def align(programs: Mapping[int, Program], hosts: Mapping[int, str]) -> Aligned:
    """All programs on the clock of the lowest rank's host, and a finding for each host that was moved.

    A rank whose host is not known is taken to have a clock of its own. Durations of compute stay as recorded.
    """
    met = meetings(programs)
    before = _residuals(met, programs)
    clock_of = {rank: hosts.get(rank) or f"rank {rank}" for rank in sorted(programs)}
    found = _clocks(met, programs, clock_of)
    starts = [
        found[clock_of[rank]].right(op.origin.start_ns)
        for rank, program in programs.items()
        for op in program.ops
        if op.origin.start_ns >= 0
    ]
    first = min(starts, default=0)
    moved = {rank: shifted(program, found[clock_of[rank]].later(-first)) for rank, program in programs.items()}
    after = residuals(moved)
    findings = []
    for name, clock in found.items():
        rank = next(rank for rank, known in clock_of.items() if known == name)
        if clock.is_moved:
            left = max(after[rank] for rank, known in clock_of.items() if known == name)
            severity: Severity = "warning" if clock.steps_ns or clock.bounds_ns else "info"
            findings.append(
                Finding("clock-aligned", f"{_said(name, clock)}; {left / 1e3:.0f} us are left", severity, rank)
            )
    return Aligned(moved, first, before, after, tuple(findings))


def residuals(programs: Mapping[int, Program]) -> dict[int, int]:
    """Per rank, the largest distance in ns between an end of a collective there and at another rank."""
    return _residuals(meetings(programs), programs)


def shifted(program: Program, clock: Clock) -> Program:
    """The same program with all recorded times as `clock` sets them right."""
    return Program(program.rank, tuple(_shift(op, clock) for op in program.ops))


def _shift(op: Op, clock: Clock) -> Op:
    at = op.origin
    start, end = (clock.right(moment) if moment >= 0 else moment for moment in (at.start_ns, at.end_ns))
    return replace(op, origin=Origin(at.source, at.event, start, end))


def _residuals(met: Sequence[Meeting], programs: Iterable[int]) -> dict[int, int]:
    worst = dict.fromkeys(programs, 0)
    for meeting in met:
        ends = _ends(meeting)
        if ends:
            first, last = min(ends.values()), max(ends.values())
            for rank, end in ends.items():
                worst[rank] = max(worst[rank], end - first, last - end)
    return worst


def _ends(meeting: Meeting) -> dict[int, int]:
    """When each rank saw a symmetric collective end, in ns; nothing of the other kinds."""
    return {
        rank: op.origin.end_ns
        for rank, (_, op) in meeting.parts.items()
        if op.kind in SYMMETRIC and op.origin.end_ns >= 0
    }


def _clocks(met: Sequence[Meeting], programs: Mapping[int, Program], clock_of: Mapping[int, str]) -> dict[str, Clock]:
    names = list(dict.fromkeys(clock_of.values()))
    if len(names) < 2:
        return dict.fromkeys(names, Clock())
    seen: _Ends = []
    for meeting in met:
        firsts: dict[str, int] = {}
        for rank, end in _ends(meeting).items():
            # A rank may be late to see an end, never early.
            firsts[clock_of[rank]] = min(end, firsts.get(clock_of[rank], end))
        if len(firsts) > 1:
            seen.append(firsts)
    needs = _needs(met, programs)
    found = {names[0]: Clock()}
    left = names[1:]
    while left:
        shared = {name: sum(name in firsts and not found.keys().isdisjoint(firsts) for firsts in seen) for name in left}
        name = max(left, key=lambda name: shared[name])
        found[name] = _by_ends(seen, name, found) if shared[name] else _by_causes(needs, name, found, clock_of)
        left.remove(name)
    return found


def _by_ends(seen: _Ends, name: str, found: Mapping[str, Clock]) -> Clock:
    pairs = []
    for firsts in seen:
        others = [found[other].right(end) for other, end in firsts.items() if other in found]
        if name in firsts and others:
            pairs.append((firsts[name], min(others) - firsts[name]))
    return fit(sorted(pairs))


def _by_causes(needs: _Needs, name: str, found: Mapping[str, Clock], clock_of: Mapping[int, str]) -> Clock:
    """The middle of what causality leaves; where only one side is bound, the least that must be moved."""
    least, most = [], []
    for cause, start, effect, end in needs:
        if clock_of[cause] in found and clock_of[effect] == name:
            least.append(found[clock_of[cause]].right(start) - end)
        elif clock_of[cause] == name and clock_of[effect] in found:
            most.append(found[clock_of[effect]].right(end) - start)
    if least and most:
        low, high = max(least), min(most)
        return Clock(((0, (low + high) // 2),), bounds_ns=(low, high))
    if least:
        return Clock(((0, max(0, *least)),), bounds_ns=(max(least), None))
    return Clock(((0, min(0, *most)),), bounds_ns=(None, min(most))) if most else Clock()


def _needs(met: Sequence[Meeting], programs: Mapping[int, Program]) -> _Needs:
    """What can't end before something else has started: receives, and parts of rooted collectives."""
    found: _Needs = []
    for meeting in met:
        for rank, (_, op) in meeting.parts.items():
            root = meeting.parts.get(op.root, (-1, op))[1]
            if op.kind in SYMMETRIC or rank == op.root or op.root not in meeting.parts:
                continue
            if op.kind in _FROM_ROOT:
                found.append((op.root, root.origin.start_ns, rank, op.origin.end_ns))
            else:
                found.append((rank, op.origin.start_ns, op.root, root.origin.end_ns))
    sent: dict[tuple[int, int, int, int], list[int]] = {}
    received: dict[tuple[int, int, int, int], list[int]] = {}
    for rank, program in programs.items():
        for each in program.ops:
            if isinstance(each, Send):
                sent.setdefault((rank, each.peer, each.group, each.tag), []).append(each.origin.start_ns)
            elif isinstance(each, Recv):
                received.setdefault((each.peer, rank, each.group, each.tag), []).append(each.origin.end_ns)
    for key, starts in sent.items():
        ends = received.get(key, [])
        if len(starts) == len(ends):  # else the n-th may not be for the n-th
            found += [(key[0], start, key[1], end) for start, end in zip(starts, ends, strict=True)]
    return [need for need in found if need[1] >= 0 and need[3] >= 0]


def _said(name: str, clock: Clock) -> str:
    if clock.bounds_ns is not None:
        low, high = (f"{ns / 1e6:.3f} ms" if ns is not None else "no end" for ns in clock.bounds_ns)
        return (
            f"the clock of {name} was moved by {clock.pieces[0][1] / 1e6:.3f} ms: nothing ends at all ranks at once, and what "
            f"was sent before it was received leaves between {low} and {high}"
        )
    text = (
        f"the clock of {name} was moved by {clock.pieces[0][1] / 1e6:.3f} ms, by the ends of {clock.seen} collectives"
    )
    if clock.drift_ppm:
        text += f"; it runs {abs(clock.drift_ppm):.1f} ppm {'slow' if clock.drift_ppm > 0 else 'fast'}"
    if clock.steps_ns:
        jumps = ", ".join(f"{ns / 1e6:+.3f} ms" for ns in clock.steps_ns)
        text += f"; it was set while recording ({jumps}): compute around that moment is off by as much"
    return text
