"""What holds for any trace, not only for those that somebody thought of."""

from __future__ import annotations

import os
import random
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.traces.build import exchange, trace
from traces import archive
from traces.checks import check
from traces.clock_fit import Clock, fit
from traces.clocks import align
from traces.errors import TraceError
from traces.meetings import meetings
from traces.program import (
    NOWHERE,
    ROOTED,
    Collective,
    CollectiveKind,
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
    Trace,
    Wait,
)
from traces.scale import with_ranks
from traces.steps import select
from traces.summary import summarise

SECOND = 1_000_000_000
MUTATIONS = 20_000
FAST = settings(deadline=None, derandomize=True, max_examples=60, suppress_health_check=list(HealthCheck))

counts = st.integers(0, 1 << 40)
names = st.text(st.characters(codec="utf-8"), max_size=12)
recorded = st.builds(
    Origin, st.integers(-1, 3), st.integers(-1, 1 << 40), st.integers(-1, 1 << 62), st.integers(-1, 1 << 62)
)
origins = st.just(NOWHERE) | recorded


@st.composite
def any_ops(draw: st.DrawFn, ranks: int) -> tuple[Op, ...]:
    splits = st.lists(counts, max_size=ranks).map(tuple)
    root = st.integers(-1, ranks - 1)
    collective = st.builds(
        Collective,
        st.sampled_from(CollectiveKind), st.integers(0, 1), counts, st.sampled_from(DType), root,
        st.sampled_from(["sum", "max", "avg"]), splits, splits, names, origins,
    )  # fmt: skip
    message = [
        st.integers(-1, ranks - 1),
        counts,
        st.sampled_from(DType),
        st.integers(0, 99),
        st.integers(0, 1),
        names,
        origins,
    ]
    drawn = draw(
        st.lists(
            st.one_of(
                st.builds(Compute, counts, names, origins),
                collective,
                st.builds(Send, *message),
                st.builds(Recv, *message),
                st.builds(Wait, st.integers(0, 12), origins),
                st.builds(StepMark, st.integers(0, 30), origins),
            ),
            max_size=12,
        )
    )
    ops: list[Op] = []
    for op in drawn:
        if not isinstance(op, Wait) or op.op < len(ops):  # an archive refuses a wait for what comes later
            ops.append(op)
    return tuple(ops)


@st.composite
def any_traces(draw: st.DrawFn) -> Trace:
    """Anything that the types allow, right or wrong."""
    ranks = draw(st.integers(1, 4))
    present = draw(st.sets(st.integers(0, ranks - 1), min_size=1))
    members = draw(st.lists(st.integers(0, ranks - 1), min_size=1, unique=True))
    return Trace(
        world_size=ranks,
        groups=(
            Group(0, "all", tuple(range(ranks)), 0),
            Group(1, draw(names), tuple(members), draw(st.integers(0, 1))),
        ),
        programs={rank: Program(rank, draw(any_ops(ranks))) for rank in sorted(present)},
        step_count=draw(st.integers(0, 9)),
        findings=tuple(draw(st.lists(st.builds(Finding, names, names), max_size=2))),
        hosts={rank: draw(names) for rank in sorted(present)},
        clock_residual_ns={rank: draw(counts) for rank in sorted(present)},
        provenance=draw(st.dictionaries(names, names, max_size=2)),
    )


@st.composite
def jobs(draw: st.DrawFn) -> Trace:
    """Jobs that are right: all ranks take part in the same collectives of a group of all, some beside compute."""
    ranks, steps = draw(st.integers(2, 5)), draw(st.integers(1, 3))
    calls = draw(
        st.lists(
            st.tuples(st.sampled_from(CollectiveKind), st.integers(1, 1000), st.booleans()), min_size=1, max_size=6
        )
    )
    ops: list[Op] = []
    for step in range(steps):
        later = []
        for kind, size, overlaps in calls:
            count = size * ranks if kind is CollectiveKind.ALL_TO_ALL else 0 if kind is CollectiveKind.BARRIER else size
            ops.append(Collective(kind, 0, count, DType.INT32, 0 if kind in ROOTED else -1))
            (later.append(len(ops) - 1) if overlaps else ops.append(Wait(len(ops) - 1)))  # type: ignore[func-returns-value]
            ops.append(Compute(size))
        ops += [Wait(index) for index in later]
        ops.append(StepMark(step))
    return trace(*[ops] * ranks)


