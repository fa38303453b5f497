"""When ranks are held to be stuck for ever: only where no timer runs and nothing that was sent can still be taken."""

from __future__ import annotations

from replay.control import Connection, Status
from replay.stuck import MOST_NAMED, is_deadlock, waiting


def rank(number: int, *connections: Connection, computing: bool = False, finished: bool = False) -> Status:
    return Status(number, f"rank {number} waits", computing, finished, connections)


def states(*ranks: Status) -> dict[int, Status]:
    return {each.rank: each for each in ranks}


def to(peer: int, started: int, posted: int, received: int) -> Connection:
    return Connection(peer, 0, True, started, posted, received)


def test_ranks_that_each_wait_for_what_the_other_has_not_sent() -> None:
    assert is_deadlock(states(rank(0, to(1, 3, 4, 3)), rank(1, to(0, 3, 4, 3))))


def test_ranks_that_each_wait_for_room_while_neither_takes_anything() -> None:
    assert is_deadlock(states(rank(0, to(1, 1, 0, 0)), rank(1, to(0, 1, 0, 0))))


def test_one_that_waits_for_one_that_is_at_its_end() -> None:
    assert is_deadlock(states(rank(0, to(1, 0, 1, 0)), rank(1, finished=True)))


def test_a_message_under_way_may_still_come() -> None:
    assert not is_deadlock(states(rank(0, to(1, 4, 4, 3)), rank(1, to(0, 3, 4, 3))))


def test_a_rank_that_computes_may_still_send() -> None:
    assert not is_deadlock(states(rank(0, to(1, 0, 1, 0)), rank(1, computing=True)))


def test_ranks_that_are_all_at_their_end_are_not_stuck() -> None:
    assert not is_deadlock(states(rank(0, finished=True), rank(1, finished=True)))


def test_a_library_that_tells_of_no_connections_is_never_held_to_be_stuck() -> None:
    quiet = [Status(number, "waits", False, False, (), heard=7) for number in (0, 1)]
    assert not is_deadlock(states(*quiet))


def test_lanes_are_connections_of_their_own() -> None:
    """What was started on the other lane doesn't help."""
    other = Connection(0, 1, True, started=1)
    assert is_deadlock(states(rank(0, to(1, 0, 1, 0)), rank(1, other)))


def test_the_first_few_are_named() -> None:
    assert waiting(states(rank(1), rank(0), rank(2, finished=True))) == "rank 0 waits; rank 1 waits"
    many = waiting(states(*(rank(number) for number in range(MOST_NAMED + 3))))
    assert many.endswith(f"rank {MOST_NAMED - 1} waits; and 3 more ranks")
    assert waiting({}) == "no rank answers"
