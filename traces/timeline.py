"""From what a rank did and when, to its program. Pure: no files, no clocks of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from traces.formats.calls import UNKNOWN, Call
from traces.formats.recording import TimedCall, Timeline
from traces.program import (
    ROOTED,
    Collective,
    Compute,
    DType,
    Finding,
    Group,
    Op,
    Origin,
    Program,
    Recv,
    Send,
    StepMark,
    Wait,
)

_ISSUE, _WAIT, _MARK = range(3)  # what comes first of things at one moment


@dataclass(frozen=True, slots=True)
class _Action:
    at: int
    what: int
    index: int  # of the call, or of the mark


def program(
    timeline: Timeline, rank: int, groups: Mapping[str, Group], *, source: int
) -> tuple[Program, tuple[Finding, ...]]:
    """The program of a recorded rank, and what a reader must know of how it came about.

    Compute is all time in the recorded steps that is not waiting. Origins carry the rank's own clock (ns since its epoch).
    Calls of groups with one member move nothing and are left out; so are calls and waits outside the recorded steps.
    """
    findings = [*timeline.findings]
    last = timeline.marks[-1][1] if timeline.marks else timeline.start_ns
    inside = [i for i, item in enumerate(timeline.calls) if timeline.start_ns <= item.issue_ns <= last]
    calls = {
        i: item for i in inside if (item := timeline.calls[i]).call.kind != "wait" and not _is_alone(item.call, groups)
    }
    actions = [_Action(moment, _MARK, index) for index, (_, moment) in enumerate(timeline.marks)]
    unwaited = 0
    for index, item in calls.items():
        actions.append(_Action(item.issue_ns, _ISSUE, index))
        if item.wait_ns is None or item.wait_ns > last:
            unwaited += 1
        waits_at = last if item.wait_ns is None else min(item.wait_ns, last)
        actions.append(_Action(max(waits_at, item.issue_ns), _WAIT, index))
    actions.sort(key=lambda action: (action.at, action.what, action.index))

    outside = sum(1 for item in timeline.calls if item.call.kind != "wait") - sum(
        1 for i in inside if timeline.calls[i].call.kind != "wait"
    )
    if outside:
        findings.append(
            Finding(
                "outside-steps", f"{outside} operations before the first or after the last step were left out", "info"
            )
        )
    if unwaited:
        text = f"{unwaited} operations are not waited for in the recording; their waits were put at its end"
        findings.append(Finding("wait-after-window", text, "warning"))

    ops: list[Op] = []
    at_op: dict[int, int] = {}
    now = timeline.start_ns
    for action in actions:
        if action.at > now:
            ops.append(Compute(action.at - now, origin=Origin(source, UNKNOWN, now, action.at)))
            now = action.at
        if action.what == _MARK:
            step, moment = timeline.marks[action.index]
            ops.append(StepMark(step, Origin(source, UNKNOWN, moment, moment)))
            continue
        item = calls[action.index]
        if action.what == _ISSUE:
            at_op[action.index] = len(ops)
            ops.append(_operation(item, groups, source))
            continue
        ops.append(Wait(at_op[action.index], Origin(source, item.call.event, action.at, max(item.end_ns, action.at))))
        now = max(now, item.end_ns)
    return Program(rank, tuple(ops)), tuple(findings)


def untimed(calls: tuple[Call, ...], rank: int, groups: Mapping[str, Group], *, source: int) -> Program:
    """The program of a rank whose recording has no times: its calls, its waits, no compute, one step."""
    ops: list[Op] = []
    by_seq: dict[int, int] = {}
    waited: set[int] = set()
    for call in calls:
        if call.kind == "wait":
            target = by_seq.get(call.seq)
            if target is not None and target not in waited:
                waited.add(target)
                ops.append(Wait(target, Origin(source, call.event)))
        elif not _is_alone(call, groups):
            by_seq[call.seq] = len(ops)
            ops.append(_operation(TimedCall(call, UNKNOWN), groups, source))
            if call.is_async is False:
                waited.add(len(ops) - 1)
                ops.append(Wait(len(ops) - 1, Origin(source, call.event)))
    starts = [index for index, op in enumerate(ops) if not isinstance(op, Wait) and index not in waited]
    ops += [Wait(index, Origin(source)) for index in starts]
    ops.append(StepMark(0, Origin(source)))
    return Program(rank, tuple(ops))


def _is_alone(call: Call, groups: Mapping[str, Group]) -> bool:
    return call.group_size == 1 or (call.group in groups and len(groups[call.group].ranks) == 1)


def _operation(item: TimedCall, groups: Mapping[str, Group], source: int) -> Op:
    call, group = item.call, groups[item.call.group]
    origin = Origin(source, call.event, item.issue_ns, item.end_ns)
    count, dtype = max(call.count, 0), call.dtype or DType.UINT8
    if call.kind == "send" or call.kind == "recv":
        kind = Send if call.kind == "send" else Recv
        return kind(_member(group, call.peer), count, dtype, call.tag, group.id, call.name, origin)
    assert call.kind != "wait"
    return Collective(
        kind=call.kind,
        group=group.id,
        count=count,
        dtype=dtype,
        root=_member(group, call.root) if call.kind in ROOTED else UNKNOWN,
        reduce_op=call.reduce_op,
        send_splits=call.send_splits,
        recv_splits=call.recv_splits,
        name=call.name,
        origin=origin,
    )


def _member(group: Group, place: int) -> int:
    """The global rank at `place` in the group."""
    return group.ranks[place] if 0 <= place < len(group.ranks) else UNKNOWN
