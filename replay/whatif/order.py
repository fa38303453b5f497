"""When gradients are needed, and which of them goes first: waits in the next forward pass, slices, priorities."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

from replay.sending import ORDERS, Sending
from replay.whatif.edit import Edit, Place, edited, edits_of
from replay.whatif.gradients import Round, rounds
from replay.whatif.options import VALUE, Options
from replay.whatif.registry import Scenario, what_if
from replay.whatif.tensors import BACKWARD
from traces.program import Compute, Program, Wait, op_bytes


@what_if(
    "waits=forward,passes=N,along=GROUP",
    does="a layer of the next forward pass waits for its own gradients, instead of all at the step's end; passes=N where a step "
    "accumulates N",
    assumes="the forward pass of what an operation reduces takes half its backward pass; compute behind the waits (the optimizer) "
    "follows each by bytes; the first step waits for nothing, the last one's waits are behind its mark",
    source="P3 (MLSys 2019), ByteScheduler (SOSP 2019); half: PaLM, arXiv 2204.02311, appendix B",
)
def waits(scenario: Scenario, options: Options) -> tuple[Scenario, str]:
    """Moves each gradient's wait to where the next step needs it."""
    options.choice(VALUE, ("forward",))
    trace, passes = scenario.trace, options.whole("passes", 1, 10_000, 1)
    if trace.step_count < 2:
        raise options.error("the trace has one step, which no other follows", "`tracebed scale --repeat` makes more")
    edits = edits_of(trace)
    by_step: defaultdict[int, dict[int, Round]] = defaultdict(dict)
    for one in rounds(trace, options):
        by_step[one.step][one.group] = one
    for step, of in by_step.items():
        after = by_step.get(step + 1, {}) if step + 1 < trace.step_count else of
        if {group: len(one.ops) for group, one in of.items()} != {group: len(one.ops) for group, one in after.items()}:
            text = f"steps {step} and {step + 1} do not reduce the same"
            raise options.error(text, "--steps leaves a step out")
        for rank, edit in edits.items():
            if any(rank in one.started for one in of.values()):
                _move(edit, rank, of, after, passes, options)
    counts = {sum(len(one.ops) for one in of.values()) for of in by_step.values()}
    said = (
        f"waits: each of the {max(counts)} operations of a step is waited for where the next forward pass needs it, "
        "which takes half as long as the backward pass; the first step waits for nothing: look at those behind it"
    )
    return scenario.on(edited(trace, edits)), said


def _move(edit: Edit, rank: int, of: dict[int, Round], after: dict[int, Round], passes: int, options: Options) -> None:
    """Moves the waits of one step at one rank, and what it computes behind them."""
    mine = {group: one for group, one in of.items() if rank in one.started}
    some = next(iter(mine.values()))
    end = some.end[rank]
    waited = [one for in_group in mine.values() for one in in_group.started[rank] if one.wait >= 0]
    first = min((one.wait for one in waited), default=end)
    if any(one.wait > end for one in waited):
        raise options.error("gradients are waited for in the next step already", "leave it out")
    if any(one.start > first for in_group in mine.values() for one in in_group.started[rank]):
        raise options.error(
            "gradients are waited for before all of a step are started", "--what-if overlap=on may help"
        )
    is_last = after is of
    needs: list[tuple[Place, int, int, int]] = []
    for group, one in mine.items():
        needed = [Place(end + 1)] * len(one.ops) if is_last else _needed(edit, after[group], rank, passes)
        for number, (started, at) in enumerate(zip(one.started[rank], needed, strict=True)):
            if started.wait >= 0:
                needs.append((at, -number, started.start, op_bytes(one.ops[number])))
                edit.remove(started.wait)
    behind = [index for index in range(first, end) if isinstance(edit.program.ops[index], Compute)]
    left = edit.done_ns[end] - edit.done_ns[first]
    for index in behind:
        edit.remove(index)
    unseen = sum(nbytes for _, _, _, nbytes in needs)
    for at, _, start, nbytes in sorted(needs):
        share = left * nbytes // unseen if unseen else 0
        edit.wait(at, start)
        edit.compute(at, share, "optimizer")
        left, unseen = left - share, unseen - nbytes


