"""Every algorithm: its results with real tensors over the model network, and its schedules: what they send, and in which order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from emulator.network import Network, from_dict
from replay.choosing import with_algorithms
from replay.collectives.bcube import group_sizes
from replay.collectives.schedule import Recv, Schedule
from replay.collectives.torus import grid
from replay.plan import lower
from tests.replay.network import Network as Model
from tests.replay.network import everywhere
from tests.replay.schedules import ALGORITHMS, ISLANDS, between, conflicts, groups, received, sent
from traces.program import ROOTED, Collective, CollectiveKind, DType, Trace

SIZES = range(1, 10)
MORE = {"torus": (12, 16), "double-tree": (16, 17), "bcube": (12,), "halving-doubling": (16, 19)}
COUNTS = (0, 1, 7, 83)


def star(islands: tuple[int, ...]) -> Network:
    """Hosts round one switch; those ranks share a host that share an island."""
    hosts = {f"host{island}": {"ranks": [r for r, on in enumerate(islands) if on == island]} for island in {*islands}}
    links = {name: {"ends": [name, "switch"]} for name in hosts}
    return from_dict(
        {"hosts": hosts, "switches": ["switch"], "links": links, "link": {"rate": "10 gbit", "delay": "1 us"}}
    )


def verified(trace: Trace, rule: str, islands: tuple[int, ...]) -> int:
    """How many elements of results were compared when `trace` ran by that rule; BedError where one is wrong."""
    plan, _ = with_algorithms(lower(trace, segment=64), (rule,), star(islands))
    return sum(payload.checked for payload in Model(plan, delay=50, verify=True).run().payloads.values())


def operations(kind: CollectiveKind, size: int, count: int) -> list[Collective]:
    if kind is CollectiveKind.BARRIER:
        return [Collective(kind, 0, 0)]
    count *= size if kind is CollectiveKind.ALL_TO_ALL else 1
    return [Collective(kind, 0, count, DType.INT32, root=root) for root in (range(size) if kind in ROOTED else (-1,))]


def elements(kind: CollectiveKind, size: int, count: int) -> int:
    """How many elements of results all ranks have together."""
    slots = size * count if kind in (CollectiveKind.ALL_GATHER, CollectiveKind.ALL_TO_ALL) else count
    if kind is CollectiveKind.BARRIER:
        return 0
    return slots if kind is CollectiveKind.REDUCE else slots * size


@pytest.mark.parametrize(("kind", "name"), ALGORITHMS)
def test_every_result_is_right(kind: CollectiveKind, name: str) -> None:
    """1 to 9 ranks and some more; none, one, odd numbers of elements and fewer than ranks; every root; islands of all kinds."""
    for size in (*SIZES, *MORE.get(name, ())):
        for islands in (tuple(range(size)), *(ISLANDS.get(size, ()) if name == "hierarchical" else ())):
            for count in COUNTS:
                for op in operations(kind, size, count):
                    checked = verified(everywhere(op, size), f"{kind}={name}", islands)
                    assert checked == elements(kind, size, count)


@pytest.mark.parametrize(("kind", "name"), ALGORITHMS)
def test_nothing_is_touched_out_of_turn_and_nobody_waits_in_a_circle(kind: CollectiveKind, name: str) -> None:
    """No element is written while it may still be sent, nor sent before it is there, however late a rank or a message is."""
    for size in SIZES:
        for count in (1, 7, 24):
            for schedules in groups(kind, name, size, count, segment=16):
                assert conflicts(schedules) == []


def test_a_schedule_that_sends_too_early_is_found() -> None:
    """The check itself can fail: a send that does not wait for what it passes on."""
    schedules = next(groups(CollectiveKind.ALL_REDUCE, "ring", 4, 16))
    at = next(index for index, task in enumerate(schedules[1].tasks) if task.after)
    tasks = [replace(task, after=()) if index == at else task for index, task in enumerate(schedules[1].tasks)]
    schedules[1] = Schedule(tuple(tasks), schedules[1].elements)
    assert any(str(tasks[at]) in conflict for conflict in conflicts(schedules))


S = 5040 * 16  # elements of a tensor: what all sizes here divide; of a slot or block where there is one for each rank


def power(size: int) -> int:
    return 1 << size.bit_length() - 1


def folded(size: int, whole: int, player: int) -> tuple[int, int]:
    """What all ranks send together, and the most of any, where each player sends `player`, and folded ranks `whole`, and get as
    much back."""
    extra = size - power(size)
    return power(size) * player + 2 * extra * whole, player + (whole if extra else 0)


def log2(size: int) -> int:
    return (size - 1).bit_length()


def halves(size: int) -> int:
    return 2 * S * (power(size) - 1) // power(size)


FORMULAS: dict[tuple[str, str], Callable[[int], tuple[int, int]]] = {
    ("all_reduce", "ring"): lambda n: (2 * (n - 1) * S, 2 * (n - 1) * S // n),
    ("all_reduce", "two-rings"): lambda n: (2 * (n - 1) * S, 2 * (n - 1) * S // n),
    ("all_reduce", "torus"): lambda n: (2 * (n - 1) * S, 2 * (n - 1) * S // n),
    ("all_reduce", "hierarchical"): lambda n: (2 * (n - 1) * S, 2 * (n - 1) * S // n),
    ("all_reduce", "bcube"): lambda n: (2 * (n - 1) * S, 2 * (n - 1) * S // n),
    ("all_reduce", "halving-doubling"): lambda n: folded(n, S, halves(n)),
    ("all_reduce", "recursive-doubling"): lambda n: folded(n, S, S * (power(n).bit_length() - 1)),
    ("all_reduce", "tree"): lambda n: (2 * (n - 1) * S, min(n - 1, 3) * S),
    ("all_reduce", "double-tree"): lambda n: (2 * (n - 1) * S, {2: 1, 3: 3 / 2}.get(n, 2) * S),
    ("reduce_scatter", "ring"): lambda n: (n * (n - 1) * S, (n - 1) * S),
    ("reduce_scatter", "pairwise"): lambda n: (n * (n - 1) * S, (n - 1) * S),
    ("reduce_scatter", "hierarchical"): lambda n: (n * (n - 1) * S, (n - 1) * S),
    ("all_gather", "ring"): lambda n: (n * (n - 1) * S, (n - 1) * S),
    ("all_gather", "bruck"): lambda n: (n * (n - 1) * S, (n - 1) * S),
    ("all_gather", "hierarchical"): lambda n: (n * (n - 1) * S, (n - 1) * S),
    ("all_to_all", "pairwise"): lambda n: (n * (n - 1) * S, (n - 1) * S),
    ("all_to_all", "direct"): lambda n: (n * (n - 1) * S, (n - 1) * S),
    ("all_to_all", "bruck"): lambda n: (n * ones(n) * S, ones(n) * S),
    ("all_reduce", "blink"): lambda n: (2 * (n - 1) * S, 2 * (n - 1) * S // n),
    ("broadcast", "blink"): lambda n: ((n - 1) * S, S),
    ("reduce", "blink"): lambda n: ((n - 1) * S, S),
    ("broadcast", "chain"): lambda n: ((n - 1) * S, S),
    ("broadcast", "tree"): lambda n: ((n - 1) * S, min(n - 1, 2) * S if n > 3 else S),
    ("broadcast", "binomial"): lambda n: ((n - 1) * S, log2(n) * S),
    ("broadcast", "scatter-allgather"): lambda n: ((n - 1) * S + scattered(n) * S // n, 2 * (n - 1) * S // n),
    ("reduce", "chain"): lambda n: ((n - 1) * S, S),
    ("reduce", "tree"): lambda n: ((n - 1) * S, S),
    ("reduce", "binomial"): lambda n: ((n - 1) * S, S),
    ("reduce", "ring"): lambda n: ((n - 1) * S + (n - 1) * S // n, S),
    ("gather", "flat"): lambda n: ((n - 1) * S, S),
    ("gather", "binomial"): lambda n: (
        scattered(n) * S,
        max(min(1 << bit, n - (1 << bit)) for bit in range(log2(n))) * S,
    ),
    ("scatter", "flat"): lambda n: ((n - 1) * S, (n - 1) * S),
    ("scatter", "binomial"): lambda n: (scattered(n) * S, (n - 1) * S),
    ("reduce_scatter", "recursive-halving"): lambda n: folded_slots(n, back=1),
    ("all_gather", "recursive-doubling"): lambda n: folded_slots(n, back=n - 1),
    ("barrier", "dissemination"): lambda n: (0, 0),
}
"""What the docstrings say: elements that all ranks send together, and the most that one sends, by the number of ranks."""


def folded_slots(size: int, back: int) -> tuple[int, int]:
    """Of slots: each of P players sends or gets all but what it stands for, folded ranks give N slots and get `back`, or the other
    way round."""
    players, extra = power(size), size - power(size)
    most = players - 1 if not extra else size if back == 1 else doubled(size) + back
    return (players * size - size + extra * (size if back == 1 else 1) + extra * back) * S, most * S


def doubled(size: int) -> int:
    """Slots that player 0 sends in a recursive doubling: it stands for two ranks, as the first players do."""
    players, extra = power(size), size - power(size)
    return sum(block + min(block, extra) for block in (1 << bit for bit in range(players.bit_length() - 1)))


def ones(size: int) -> int:
    """Blocks that Bruck's all-to-all sends: as often as its way has bits."""
    return sum(way.bit_count() for way in range(size))


