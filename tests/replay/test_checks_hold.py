"""What the checks say of random programs, held against replaying them in model time: two engines that share no code."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.plan import lower
from tests.replay.network import Network, StuckError
from traces.checks import check, is_replayable
from traces.errors import TraceError
from traces.program import Collective, CollectiveKind, DType, Group, Op, Program, Recv, Send, StepMark, Trace, Wait

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


NUMBERS = st.integers(-1, 4)
SPLITS = st.lists(st.integers(0, 2), max_size=3).map(tuple)
CHANGES: dict[str, st.SearchStrategy[object]] = {
    "kind": st.sampled_from(CollectiveKind),
    "group": NUMBERS,
    "count": NUMBERS,
    "root": NUMBERS,
    "peer": NUMBERS,
    "tag": NUMBERS,
    "dtype": st.sampled_from([DType.INT8, DType.FLOAT32]),
    "reduce_op": st.sampled_from(["sum", "max"]),
    "send_splits": SPLITS,
    "recv_splits": SPLITS,
}


@st.composite
def nearly_right(draw: st.DrawFn) -> Trace:
    """A job of a few operations, of which some ranks have a field or two changed."""
    whole = draw(calls())
    changes = draw(
        st.dictionaries(st.sampled_from(sorted(CHANGES)), st.sets(st.sampled_from(range(RANKS))), max_size=3)
    )
    for field, ranks in changes.items():
        value = draw(CHANGES[field])
        for rank in ranks & whole.keys():
            whole[rank] = [replace(op, **{field: value}) if hasattr(op, field) else op for op in whole[rank]]
    programs = {rank: Program(rank, (*whole.get(rank, []), StepMark(0))) for rank in range(RANKS)}
    return Trace(RANKS, GROUPS, programs, 1)


@settings(max_examples=1000, deadline=None, derandomize=True)
@given(nearly_right())
def test_what_the_checks_let_pass_can_be_lowered(trace: Trace) -> None:
    if is_replayable(check(trace)):
        lower(trace)
