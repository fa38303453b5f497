"""What the checks say of random programs, held against replaying them in model time: two engines that share no code."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.plan import lower
from tests.replay.network import Network, StuckError
from traces.checks import check, is_replayable
from traces.errors import TraceError
from traces.program import Collective, CollectiveKind, Group, Op, Program, Recv, Send, StepMark, Trace, Wait

RANKS = 3
GROUPS = (
    Group(0, "world", (0, 1, 2), 0),
    Group(1, "first", (0, 1), 1),
    Group(2, "last", (1, 2), 1),  # of one lane with the one before
)
KINDS = (CollectiveKind.ALL_REDUCE, CollectiveKind.BROADCAST, CollectiveKind.REDUCE, CollectiveKind.BARRIER)
DEADLOCKS = {"deadlock", "deadlock-unbuffered", "never-ends"}


@st.composite
def calls(draw: st.DrawFn) -> dict[int, list[Op]]:
    """One operation, at each rank that takes part."""
    if draw(st.booleans()):
        source, target = draw(st.permutations(range(RANKS)))[:2]
        return {source: [Send(target, 4)], target: [Recv(source, 4)]}
    group = draw(st.sampled_from(GROUPS))
    kind = draw(st.sampled_from(KINDS))
    root = draw(st.sampled_from(group.ranks)) if kind in (CollectiveKind.BROADCAST, CollectiveKind.REDUCE) else -1
    op = Collective(kind, group.id, 0 if kind is CollectiveKind.BARRIER else 4, root=root)
    return {rank: [op] for rank in group.ranks}


@st.composite
def jobs(draw: st.DrawFn) -> Trace:
    """Operations that all find their counterparts, each rank's in an order of its own, waited for at once, late or never."""
    drawn = draw(st.lists(calls(), min_size=3, max_size=6))
    programs = {}
    for rank in range(RANKS):
        in_order = [op for call in drawn for op in call.get(rank, [])]
        mine = draw(st.permutations(in_order))
        ops: list[Op] = []
        late: list[Op] = []
        for op in mine:
            ops.append(op)
            when = draw(st.sampled_from(("at once", "late", "never")))
            if when != "never":
                (ops if when == "at once" else late).append(Wait(len(ops) - 1))
        programs[rank] = Program(rank, (*ops, *late, StepMark(0)))
    return Trace(RANKS, GROUPS, programs, 1)


@settings(max_examples=1500, deadline=None, derandomize=True)
@given(jobs())
def test_what_is_found_stuck_is_stuck_and_what_is_not_ends(trace: Trace) -> None:
    findings = check(trace)
    codes = {finding.code for finding in findings}
    if is_replayable(findings):
        network = Network(lower(trace))
        if not codes & DEADLOCKS:
            network.run()
        return
    assert codes & DEADLOCKS or "op-seen-by-some" in codes or "root-mismatch" in codes, codes
    try:
        plan = lower(trace)
    except TraceError:
        return  # out of order by kind or root, which lowering refuses
    with pytest.raises(StuckError):
        Network(plan).run()
