"""Workloads that say what a rank of each kind of group does, laid out over all ranks: what AICB and SimAI have in common.

Ranks are numbered as Megatron does: tensor parallel ranks are neighbours, then data parallel, then stages of the pipeline;
expert parallel groups are neighbours among the data parallel ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from traces.errors import TraceError
from traces.program import (
    ROOTED,
    Collective,
    CollectiveKind,
    Compute,
    Group,
    Op,
    Program,
    Recv,
    Send,
    StepMark,
    Wait,
)

MAX_OPS = 2_000_000  # of all ranks together; some 200 bytes each
MAX_RANKS = 1 << 12
MAX_DEGREE = 1 << 20


@dataclass(frozen=True, slots=True)
class Grid:
    """Degrees of tensor, data, pipeline and expert parallelism; `ep` divides `dp`."""

    tp: int = 1
    dp: int = 1
    pp: int = 1
    ep: int = 1

    @property
    def ranks(self) -> int:
        return self.tp * self.dp * self.pp

    def members(self, kind: str, rank: int) -> tuple[int, ...]:
        """The ranks of `rank`'s group of that kind: all, tp, dp, pp, ep, dp_ep, or embedding (first and last stage)."""
        stage = self.tp * self.dp
        first = rank - rank % stage
        replica, part = divmod(rank % stage, self.tp)
        block = replica - replica % self.ep
        match kind:
            case "all":
                return tuple(range(self.ranks))
            case "tp":
                return tuple(range(rank - part, rank - part + self.tp))
            case "dp":
                return tuple(range(first + part, first + stage, self.tp))
            case "ep":
                return tuple(first + r * self.tp + part for r in range(block, block + self.ep))
            case "dp_ep":
                return tuple(first + r * self.tp + part for r in range(replica % self.ep, self.dp, self.ep))
            case "pp":
                return tuple(range(rank % stage, self.ranks, stage))
            case _:
                return tuple(sorted({rank % stage, rank % stage + (self.pp - 1) * stage}))


@dataclass(frozen=True, slots=True)
class Transfer:
    """A collective of one kind of group, or a message to the stage `hop` further on (< 0: from it).

    `size` is in bytes of the whole tensor: what all_gather gives, what reduce_scatter and all_to_all take. `is_async`: waited
    for at the step's end; `in_batch`: together with those of a batch that follow it.
    """

    kind: CollectiveKind | None
    group: str
    size: int
    name: str = ""
    sends: bool = False
    hop: int = 0
    is_async: bool = False
    in_batch: bool = False


Item = Transfer | Compute | StepMark
_SHARED = {CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.GATHER, CollectiveKind.SCATTER}


def expanded(
    grid: Grid, stages: Sequence[Sequence[Item]], *, file: str, mend: str
) -> tuple[tuple[Group, ...], dict[int, Program]]:
    """Groups and programs of all ranks; `stages` has the items of each pipeline stage. Raises TraceError for too many."""
    if grid.ranks > MAX_RANKS:
        raise TraceError(f"{grid.ranks} ranks, of {MAX_RANKS} at most", file=file, mend=mend)
    total = sum(2 * len(items) for items in stages) * grid.tp * grid.dp
    if total > MAX_OPS:
        text = f"{grid.ranks} ranks would have {total} operations, of {MAX_OPS} at most"
        raise TraceError(text, file=file, mend=mend)
    groups: dict[tuple[str, tuple[int, ...]], Group] = {}
    programs = {}
    for rank in range(grid.ranks):
        mine = _Rank(grid, rank, groups)
        for item in stages[rank // (grid.tp * grid.dp)]:
            mine.take(item)
        programs[rank] = Program(rank, mine.end())
    return tuple(groups.values()), programs


class _Rank:
    def __init__(self, grid: Grid, rank: int, groups: dict[tuple[str, tuple[int, ...]], Group]) -> None:
        self._grid = grid
        self._rank = rank
        self._groups = groups
        self._mine: dict[str, Group] = {}
        self._ops: list[Op] = []
        self._batch: list[int] = []
        self._late: list[int] = []

    def take(self, item: Item) -> None:
        if not (isinstance(item, Transfer) and item.in_batch):
            self._wait(self._batch)
        if isinstance(item, StepMark):
            self._wait(self._late)
        if not isinstance(item, Transfer):
            self._ops.append(item)
            return
        group = self._group(item.group)
        if item.kind is not None and len(group.ranks) == 1:
            return
        self._ops.append(self._started(item, group))
        (self._late if item.is_async else self._batch).append(len(self._ops) - 1)
        if not item.in_batch:
            self._wait(self._batch)

    def end(self) -> tuple[Op, ...]:
        self._wait(self._batch)
        self._wait(self._late)
        return tuple(self._ops)

    def _wait(self, open_: list[int]) -> None:
        self._ops += [Wait(op) for op in open_]
        open_.clear()

    def _group(self, kind: str) -> Group:
        if kind not in self._mine:
            ranks = self._grid.members(kind, self._rank)
            number = len(self._groups)
            name = f"{kind}:{ranks[0]}" if kind != "all" else "all"
            self._mine[kind] = self._groups.setdefault((kind, ranks), Group(number, name, ranks, number, kind))
        return self._mine[kind]

    def _started(self, item: Transfer, group: Group) -> Collective | Send | Recv:
        if item.kind is None:
            peer = (self._rank + item.hop * self._grid.tp * self._grid.dp) % self._grid.ranks
            return (Send if item.sends else Recv)(peer, item.size, group=group.id, name=item.name)
        size, ranks = item.size, len(group.ranks)
        if item.kind in _SHARED:
            size = -(-size // ranks)
        elif item.kind is CollectiveKind.ALL_TO_ALL:
            size = -(-size // ranks) * ranks
        root = group.ranks[0] if item.kind in ROOTED else -1
        return Collective(item.kind, group.id, size, root=root, name=item.name)


def uneven(grid: Grid, stages: Sequence[Sequence[Item]]) -> int:
    """How many transfers of a stage's items do not divide evenly among their group."""
    sizes: Mapping[str, int] = {
        kind: len(grid.members(kind, 0)) for kind in ("all", "tp", "dp", "pp", "ep", "dp_ep", "embedding")
    }
    divided = {*_SHARED, CollectiveKind.ALL_TO_ALL}
    return sum(
        isinstance(item, Transfer) and item.kind in divided and item.size % sizes[item.group] != 0
        for items in stages
        for item in items
    )
