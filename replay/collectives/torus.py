"""All-reduce on a grid of ranks: along rows, along columns, along rows.

Source: Mikami et al., "Massively distributed SGD: ImageNet/ResNet-50 training in a flash", arXiv:1811.05233, 2018,
section 2.3 (2D-torus all-reduce).
"""

from __future__ import annotations

from math import isqrt

from replay.collectives.registry import algorithm
from replay.collectives.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from replay.collectives.schedule import Call, Schedule, part
from replay.collectives.steps import Steps
from traces.program import CollectiveKind


def grid(size: int) -> tuple[int, int]:
    """Rows and columns of the grid: as square as `size` allows, no more rows than columns."""
    rows = next(rows for rows in range(isqrt(size), 0, -1) if size % rows == 0)
    return rows, size // rows


@algorithm(CollectiveKind.ALL_REDUCE, "torus")
def all_reduce(call: Call) -> Schedule:
    """Buffer: the tensor, input and output. Y rows of X ranks, in the group's order, row by row (as hosts lie on a torus of
    [Y, X]): a reduce-scatter along the row, a ring all-reduce of the part along the column, an all-gather along the row.

    2(X-1) + 2(Y-1) steps where a ring has 2(XY-1), and the same 2(N-1)/N of the tensor sent. Wins where steps count, and on
    networks that are such a grid. With N prime there is one row: a ring.
    """
    steps = Steps(call)
    rows, columns = grid(call.size)
    row, column = divmod(call.me, columns)
    across = range(row * columns, (row + 1) * columns)
    chunks = [part(call.count, columns, index) for index in range(columns)]
    ring_reduce_scatter(steps, across, [(chunk,) for chunk in chunks])
    if rows > 1:
        ring_all_reduce(steps, range(column, call.size, columns), chunks[column])
    ring_all_gather(steps, across, [(chunk,) for chunk in chunks])
    return steps.schedule(call.count)
