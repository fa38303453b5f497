"""Recorded jobs with other numbers of ranks and steps, and without names; what does not change, and what is refused."""

from __future__ import annotations

import re
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import ROOT
from tests.traces.build import exchange, reduce, sync, trace
from traces import archive
from traces.checks import check, is_replayable
from traces.errors import TraceError
from traces.program import (
    NOWHERE,
    Collective,
    CollectiveKind,
    Compute,
    Finding,
    Group,
    Op,
    Origin,
    Program,
    Recv,
    Send,
    Source,
    StepMark,
    Trace,
    Wait,
)
from traces.scale import anonymised, repeated, with_ranks
from traces.steps import recorded_step_ns, select

SAMPLE = ROOT / "traces" / "samples" / "resnet50-ddp.trace"
SHARDED = (CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_GATHER)
KINDS = tuple(kind for kind in CollectiveKind if kind is not CollectiveKind.ALL_TO_ALL)


@st.composite
def jobs(draw: st.DrawFn) -> Trace:
    """Data-parallel jobs: each rank computes for its own time and starts the same collectives, in steps."""
    ranks = draw(st.integers(1, 5))
    ops: list[Op] = []
    steps = draw(st.integers(1, 3))
    for step in range(steps):
        for kind in draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4)):
            ops.append(Compute(draw(st.integers(0, 9)), origin=Origin(0, 7, 20, 30)))
            count = 0 if kind is CollectiveKind.BARRIER else draw(st.integers(1, 100))
            rooted = kind in (
                CollectiveKind.BROADCAST,
                CollectiveKind.REDUCE,
                CollectiveKind.GATHER,
                CollectiveKind.SCATTER,
            )
            ops.append(Collective(kind, 0, count, root=0 if rooted else -1))
            ops += [Wait(len(ops) - 1)] if draw(st.booleans()) else []
        ops.append(StepMark(step))
    return trace(
        *[[replace(op, ns=op.ns + rank) if isinstance(op, Compute) else op for op in ops] for rank in range(ranks)]
    )


@settings(max_examples=200, deadline=None, derandomize=True)
@given(jobs(), st.integers(1, 9))
def test_another_number_of_ranks(job: Trace, ranks: int) -> None:
    """Sound as before; each rank computes as one of the old did; tensors are what they were, shards add up to them."""
    scaled = with_ranks(job, ranks)
    assert is_replayable(check(scaled)) == is_replayable(check(job))
    assert (scaled.world_size, sorted(scaled.programs)) == (ranks, list(range(ranks)))
    for rank, program in scaled.programs.items():
        for old, new in zip(job.programs[rank % job.world_size].ops, program.ops, strict=True):
            if isinstance(old, Collective) and old.kind in SHARDED:
                assert isinstance(new, Collective)
                assert 0 <= new.count * ranks - old.count * job.world_size < ranks
                old = replace(old, count=new.count)
            assert replace(new, origin=NOWHERE) == replace(old, origin=NOWHERE)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(jobs(), st.integers(2, 4))
def test_ranks_that_are_added_and_taken_away_again(job: Trace, times: int) -> None:
    there = with_ranks(job, job.world_size * times)
    back = with_ranks(there, job.world_size)
    assert [group.ranks for group in back.groups] == [group.ranks for group in job.groups]
    for old, new in zip(job.programs[0].ops, back.programs[0].ops, strict=True):
        if isinstance(old, Collective) and isinstance(new, Collective) and old.kind in SHARDED:
            assert 0 <= new.count - old.count < times  # rounded up to whole shares on the way
        else:
            assert replace(new, origin=NOWHERE) == replace(old, origin=NOWHERE)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(jobs(), st.integers(1, 4))
def test_steps_repeated_are_the_steps_again_and_again(job: Trace, times: int) -> None:
    longer = repeated(job, times)
    assert longer.step_count == job.step_count * times
    assert is_replayable(check(longer)) == is_replayable(check(job))
    for rank, program in longer.programs.items():
        marks = [op.step for op in program.ops if isinstance(op, StepMark)]
        assert marks == list(range(longer.step_count))
        for part in range(times):
            again = select(longer, part * job.step_count, (part + 1) * job.step_count).programs[rank]
            for old, new in zip(job.programs[rank].ops, again.ops, strict=True):
                moved = replace(new, step=old.step) if isinstance(new, StepMark) and isinstance(old, StepMark) else new
                assert replace(moved, origin=NOWHERE) == replace(old, origin=NOWHERE)


def test_the_sample_on_more_ranks_says_what_was_assumed() -> None:
    scaled = with_ranks(archive.read(SAMPLE), 16)
    assert is_replayable(check(scaled))
    (said,) = [finding for finding in scaled.findings if finding.code == "assumed-ranks"]
    assert said.message.startswith("16 ranks from 4 recorded of 4: rank r does what recorded rank r mod 4 did")
    assert recorded_step_ns(scaled) == ()
    assert (scaled.hosts, scaled.clock_residual_ns) == ({}, {})


def test_as_many_ranks_as_there_are_changes_nothing() -> None:
    job = trace(sync(reduce()), sync(reduce()))
    assert with_ranks(job, 2) is job
    assert repeated(job, 1) is job