@FAST
@given(any_traces())
def test_a_trace_is_the_same_after_writing_and_reading(
    tmp_path_factory: pytest.TempPathFactory, subject: Trace
) -> None:
    path = tmp_path_factory.mktemp("kept") / "a.trace"
    archive.write(subject, path)
    assert archive.read(path) == subject


@FAST
@given(any_traces())
def test_whatever_a_trace_holds_it_is_checked_and_summed_up(subject: Trace) -> None:
    marks = min(sum(isinstance(op, StepMark) for op in program.ops) for program in subject.programs.values())
    subject = replace(subject, step_count=marks)
    check(subject)
    assert len(summarise(subject).steps) == marks


@FAST
@given(
    st.lists(st.lists(st.integers(1, 9), min_size=3, max_size=3), min_size=3, max_size=3),
    st.integers(0, 8),
    st.integers(1, 5),
)
def test_splits_that_meet_are_sound_and_any_that_does_not_is_found(
    sent: list[list[int]], place: int, more: int
) -> None:
    received = [[row[rank] for row in sent] for rank in range(3)]
    assert check(trace(*[[exchange(sent[rank], received[rank]), Wait(0)] for rank in range(3)])) == ()
    rank, other = divmod(place, 3)
    received[rank][other] += more
    said = check(trace(*[[exchange(sent[rank], received[rank]), Wait(0)] for rank in range(3)]))
    assert [(finding.code, finding.rank) for finding in said] == [("splits-mismatch", rank)]


@FAST
@given(st.permutations(range(6)), st.integers(1, 5))
def test_groups_of_any_ranks_are_sound_and_one_rank_too_few_is_found(order: list[int], cut: int) -> None:
    groups = [order[:cut], order[cut:]]
    ops = [[Collective(CollectiveKind.ALL_REDUCE, 1 if rank in groups[0] else 2, 8), Wait(0)] for rank in range(6)]
    assert check(trace(*ops, groups=groups)) == ()
    if cut > 1:
        assert "truncated-group" in {f.code for f in check(trace(*ops, groups=[order[: cut - 1], order[cut:]]))}