def _needed(edit: Edit, one: Round, rank: int, passes: int) -> list[Place]:
    """Where the first forward pass of a round's step needs what the round before it reduced: it runs against the order in which
    the last backward pass gave them. Of the compute before the last start, each of the passes has as much, two thirds backward."""
    begin, end = one.begin[rank], one.end[rank]
    started = [edit.done_ns[each.start] - edit.done_ns[begin] for each in one.started[rank]]
    forward, backward = (math.floor(started[-1] * part / passes) for part in (1 - BACKWARD, BACKWARD))
    spent = [max(0, started[0] - started[-1] + backward), *(later - sooner for sooner, later in pairwise(started))]
    whole = sum(spent)
    before = [sum(spent[number + 1 :]) for number in range(len(spent))]
    return [edit.place(edit.done_ns[begin] + (forward * ns // whole if whole else 0), begin, end) for ns in before]


@what_if(
    "partition=SIZE,along=GROUP",
    does="cuts each gradient into operations of at most SIZE, which go one after the other",
    assumes="cutting and joining cost nothing",
    source="P3 (MLSys 2019); ByteScheduler (SOSP 2019)",
)
def partition(scenario: Scenario, options: Options) -> tuple[Scenario, str]:
    """Slices of the gradients."""
    size = options.size(VALUE)
    trace = scenario.trace
    edits = edits_of(trace)
    most = 1
    for one in rounds(trace, options):
        for number, op in enumerate(one.ops):
            each = size // op.dtype.itemsize
            if not each:
                raise options.error(f"an element of {op.dtype} is larger", "write 4MB, say")
            counts = [min(each, op.count - first) for first in range(0, op.count, each)]
            most = max(most, len(counts))
            if len(counts) < 2:
                continue
            for rank, started in one.started.items():
                edit, old = edits[rank], started[number]
                edit.remove(old.start)
                keys = [
                    edit.start(
                        Place(old.start), replace(op, count=count, name=f"{op.name} {slice_}/{len(counts)}".strip())
                    )
                    for slice_, count in enumerate(counts)
                ]
                if old.wait >= 0:
                    edit.remove(old.wait)
                    for key in keys:
                        edit.wait(Place(old.wait), key)
    said = f"partition: gradients go in slices of at most {size}, up to {most} each"
    return scenario.on(edited(trace, edits)), said


@what_if(
    "priority=waits|fifo,credit=SIZE",
    does="collectives of a rank progress together, and the next message to leave is that of the operation which is waited for "
    "first (waits) or was started first (fifo), with at most credit (4MiB) given to the kernel",
    assumes="ranks need not agree, each orders what it sends; what the kernel has taken (a window and 128 KiB) is not overtaken",
    source="P3 (MLSys 2019); ByteScheduler (SOSP 2019): credit; TicTac (MLSys 2019): the order of waits",
)
def priority(scenario: Scenario, options: Options) -> tuple[Scenario, str]:
    """Which message leaves a rank first."""
    order = options.choice(VALUE, ORDERS)
    credit = options.size("credit", "4MiB")
    if not credit:
        raise options.error("nothing can be sent without credit", "write credit=4MiB, say")
    if scenario.sending is not None:
        raise options.error("there is a priority already", "leave one out")
    if order == "waits" and not any(_overtakes(program) for program in scenario.trace.programs.values()):
        text = "everything is waited for in the order in which it is started, so nothing is more urgent"
        raise options.error(text, "put --what-if waits=forward in front of it")
    said = {"waits": "waited for", "fifo": "started"}[order]
    statement = (
        f"priority: of a rank's collectives the message that leaves next is of the one {said} first, with {credit} of credit; "
        "what the kernel has taken is not overtaken"
    )
    return replace(scenario, sending=Sending(order, credit)), statement


def _overtakes(program: Program) -> bool:
    """Whether something is waited for before what was started before it."""
    return any(later < sooner for sooner, later in pairwise(op.op for op in program.ops if isinstance(op, Wait)))
