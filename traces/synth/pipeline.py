"""The order in which a pipeline's stage does its passes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from traces.layout import Layout


@dataclass(frozen=True, slots=True)
class Pass:
    """A forward or backward pass of one of the rank's chunks; `is_last`: of the step, for this chunk."""

    is_forward: bool
    chunk: int
    is_last: bool


def passes(layout: Layout, stage: int) -> Iterator[Pass]:
    """1F1B (PipeDream-Flush, arXiv 2006.09503); with several chunks a rank, interleaved (Megatron, arXiv 2104.04473).

    Interleaved, a rank takes `pp` passes of one chunk, then of the next; it is ahead by so many forward passes that the
    first backward pass finds its chunk done by all (section 2.2.2 of that paper, figure 4).
    """
    total = layout.microbatches * layout.vpp
    ahead = layout.pp - 1 - stage
    if layout.vpp > 1:
        ahead = 2 * ahead + (layout.vpp - 1) * layout.pp
    ahead = min(ahead, total)
    for number in range(ahead):
        yield _pass(layout, number, is_forward=True)
    for number in range(total):
        if number + ahead < total:
            yield _pass(layout, number + ahead, is_forward=True)
        yield _pass(layout, number, is_forward=False)


def _pass(layout: Layout, number: int, *, is_forward: bool) -> Pass:
    turn, place = divmod(number, layout.pp * layout.vpp)
    chunk, member = divmod(place, layout.pp)
    if layout.vpp == 1:
        return Pass(is_forward, 0, number == layout.microbatches - 1)
    is_last = turn * layout.pp + member == layout.microbatches - 1
    return Pass(is_forward, chunk if is_forward else layout.vpp - 1 - chunk, is_last)