@FAST
@given(
    st.integers(-10 * SECOND, 10 * SECOND),
    st.floats(-100, 100),
    st.integers(0, 40),
    st.integers(20, 200),
    st.integers(1, 600),
)
def test_a_clock_is_found_whatever_its_offset_and_drift(
    offset: int, ppm: float, jitter_us: int, number: int, seconds: int
) -> None:
    dice = random.Random(f"{offset} {ppm}")
    true = [20 * SECOND + SECOND * seconds * n // number for n in range(number)]
    shown = [t + offset + round(t * ppm * 1e-6) for t in true]
    clock = fit([(s, t - s + dice.randrange(1000 * jitter_us + 1)) for s, t in zip(shown, true, strict=True)])
    left = [abs(clock.right(s) - t) for s, t in zip(shown, true, strict=True)]
    # Up to 50 us are taken for one clock, and a drift of less than four times the noise for none.
    assert max(left) <= 50_000 + 4 * 1000 * jitter_us + 1000 * jitter_us


@FAST
@given(
    st.lists(st.tuples(st.integers(0, SECOND), st.integers(-SECOND, SECOND)), min_size=1, max_size=5),
    st.integers(0, SECOND),
)
def test_setting_right_and_moving_is_moving_what_was_set_right(pieces: list[tuple[int, int]], moment: int) -> None:
    clock = Clock(tuple(sorted(pieces)), 20.0, 5)
    assert clock.later(77).right(moment) == clock.right(moment) + 77


@FAST
@given(jobs(), st.integers(-SECOND, SECOND))
def test_aligning_changes_times_and_nothing_else(subject: Trace, offset: int) -> None:
    aligned = align(subject.programs, {})
    assert (aligned.programs, aligned.findings) == (subject.programs, ())  # nothing is timed
    timed = {
        rank: Program(
            rank,
            tuple(
                replace(op, origin=Origin(0, n, *(2 * [SECOND * (n + 2) + offset * rank // 5])))
                for n, op in enumerate(p.ops)
            ),
        )
        for rank, p in subject.programs.items()
    }
    moved = align(timed, {}).programs
    assert [[replace(op, origin=Origin()) for op in p.ops] for p in moved.values()] == [
        [replace(op, origin=Origin()) for op in p.ops] for p in subject.programs.values()
    ]
    assert min(op.origin.start_ns for p in moved.values() for op in p.ops) == 0


@FAST
@given(jobs(), st.data())
def test_any_steps_of_a_sound_job_are_a_sound_job(subject: Trace, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, subject.step_count - 1))
    last = data.draw(st.integers(first + 1, subject.step_count))
    cut = select(subject, first, last)
    assert cut.step_count == last - first
    assert all(finding.replayable for finding in check(cut))
    parts = [select(subject, step, step + 1) for step in range(subject.step_count)]
    assert sum(len(meetings(part.programs)) for part in parts) == len(meetings(subject.programs))


@FAST
@given(jobs(), st.integers(2, 9))
def test_a_sound_job_on_other_ranks_is_a_sound_job(subject: Trace, ranks: int) -> None:
    try:
        scaled = with_ranks(subject, ranks)
    except TraceError:
        assert any(
            isinstance(op, Collective) and op.kind is CollectiveKind.ALL_TO_ALL for op in subject.programs[0].ops
        )
        return
    assert (scaled.world_size, sorted(scaled.programs)) == (ranks, list(range(ranks)))
    assert all(finding.replayable for finding in check(scaled))
    assert with_ranks(subject, subject.world_size) == subject


def test_a_damaged_archive_is_refused_or_as_it_was(tmp_path: Path) -> None:
    """Single bytes change: in the zip's own fields, or in what a member holds, which its checksum shows."""
    path = tmp_path / "a.trace"
    ops = [Collective(CollectiveKind.ALL_REDUCE, 0, 8, DType.FLOAT32), Wait(0), Compute(7, "x"), StepMark(0)]
    archive.write(trace(ops), path)
    whole, kept = path.read_bytes(), archive.read(path)
    dice = random.Random("damage archive")
    memory = os.memfd_create("damaged")  # a disk would take most of the time
    damaged = Path(f"/proc/self/fd/{memory}")
    same = refused = 0
    for _ in range(MUTATIONS):
        bad = bytearray(whole)
        for _ in range(dice.randint(1, 3)):
            bad[dice.randrange(len(bad))] = dice.randrange(256)
        os.ftruncate(memory, 0)
        os.pwrite(memory, bad if dice.random() < 0.9 else bad[: dice.randrange(len(bad))], 0)
        try:
            assert archive.read(damaged) == kept
            same += 1
        except TraceError:
            refused += 1
    os.close(memory)
    assert same > MUTATIONS // 1000
    assert refused > MUTATIONS // 2


def test_an_archive_with_a_damaged_header_is_refused_or_can_be_checked(tmp_path: Path) -> None:
    """As above, but what is damaged is what the members say: the checksums are right."""
    path = tmp_path / "a.trace"
    archive.write(trace([Collective(CollectiveKind.ALL_REDUCE, 0, 8), Wait(0), StepMark(0)]), path)
    with zipfile.ZipFile(path) as kept:
        members = {name: kept.read(name) for name in kept.namelist()}
    dice = random.Random("damage header")
    read = refused = 0
    for _ in range(MUTATIONS // 20):
        name = dice.choice(list(members))
        bad = bytearray(members[name])
        bad[dice.randrange(len(bad))] = dice.randrange(256)
        with zipfile.ZipFile(path, "w") as made:
            for member, data in members.items():
                made.writestr(member, bytes(bad) if member == name else data)
        try:
            archive.read(path)
            read += 1
        except TraceError:
            refused += 1
    assert read > 50
    assert refused > 50
