"""From what a rank did and when, to its program. Pure: no files, no clocks of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from traces.counted import counted
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
    Severity,
    StepMark,
    Wait,
)
from traces.pytorch.calls import UNKNOWN, Call
from traces.recording import TimedCall, Timeline

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

    Compute is all time in the recorded steps that is not waiting. Origins carry the rank's own clock (ns since its
    epoch). Calls of groups with one member move nothing and are left out; so are calls and waits outside the recorded
    steps.
    """
    last = timeline.marks[-1][1] if timeline.marks else timeline.start_ns
    real = {index: item for index, item in enumerate(timeline.calls) if not _is_alone(item.call, groups)}
    calls = {index: item for index, item in real.items() if timeline.start_ns <= item.issue_ns <= last}
    actions = [_Action(moment, _MARK, index) for index, (_, moment) in enumerate(timeline.marks)]
    for index, item in calls.items():
        actions.append(_Action(item.issue_ns, _ISSUE, index))
        waits_at = last if item.wait_ns is None else min(item.wait_ns, last)
        actions.append(_Action(max(waits_at, item.issue_ns), _WAIT, index))
    actions.sort(key=lambda action: (action.at, action.what, action.index))

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
    counts = {
        "alone": len(timeline.calls) - len(real),
        "outside-steps": len(real) - len(calls),
        "wait-after-window": sum(1 for item in calls.values() if item.wait_ns is None or item.wait_ns > last),
        **_lacks([item.call for item in calls.values()]),
    }
    return Program(rank, tuple(ops)), (*timeline.findings, *counted(counts.items(), _SAID))


def untimed(
    calls: tuple[Call, ...], rank: int, groups: Mapping[str, Group], *, source: int
) -> tuple[Program, tuple[Finding, ...]]:
    """The program of a rank whose recording has no times: its calls, its waits, no compute, one step."""
    ops: list[Op] = []
    unwaited: dict[int, int] = {}  # number of the call -> its operation
    dangling = alone = 0
    for number, call in enumerate(calls):
        if call.kind == "wait":
            target = next((n for n in reversed(unwaited) if calls[n].seq == call.seq), None)
            if target is None:
                dangling += 1
            else:
                ops.append(Wait(unwaited.pop(target), Origin(source, call.event)))
        elif _is_alone(call, groups):
            alone += 1
        else:
            ops.append(_operation(TimedCall(call, UNKNOWN), groups, source))
            if call.is_async is False:
                ops.append(Wait(len(ops) - 1, Origin(source, call.event)))
            else:
                unwaited[number] = len(ops) - 1
    ops += [Wait(index, Origin(source)) for index in unwaited.values()]
    ops.append(StepMark(0, Origin(source)))
    counts = {
        "alone": alone,
        "dangling-wait": dangling,
        "wait-after-window": len(unwaited),
        "no-timestamps": len(calls),
        **_lacks([call for call in calls if call.kind != "wait"]),
    }
    return Program(rank, tuple(ops)), counted(counts.items(), _SAID)


# code -> (what is said behind the number of operations, severity)
_SAID: Mapping[str, tuple[str, Severity]] = {
    "alone": ("operations are of groups of one rank, which move nothing; left out", "info"),
    "outside-steps": ("operations before the first or after the last step were left out", "info"),
    "wait-after-window": (
        "operations are not waited for in the recording; their waits were put at its end",
        "warning",
    ),
    "dangling-wait": ("waits are for operations from before the recording; left out", "warning"),
    "no-timestamps": ("operations were recorded without times: there is no compute between them", "warning"),
    "assumed-root": ("operations have no recorded root; the group's first rank was taken", "info"),
    "no-sizes": ("operations have no recorded kind or size", "error"),
    "cut-list": ("operations have lists that the recorder cut; splits were taken as equal", "warning"),
}


def _lacks(calls: Sequence[Call]) -> dict[str, int]:
    return {
        "assumed-root": sum(call.kind in ROOTED and call.root == UNKNOWN for call in calls),
        "no-sizes": sum(not call.has_size for call in calls),
        "cut-list": sum(call.is_cut for call in calls),
    }


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
        root=_member(group, max(call.root, 0)) if call.kind in ROOTED else UNKNOWN,
        reduce_op=call.reduce_op,
        send_splits=call.send_splits,
        recv_splits=call.recv_splits,
        name=call.name,
        origin=origin,
    )


def _member(group: Group, place: int) -> int:
    """The global rank at `place` in the group."""
    return group.ranks[place] if 0 <= place < len(group.ranks) else UNKNOWN
