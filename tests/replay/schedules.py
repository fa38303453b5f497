"""Every algorithm's schedules, without engine and sockets: the calls of a group, and what orders the tasks of its ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from replay.collectives.registry import known, schedule_of
from replay.collectives.schedule import Call, Copy, Recv, Schedule, Send
from traces.program import ROOTED, CollectiveKind

ALGORITHMS = [(kind, name) for kind in CollectiveKind for name in known(kind)]
ISLANDS = {
    4: ((0, 0, 1, 1),),
    5: ((0, 0, 1, 1, 1), (0, 1, 0, 1, 1)),
    6: ((0, 0, 0, 1, 1, 1), (0, 1, 2, 0, 1, 2), (0, 0, 0, 0, 0, 1)),
    8: ((0, 0, 1, 1, 2, 2, 3, 3), (0, 0, 0, 1, 1, 1, 1, 1)),
    9: ((0, 0, 0, 0, 1, 1, 1, 2, 2),),
}
"""Some ways in which so many ranks share islands, evenly and not."""


def groups(
    kind: CollectiveKind,
    name: str,
    size: int,
    count: int,
    *,
    segment: int = 1 << 20,
    itemsize: int = 4,
    islands: tuple[int, ...] | None = None,
) -> Iterator[list[Schedule]]:
    """The schedules of all ranks, for each root, and each way to share islands that matters, unless one is given."""
    ways = ((), *(ISLANDS.get(size, ()) if name == "hierarchical" else ())) if islands is None else (islands,)
    for root in range(size) if kind in ROOTED else (-1,):
        for shared in ways:
            yield [
                schedule_of(
                    Call(
                        kind,
                        name,
                        size,
                        me,
                        0 if kind is CollectiveKind.BARRIER else count,
                        itemsize,
                        segment,
                        root=root,
                        send_splits=(count,) * size if kind is CollectiveKind.ALL_TO_ALL else (),
                        recv_splits=(count,) * size if kind is CollectiveKind.ALL_TO_ALL else (),
                        islands=shared,
                    )
                )
                for me in range(size)
            ]


def sent(schedules: list[Schedule]) -> list[int]:
    """Elements that each rank sends."""
    return [sum(task.count for task in schedule.tasks if isinstance(task, Send)) for schedule in schedules]


def received(schedules: list[Schedule]) -> list[int]:
    """Elements that each rank receives."""
    return [sum(task.count for task in schedule.tasks if isinstance(task, Recv)) for schedule in schedules]


def between(schedules: list[Schedule]) -> dict[tuple[int, int], int]:
    """Elements from each rank to each other."""
    found: dict[tuple[int, int], int] = defaultdict(int)
    for rank, schedule in enumerate(schedules):
        for task in schedule.tasks:
            if isinstance(task, Send):
                found[rank, task.peer] += task.count
    return dict(found)


Node = tuple[int, int]
"""Rank, task."""


def before(schedules: list[Schedule]) -> dict[Node, int]:
    """Of each task, those that have ended when it ends, as bits: those it waits for, and a receive's send. AssertionError where
    tasks wait for each other in a circle, or a message has no other end."""
    nodes = [(rank, task) for rank, schedule in enumerate(schedules) for task in range(len(schedule.tasks))]
    number = {node: index for index, node in enumerate(nodes)}
    ends: dict[tuple[int, int, int], list[Node]] = defaultdict(list)
    needs: dict[Node, list[Node]] = {}
    for rank, index in nodes:
        schedule = schedules[rank]
        task = schedule.tasks[index]
        needs[rank, index] = [(rank, earlier) for earlier in task.after]
        if not isinstance(task, Copy):
            pair = (rank, task.peer) if isinstance(task, Send) else (task.peer, rank)
            ends[*pair, schedule.numbers[index]].append((rank, index))
    for message in ends.values():
        assert len(message) == 2
        send, recv = sorted(message, key=lambda node: isinstance(schedules[node[0]].tasks[node[1]], Recv))
        needs[recv].append(send)
    found: dict[Node, int] = {}
    left = dict.fromkeys(nodes)
    while left:
        ready = [node for node in left if all(need in found for need in needs[node])]
        assert ready, f"these wait for each other: {list(left)}"
        for node in ready:
            del left[node]
            found[node] = 1 << number[node]
            for need in needs[node]:
                found[node] |= found[need]
    return found


def conflicts(schedules: list[Schedule]) -> list[str]:
    """Pairs of tasks of a rank that touch the same elements, one of them to write, in no certain order. Two that reduce into the
    same may come in any."""
    ends = before(schedules)
    number = {
        node: index
        for index, node in enumerate(
            (rank, task) for rank, own in enumerate(schedules) for task in range(len(own.tasks))
        )
    }
    found = []
    for rank, schedule in enumerate(schedules):
        touches = [list(_touches(task)) for task in schedule.tasks]
        for later in range(len(touches)):
            for earlier in range(later):
                if not any(_clash(a, b) for a in touches[earlier] for b in touches[later]):
                    continue
                if not ends[rank, later] >> number[rank, earlier] & 1:
                    found.append(f"rank {rank}: {schedule.tasks[earlier]} and {schedule.tasks[later]}")
    return found


def _touches(task: Send | Recv | Copy) -> Iterator[tuple[str, int, int]]:
    if isinstance(task, Send):
        yield "read", task.offset, task.count
    elif isinstance(task, Recv):
        yield "reduce" if task.reduce else "write", task.offset, task.count
    else:
        yield "read", task.offset, task.count
        yield "write", task.target, task.count


def _clash(a: tuple[str, int, int], b: tuple[str, int, int]) -> bool:
    apart = a[1] + a[2] <= b[1] or b[1] + b[2] <= a[1]
    return not apart and not (a[0] == b[0] and a[0] in ("read", "reduce"))
