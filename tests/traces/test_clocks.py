"""Clocks of different hosts are put together by the ends of collectives; the truth is made here."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.traces.build import reduce
from tests.traces.recordings import all_reduce, gloo, kineto, step
from traces.clock_fit import Clock, fit
from traces.clocks import align, residuals, shifted
from traces.importer import import_files
from traces.program import Collective, CollectiveKind, Op, Origin, Program, Recv, Send
from traces.steps import recorded_step_ns

SECOND = 1_000_000_000
LATE_NS = 20_000.0  # the mean of what a rank is late to see an end


def rank(number: int, *ends: int) -> Program:
    return Program(number, tuple(reduce(end_ns=end) for end in ends))


def moved(programs: dict[int, Program], hosts: dict[int, str] | None = None) -> dict[int, list[int]]:
    aligned = align(programs, hosts or {})
    return {
        rank: [op.origin.end_ns + aligned.started_ns for op in program.ops]
        for rank, program in aligned.programs.items()
    }


def job(shows: Callable[[int], int], *, number: int = 600, seconds: int = 600, outliers: int = 0) -> dict[int, Program]:
    """Two hosts, whose ranks see each end late by some exponential time; the second's clock shows shows(t) at t."""
    dice = random.Random(f"{number} {seconds} {outliers}")
    ends = [100 * SECOND + seconds * SECOND * n // number for n in range(number)]
    late = {
        0: [round(dice.expovariate(1 / LATE_NS)) for _ in ends],
        1: [round(dice.expovariate(1 / LATE_NS)) for _ in ends],
    }
    for n in dice.sample(range(number), outliers):
        late[1][n] += dice.randrange(50_000_000)
    return {
        0: rank(0, *[end + wait for end, wait in zip(ends, late[0], strict=True)]),
        1: rank(1, *[shows(end + wait) for end, wait in zip(ends, late[1], strict=True)]),
    }


def typical(programs: Sequence[Program]) -> int:
    """The median distance between the ends of a collective, in ns."""
    ends = zip(*[[op.origin.end_ns for op in program.ops] for program in programs], strict=True)
    apart = sorted(max(each) - min(each) for each in ends)
    return apart[len(apart) // 2]


def drifting(t: int) -> int:
    return t + SECOND + t * 50 // 1_000_000


def stepped(t: int) -> int:
    return t + SECOND + (20_000_000 if t > 430 * SECOND else 0)


def both(t: int) -> int:
    return drifting(t) + (20_000_000 if t > 430 * SECOND else 0)


CLOCKS = {"offset": lambda t: t + SECOND, "drift": drifting, "step": stepped, "drift and step": both}


@pytest.mark.parametrize("outliers", [0, 120])
@pytest.mark.parametrize("name", CLOCKS)
def test_offset_drift_and_steps_are_taken_out(name: str, outliers: int) -> None:
    recorded = job(CLOCKS[name], outliers=outliers)
    aligned = align(recorded, {})

    assert typical(list(recorded.values())) > 0.9 * SECOND
    assert typical(list(aligned.programs.values())) < 2 * LATE_NS
    assert aligned.before_ns[1] > 0.9 * SECOND
    assert aligned.after_ns[1] < (400_000 if not outliers else 51_000_000)
    (said,) = aligned.findings
    assert (said.code, said.rank) == ("clock-aligned", 1)
    assert ("ppm" in said.message) == ("drift" in name)
    assert ("it was set while recording (+" in said.message) == ("step" in name)


def test_what_was_found_is_what_was_put_in() -> None:
    ends = [100 * SECOND + SECOND * n for n in range(600)]
    clock = fit([(both(t), t - both(t)) for t in ends])
    assert clock.drift_ppm == pytest.approx(-50, abs=0.1)
    assert clock.steps_ns == (pytest.approx(20_000_000, abs=20_000),)
    assert max(abs(clock.right(both(t)) - t) for t in ends) < 2_000


def test_noise_is_taken_for_neither_drift_nor_steps() -> None:
    dice = random.Random(1)
    for seconds in (1, 60):
        noise = [(n * SECOND * seconds // 200, round(dice.expovariate(1 / LATE_NS))) for n in range(200)]
        clock = fit(noise)
        assert (clock.drift_ppm, len(clock.pieces)) == (0, 1)


def test_hosts_with_few_collectives_in_common_are_moved_by_those() -> None:
    for number in (1, 2, 3, 9):
        aligned = align(job(lambda t: t + SECOND, number=number), {})
        assert aligned.after_ns[1] < 200_000
        assert f"by the ends of {number} collectives" in aligned.findings[0].message


def test_ranks_of_one_host_are_moved_together() -> None:
    programs = {0: rank(0, 100_000, 200_000), 1: rank(1, 102_000, 200_000), 2: rank(2, 1_100_000, 1_203_000)}
    programs[3] = rank(3, 1_100_000, 1_200_000)
    found = moved(programs, {0: "a", 1: "a", 2: "b", 3: "b"})
    assert found == {0: [100_000, 200_000], 1: [102_000, 200_000], 2: [100_000, 203_000], 3: [100_000, 200_000]}


def test_a_host_is_aligned_through_another_where_it_never_meets_the_first() -> None:
    ends = [SECOND * n for n in range(1, 20)]

    def program(number: int, ahead: int, groups: Sequence[int]) -> Program:
        return Program(number, tuple(reduce(group=group, end_ns=end + ahead) for end in ends for group in groups))

    aligned = align({0: program(0, 0, [1]), 1: program(1, 5_000_000, [1, 2]), 2: program(2, 9_000_000, [2])}, {})
    assert [op.origin.end_ns for op in aligned.programs[2].ops] == [end - SECOND for end in ends]
    assert residuals(aligned.programs) == {0: 0, 1: 0, 2: 0}


def test_a_rank_whose_window_opened_later_is_held_against_the_right_collectives() -> None:
    whole = [reduce(count, end_ns=count * SECOND) for count in range(1, 9)]
    late = [reduce(count, end_ns=count * SECOND + 70_000) for count in range(4, 9)]
    found = align({0: Program(0, tuple(whole)), 1: Program(1, tuple(late))}, {})
    assert found.before_ns == {0: 70_000, 1: 70_000}
    assert found.after_ns == {0: 0, 1: 0}


def test_where_only_messages_were_recorded_causality_bounds_the_offset() -> None:
    def message(op: type[Send | Recv], peer: int, start: int, end: int) -> Op:
        return op(peer, 4, origin=Origin(0, -1, start, end))

    # Rank 1 is 1 s ahead; each message takes 2 ms.
    there = message(Send, 1, SECOND, SECOND + 1), message(Recv, 0, 2 * SECOND, 2 * SECOND + 2_000_000)
    back = message(Recv, 1, SECOND, 3 * SECOND + 2_000_000), message(Send, 0, 4 * SECOND, 4 * SECOND + 1)
    aligned = align({0: Program(0, (there[0], back[0])), 1: Program(1, (there[1], back[1]))}, {})
    assert aligned.programs[1].ops[1].origin.start_ns == 3 * SECOND - aligned.started_ns
    assert "leaves between -1002.000 ms and -998.000 ms" in aligned.findings[0].message

    one_way = align({0: Program(0, there[:1]), 1: Program(1, (message(Recv, 0, 0, SECOND - 5_000_000),))}, {})
    assert one_way.programs[1].ops[0].origin.end_ns == SECOND - one_way.started_ns
    right = align({0: Program(0, there[:1]), 1: Program(1, there[1:])}, {})
    assert right.findings == ()


def test_a_broadcast_is_not_received_before_its_root_has_sent() -> None:
    def root(number: int, start: int, end: int) -> Program:
        return Program(number, (Collective(CollectiveKind.BROADCAST, 0, 1, root=0, origin=Origin(0, -1, start, end)),))

    assert moved({0: root(0, 500, 600), 1: root(1, 20, 400)}) == {0: [600], 1: [500]}
    assert moved({0: root(0, 500, 600), 1: root(1, 20, 900)}) == {0: [600], 1: [900]}
    assert residuals({0: root(0, 10, 20), 1: root(1, 400, 500)}) == {0: 0, 1: 0}


def test_the_residual_is_the_worst_distance_left() -> None:
    programs = {0: rank(0, 100, 200), 1: rank(1, 107, 200), 2: rank(2, 101, 220)}

    assert residuals(programs) == {0: 20, 1: 20, 2: 20}
    assert residuals({0: programs[0], 1: programs[1]}) == {0: 7, 1: 7}


def test_moving_leaves_what_was_not_recorded() -> None:
    back = Clock(((0, -20),))
    found = shifted(Program(0, (reduce(end_ns=50), reduce())), back)

    assert [(op.origin.start_ns, op.origin.end_ns) for op in found.ops] == [(30, 30), (-1, -1)]


def test_an_import_says_how_hosts_were_aligned(tmp_path: Path) -> None:
    def events(later_us: int) -> list[dict[str, object]]:
        return [
            step(0, later_us, later_us + 50),
            all_reduce(later_us + 10, later_us + 12, 3, 8, is_async=False),
            gloo("all_reduce", later_us + 11, later_us + 40, 4),
        ]

    for number, (host, later_us) in enumerate((("a", 0), ("b", 1_000_000))):
        (tmp_path / f"rank-{number}.json").write_text(json.dumps(kineto(events(later_us), rank=number, host=host)))
    found = import_files([tmp_path])
    assert [(f.code, f.rank) for f in found.findings] == [("clock-aligned", 1)]
    assert (
        found.findings[0].message
        == "the clock of b was moved by -1000.000 ms, by the ends of 1 collectives; 0 us are left"
    )
    assert recorded_step_ns(found) == (50_000,)
    assert found.clock_residual_ns == {0: 0, 1: 0}