def scattered(size: int) -> int:
    """Slots that cross links in a binomial scatter: each as often as its rank has bits."""
    return ones(size)


@pytest.mark.parametrize(("kind", "name"), [pair for pair in ALGORITHMS if pair in FORMULAS])
def test_what_is_sent_is_what_the_docstring_says(kind: CollectiveKind, name: str) -> None:
    for size in SIZES[1:]:
        for schedules in groups(kind, name, size, S, islands=()):
            assert (sum(sent(schedules)), max(sent(schedules))) == FORMULAS[kind, name](size), size
            assert sum(received(schedules)) == sum(sent(schedules))


def test_what_rabenseifners_reduce_sends() -> None:
    """Of the tensor: each folded rank all, P players (P-1)/P, log2 P / 2 in the gather, and all again to a folded root."""
    for size in SIZES[1:]:
        players = power(size)
        for root, schedules in enumerate(groups(CollectiveKind.REDUCE, "rabenseifner", size, S)):
            is_folded = root < 2 * (size - players) and root % 2 == 0
            tensors = size - players + players - 1 + (players.bit_length() - 1) / 2 + is_folded
            assert sum(sent(schedules)) == tensors * S


@pytest.mark.parametrize("islands", [islands for some in ISLANDS.values() for islands in some])
def test_what_crosses_islands_is_what_a_ring_of_islands_sends(islands: tuple[int, ...]) -> None:
    """Over each island's card 2(M-1)/M of the tensor each way, however many ranks it has; of slots all that aren't its own."""
    count, ranks = len({*islands}), range(len(islands))
    for kind, whole in ((CollectiveKind.ALL_REDUCE, 2 * S * (count - 1) // count), (CollectiveKind.ALL_GATHER, None)):
        (schedules,) = groups(kind, "hierarchical", len(islands), S, islands=islands)
        for island in {*islands}:
            mine = [rank for rank in ranks if islands[rank] == island]
            crossing = {way: n for way, n in between(schedules).items() if (way[0] in mine) + (way[1] in mine) == 1}
            out, into = (sum(n for way, n in crossing.items() if way[end] in mine) for end in (0, 1))
            if whole is None:
                assert into == (len(islands) - len(mine)) * S
            else:
                assert out == into == whole


def test_what_a_rank_of_equal_islands_sends() -> None:
    islands, across, inside = (0, 0, 0, 1, 1, 1), 2, 3
    (schedules,) = groups(CollectiveKind.ALL_REDUCE, "hierarchical", 6, S, islands=islands)
    for rank in range(6):
        ways = {way[1]: n for way, n in between(schedules).items() if way[0] == rank}
        assert sum(n for peer, n in ways.items() if islands[peer] == islands[rank]) == 2 * (inside - 1) * S // inside
        assert sum(n for peer, n in ways.items() if islands[peer] != islands[rank]) == 2 * (across - 1) * S // (
            across * inside
        )


def test_a_torus_of_ranks_speaks_along_rows_and_columns() -> None:
    rows, columns = grid(12)
    assert (rows, columns) == (3, 4)
    (schedules,) = groups(CollectiveKind.ALL_REDUCE, "torus", 12, S)
    for (a, b), count in between(schedules).items():
        same_row, same_column = a // columns == b // columns, a % columns == b % columns
        assert same_row != same_column
        assert count == (2 * (columns - 1) * S // columns if same_row else 2 * (rows - 1) * S // (rows * columns))


def test_each_rank_is_inside_one_tree_only() -> None:
    """So that both trees use all ports: a rank with two under it in one tree has none in the other."""
    for size in range(2, 40):
        schedules = next(groups(CollectiveKind.ALL_REDUCE, "double-tree", size, 2))
        for schedule in schedules:
            assert len({task.peer for task in schedule.tasks if isinstance(task, Recv) and task.reduce}) <= 2


def test_the_groups_of_bcube_are_gloos() -> None:
    assert {size: group_sizes(size) for size in (2, 5, 8, 12, 9)} == {
        2: [2], 5: [5], 8: [2, 2, 2], 12: [2, 2, 3], 9: [9],
    }  # fmt: skip
