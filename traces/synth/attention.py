"""Context parallelism: attention over a sequence whose tokens are shared out, as a ring (arXiv 2310.01889, section 3).

Each rank attends with its own queries to one part of the keys and values after the other. While it does, the next part comes
from the rank before it and its own goes on to the one behind. The backward pass goes round the other way, as Transformer
Engine does it (transformer_engine/pytorch, context_parallel.py): each part's keys and values travel again, and behind them the
gradients of both, which end at the rank that has the part. In `cp - 1` rounds forward as many parts are received, backward
twice as many.
"""

from __future__ import annotations

from collections.abc import Mapping

from traces.layout import Layout
from traces.model import Layer
from traces.program import Group
from traces.synth.writer import Writer


class Ring:
    """A rank's place in its ring. `batch` is samples a pass."""

    def __init__(self, writer: Writer, layout: Layout, groups: Mapping[str, Group], rank: int, batch: int) -> None:
        stage, replica, part = layout.place(rank)
        self._writer, self._groups, self._me, self._rounds, self._batch = writer, groups, rank, layout.cp, batch
        self._after, self._before = (layout.rank(stage, layout.next_in_ring(replica, by), part) for by in (1, -1))

    def forward(self, layer: Layer) -> None:
        """Attention of `layer`, which is one rank's part."""
        for number in range(self._rounds):
            count = layer.kv if number + 1 < self._rounds else 0
            self._round(count, layer.scores / self._rounds, self._after, self._before, "keys and values")

    def backward(self, layer: Layer) -> None:
        """Its gradients."""
        for number in range(self._rounds):
            count = layer.kv * ((number + 1 < self._rounds) + (number > 0))
            name = "keys and values" if not number else "keys, values, gradients"
            self._round(count, 2 * layer.scores / self._rounds, self._before, self._after, name)

    def _round(self, count: int, flops: float, to: int, come_from: int, name: str) -> None:
        moved = []
        if count and self._rounds > 1:
            sent = self._groups[f"cp-{self._me}-{to}"], to
            received = self._groups[f"cp-{come_from}-{self._me}"], come_from
            moved = [
                self._writer.send(*sent, count * self._batch, name),
                self._writer.receive(*received, count * self._batch, name),
            ]
        self._writer.compute(flops)
        self._writer.wait(*moved)
