"""Jobs as hypothesis makes them: ranks agree, and nobody gets stuck whatever a library buffers."""

from __future__ import annotations

from hypothesis import strategies as st

from traces.program import (
    ROOTED,
    Collective,
    CollectiveKind,
    Communication,
    Compute,
    DType,
    Group,
    Op,
    Program,
    Recv,
    Send,
    StepMark,
    Trace,
    Wait,
)

_COUNTS = st.integers(1, 1 << 20)
_NS = st.integers(500, 10**10)  # from half a microsecond on, which is none where that is the unit
_NAMES = st.sampled_from(["", "bucket", "layer 3, gradients", 'ü "quoted"'])


class _Rank:
    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.open: list[int] = []

    def start(self, op: Communication) -> None:
        self.open.append(len(self.ops))
        self.ops.append(op)

    def wait(self, index: int) -> None:
        self.open.remove(index)
        self.ops.append(Wait(index))


@st.composite
def jobs(draw: st.DrawFn) -> Trace:
    """A job of 2 to 4 ranks. What ranks do together all do in one order, so no wait is for what comes after it elsewhere."""
    size = draw(st.integers(2, 4))
    everyone = tuple(range(size))
    subsets = st.lists(st.sampled_from(everyone), min_size=2, max_size=size, unique=True).map(tuple)
    members = [everyone, *draw(st.lists(subsets.filter(lambda ranks: ranks != everyone), max_size=2, unique=True))]
    ranks = [_Rank() for _ in everyone]
    for step in range(draw(st.integers(1, 2))):
        for _ in range(draw(st.integers(1, 5))):
            group = draw(st.integers(0, len(members) - 1))
            _together(draw, ranks, group, members[group])
            for rank in ranks:
                _alone(draw, rank)
        for rank in ranks:
            for index in list(rank.open):
                rank.wait(index)
            rank.ops.append(StepMark(step))
    groups = tuple(Group(number, str(number), of, number) for number, of in enumerate(members))
    return Trace(size, groups, {n: Program(n, tuple(rank.ops)) for n, rank in enumerate(ranks)}, step + 1)


def _together(draw: st.DrawFn, ranks: list[_Rank], group: int, members: tuple[int, ...]) -> None:
    kind = draw(st.sampled_from([*CollectiveKind, "message", "uneven"]))
    count, dtype, name = draw(_COUNTS), draw(st.sampled_from(DType)), draw(_NAMES)
    if kind == "message":
        source, target = draw(st.permutations(members))[:2]
        ranks[source].start(Send(target, count, dtype, tag := draw(st.integers(0, 3)), group, name))
        ranks[target].start(Recv(source, count, dtype, tag, group, name))
        return
    if kind == "uneven":
        parts = [[draw(st.integers(0, 9)) for _ in members] for _ in members]
        for place, rank in enumerate(members):
            gives, gets = tuple(parts[place]), tuple(row[place] for row in parts)
            exchange = Collective(CollectiveKind.ALL_TO_ALL, group, sum(gives), dtype, -1, "sum", gives, gets, name)
            ranks[rank].start(exchange)
        return
    assert isinstance(kind, CollectiveKind)
    count = 0 if kind is CollectiveKind.BARRIER else count * len(members)
    root = draw(st.sampled_from(members)) if kind in ROOTED else -1
    op = Collective(
        kind, group, count, dtype if count else DType.UINT8, root, draw(st.sampled_from(["sum", "max"])), name=name
    )
    for rank in members:
        ranks[rank].start(op)


def _alone(draw: st.DrawFn, rank: _Rank) -> None:
    if draw(st.booleans()):
        rank.ops.append(Compute(draw(_NS), draw(_NAMES)))
    if rank.open and draw(st.booleans()):
        rank.wait(draw(st.sampled_from(rank.open)))
