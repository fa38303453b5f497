"""A Plan as graphs of messages, for formats that know no collectives. Pure.

What a rank's engine would do is all there: a collective's tasks follow each other as its algorithm says, operations of a lane
follow each other, and the program goes on beside them until it waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

from replay.collectives.schedule import Copy
from replay.collectives.schedule import Send as SendTask
from replay.plan import Plan, RankPlan, Transfer
from traces.errors import TraceError
from traces.graph import Graph, Growing
from traces.program import Collective, Group, Op, Program, Recv, Send, Trace, Wait

MOST_MESSAGES = 1 << 22
"""Sent and received, by all ranks: a file's take 0.9 KB of memory each as they are written."""


def graphs(plan: Plan) -> dict[int, Graph]:
    """Each rank's graph. Sizes are in bytes (uint8); every message of a collective has a tag of its own.

    Point-to-point keeps its tags where those tell messages apart; else its operations' numbers are the tags. Raises
    TraceError for more than MOST_MESSAGES.
    """
    _check_number(op for own in plan.ranks.values() for op in own.ops if isinstance(op, Transfer))
    tags = _tags(plan)
    return {rank: _graph(own, tags) for rank, own in plan.ranks.items()}


def _check_number(transfers: Iterable[Transfer]) -> None:
    messages = 0
    for transfer in transfers:
        messages += len(transfer.schedule.tasks)
        if messages > MOST_MESSAGES:
            text = f"all ranks together send and receive more than {MOST_MESSAGES} messages"
            raise TraceError(text, mend="write fewer steps or ranks: tracebed scale")


def _tags(plan: Plan) -> dict[int, int]:
    """The first tag of each operation, by its number."""
    transfers = [op for own in plan.ranks.values() for op in own.ops if isinstance(op, Transfer)]
    p2p = [t for t in transfers if not isinstance(t.op, Collective)]
    apart = len({t.op.group for t in p2p}) <= 1 and all(_tag(t) >= 0 for t in p2p)
    keep = apart and not any(_overlapping(own) for own in plan.ranks.values())
    tags = {t.number: _tag(t) if keep else t.number for t in p2p}
    spans: dict[int, int] = {}
    for transfer in transfers:
        if not transfer.p2p:
            spans[transfer.number] = max(spans.get(transfer.number, 0), 1 + max(transfer.schedule.numbers, default=-1))
    free = max(tags.values(), default=-1) + 1
    for number, span in sorted(spans.items()):
        tags[number] = free
        free += span
    return tags


def _overlapping(plan: RankPlan) -> bool:
    """Whether two messages of one pair and tag are under way at once."""
    under_way: dict[int, tuple[object, ...]] = {}
    for index, op in enumerate(plan.ops):
        if isinstance(op, Wait):
            under_way.pop(op.op, None)
        elif isinstance(op, Transfer) and op.p2p:
            key = (*op.ranks, _tag(op))
            if key in under_way.values():
                return True
            under_way[index] = key
    return False


def _tag(transfer: Transfer) -> int:
    assert not isinstance(transfer.op, Collective)
    return transfer.op.tag


def _graph(plan: RankPlan, tags: Mapping[int, int]) -> Graph:
    growing = Growing()
    for index, op in enumerate(plan.ops):
        if isinstance(op, Transfer):
            growing.start(index, op.lane if op.ordered else None, partial(_messages, growing, op, tags[op.number]))
        else:
            growing.go_on(op)
    return tuple(growing.nodes)


def _messages(growing: Growing, transfer: Transfer, first: int, follows: frozenset[int]) -> frozenset[int]:
    """Adds the messages of `transfer`; gives those with which it ends."""
    schedule = transfer.schedule
    ends: list[frozenset[int]] = []  # by task: the nodes that have ended when it has
    for task, number in zip(schedule.tasks, schedule.numbers, strict=True):
        after = frozenset[int]().union(*(ends[earlier] for earlier in task.after)) if task.after else follows
        if isinstance(task, Copy):
            ends.append(after)
            continue
        kind = Send if isinstance(task, SendTask) else Recv
        nbytes = task.count * transfer.call.itemsize
        ends.append(frozenset({growing.add(kind(transfer.ranks[task.peer], nbytes, tag=first + number), after)}))
    last = [ends[task] for task, dependents in enumerate(schedule.dependents) if not dependents]
    return frozenset[int]().union(*last) if last else follows


def on_world(trace: Trace, plan: Plan) -> tuple[Trace, int]:
    """`trace` with no groups but the world, and how many collectives were lowered for that.

    Those of other groups become messages where they started, and the rank stops for them there. `plan` is the trace's.
    Raises TraceError for more than MOST_MESSAGES.
    """
    everyone = tuple(range(trace.world_size))
    of_all = [op for own in plan.ranks.values() for op in own.ops if isinstance(op, Transfer)]
    _check_number(op for op in of_all if op.p2p or op.ranks != everyone)
    tags = _tags(plan)
    programs, lowered = {}, 0
    for rank, own in plan.ranks.items():
        ops: list[Op] = []
        at_op: dict[int, int] = {}  # an operation of the trace that is still one here -> its index here
        for index, op in enumerate(own.ops):
            if isinstance(op, Wait):
                ops += [Wait(at_op[op.op], op.origin)] if op.op in at_op else []
            elif not isinstance(op, Transfer):
                ops.append(op)
            elif isinstance(op.op, Collective) and op.ranks != everyone:
                ops += _stopped(op, tags[op.number], len(ops))
                lowered += 1
            else:
                at_op[index] = len(ops)
                if isinstance(op.op, Collective):
                    ops.append(replace(op.op, group=0))
                else:
                    ops.append(replace(op.op, group=0, tag=tags[op.number]))
        programs[rank] = Program(rank, tuple(ops))
    return replace(trace, groups=(Group(0, "0", everyone, 0, "default_pg"),), programs=programs), lowered


def _stopped(transfer: Transfer, first: int, at: int) -> list[Op]:
    """A collective's messages in the order of its tasks, each stopping for those it follows; `at`: where they will be."""
    ops: list[Op] = []
    open_: dict[int, int] = {}  # tasks that are not waited for yet -> their operations
    schedule = transfer.schedule
    for index, (task, number) in enumerate(zip(schedule.tasks, schedule.numbers, strict=True)):
        ops += [Wait(open_.pop(earlier)) for earlier in task.after if earlier in open_]
        if not isinstance(task, Copy):
            kind = Send if isinstance(task, SendTask) else Recv
            open_[index] = at + len(ops)
            ops.append(kind(transfer.ranks[task.peer], task.count, transfer.op.dtype, first + number))
    return [*ops, *(Wait(op) for op in open_.values())]