def test_a_recording_of_one_rank_makes_the_whole_job() -> None:
    lone = trace((*sync(reduce()), StepMark(0)), world_size=8)
    assert not is_replayable(check(lone))
    whole = with_ranks(lone, 8)
    assert is_replayable(check(whole))
    assert whole.programs[7].ops[:2] == sync(reduce())


def test_findings_of_ranks_that_are_gone_are_gone() -> None:
    job = replace(trace(*[sync(reduce())] * 4), findings=(Finding("a", "x", rank=0, op=1), Finding("b", "y", rank=3)))
    kept = with_ranks(job, 2).findings
    assert [(f.code, f.rank, f.op) for f in kept] == [("a", 0, -1), ("assumed-ranks", -1, -1)]


def test_groups_that_are_not_used_are_no_obstacle() -> None:
    job = trace(*[sync(reduce())] * 4, groups=[(0, 1), (2, 3)])
    assert with_ranks(job, 6).groups == (Group(0, "0", (0, 1, 2, 3, 4, 5), 0),)


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (
            trace(
                *[(*sync(reduce(group=1 + rank // 2)), *sync(reduce(), 2)) for rank in range(4)],
                groups=[(0, 1), (2, 3)],
            ),
            "not data-parallel over all 4 ranks: group '1' (rank 0-1), '2' (rank 2-3) (--along names a group",
        ),
        (
            trace(sync(exchange([1, 2], [1, 3])), sync(exchange([3, 4], [2, 4]))),
            "group '0' does not join replicas: group '0', which joins them, has all_to_all",
        ),
        (trace([Send(1, 4)], [Recv(0, 4)]), "group '0' does not join replicas: group '0', which joins them, has send"),
        (
            trace(sync(reduce(8)), sync(reduce(9))),
            "can't be scaled: all_reduce of 36 bytes, 32 at rank 0 [size-mismatch]",
        ),
    ],
    ids=["groups", "all_to_all", "p2p", "unsound"],
)
def test_jobs_that_are_not_data_parallel_are_refused_by_name(job: Trace, said: str) -> None:
    with pytest.raises(TraceError, match=re.escape(said)):
        with_ranks(job, 8)


def test_a_root_that_is_no_rank_any_more() -> None:
    last = Collective(CollectiveKind.BROADCAST, 0, 4, root=3)
    with pytest.raises(TraceError, match=r"rank 0, op 0: broadcast has root 3, which is no rank of a job of 2"):
        with_ranks(trace(*[sync(last)] * 4), 2)


def test_what_lies_behind_the_last_step_is_not_repeated() -> None:
    ops = (*sync(reduce()), StepMark(4), *sync(reduce(9), 3))
    longer = repeated(trace(ops, ops), 2)
    assert longer.programs[1].ops == (*sync(reduce()), StepMark(4), *sync(reduce(), 3), StepMark(5))


def test_a_trace_without_steps_has_none_to_repeat() -> None:
    with pytest.raises(TraceError, match="no steps 0:0"):
        repeated(trace(sync(reduce()), sync(reduce())), 2)


def test_no_name_is_left_and_equal_names_stay_equal(tmp_path: Path) -> None:
    secrets = [
        "opname-a",
        "opname-b",
        "groupname",
        "groupwords",
        "hostname-a",
        "/path/of/file",
        "command-line",
        "deadbeef",
    ]
    ops: tuple[Op, ...] = (
        Compute(5, "opname-a"),
        replace(reduce(), name="opname-b"),
        Wait(1),
        Compute(6, "opname-a"),
        Compute(6),
        StepMark(0),
    )
    job = replace(
        trace(ops, ops),
        groups=(Group(0, "groupname", (0, 1), 0, "groupwords"),),
        hosts={0: "hostname-a", 1: "hostname-a"},
        sources=(Source("/path/of/file", "deadbeef", "kineto", 0),),
        findings=(Finding("skipped-file", "/path/of/file is in no known format", "info"),),
        provenance={"tracebed": "1.0", "argv": "command-line"},
    )
    hidden = anonymised(job)
    archive.write(hidden, tmp_path / "hidden.trace")
    with zipfile.ZipFile(tmp_path / "hidden.trace") as file:
        written = b"".join(file.read(name) for name in file.namelist()).decode("latin-1")
    assert [secret for secret in secrets if secret in written] == []

    assert [op.name for op in hidden.programs[1].ops if isinstance(op, Compute)] == ["op0", "op0", ""]
    assert hidden.hosts == {0: "host0", 1: "host0"}
    assert hidden.sources == (Source("source0", "", "kineto", 0),)
    assert hidden.provenance == {"tracebed": "1.0"}
    assert check(hidden)[0].code == "skipped-file"


def test_numbers_stay_when_names_go() -> None:
    sample = archive.read(SAMPLE)
    hidden = anonymised(sample)
    assert recorded_step_ns(hidden) == recorded_step_ns(sample)

    def nameless(program: Program) -> list[Op]:
        return [op if isinstance(op, Wait | StepMark) else replace(op, name="") for op in program.ops]

    def named(program: Program) -> list[str]:
        return [op.name for op in program.ops if not isinstance(op, Wait | StepMark)]

    for rank, program in sample.programs.items():
        assert nameless(hidden.programs[rank]) == nameless(program)
        names = set(zip(named(program), named(hidden.programs[rank]), strict=True))
        assert len({old for old, _ in names}) == len({new for _, new in names}) == len(names) > 1
