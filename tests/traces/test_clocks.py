"""Clocks of different hosts are put together by the ends of collectives."""

from __future__ import annotations

from tests.traces.build import reduce
from traces.clocks import offsets, residuals, shifted
from traces.program import Collective, CollectiveKind, Origin, Program


def rank(number: int, *ends: int) -> Program:
    return Program(number, tuple(reduce(end_ns=end) for end in ends))


def test_hosts_are_moved_by_the_median_difference_and_ranks_of_one_host_together() -> None:
    programs = {
        0: rank(0, 100, 200, 300),
        1: rank(1, 102, 200, 300),
        2: rank(2, 1100, 1203, 1300),
        3: rank(3, 1100, 1203, 1300),
    }
    hosts = {0: "a", 1: "a", 2: "b", 3: "b"}

    assert offsets(programs, hosts) == {0: 0, 1: 0, 2: -1000, 3: -1000}


def test_a_rank_whose_host_is_not_known_has_a_clock_of_its_own() -> None:
    assert offsets({0: rank(0, 100, 200), 1: rank(1, 140, 240)}, {}) == {0: 0, 1: -40}


def test_broadcast_ends_say_nothing_of_clocks() -> None:
    def root(number: int, end: int) -> Program:
        return Program(number, (Collective(CollectiveKind.BROADCAST, 0, 1, root=0, origin=Origin(0, -1, 0, end)),))

    assert offsets({0: root(0, 10), 1: root(1, 500)}, {}) == {0: 0, 1: 0}
    assert residuals({0: root(0, 10), 1: root(1, 500)}) == {0: 0, 1: 0}


def test_the_residual_is_the_worst_distance_left() -> None:
    programs = {0: rank(0, 100, 200), 1: rank(1, 107, 200), 2: rank(2, 101, 220)}

    assert residuals(programs) == {0: 20, 1: 20, 2: 20}
    assert residuals({0: programs[0], 1: programs[1]}) == {0: 7, 1: 7}


def test_moving_leaves_what_was_not_recorded() -> None:
    moved = shifted(Program(0, (reduce(end_ns=50), reduce())), -20)

    assert [(op.origin.start_ns, op.origin.end_ns) for op in moved.ops] == [(30, 30), (-1, -1)]
