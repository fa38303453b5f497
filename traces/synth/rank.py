"""One rank's passes: its layers in order, with what tensor and expert parallelism send between them.

- Tensor parallel as Megatron (arXiv 1909.08053): an all-reduce of the activations behind `row` and `vocab` layers, and one of
  their gradients in front of `column` layers. With `sp`, sequence parallel (arXiv 2205.05198, section 4.2): each is a
  reduce-scatter and an all-gather, activations in front of `column` layers are gathered again for the backward pass while it
  computes, and gradients of what every rank has whole are reduced once a step.
- Experts (GShard, arXiv 2006.16668): an all_to_all in front of a run of layers of experts brings each token to
  its `top_k` experts, one behind it brings the results back; the same backward.
- Tables (DLRM, arXiv 1906.00091, section 3): an all_to_all of what each rank looked up for all, while what stands between
  it and the layer that joins computes; backward the same of its gradients.
"""

from __future__ import annotations

from collections.abc import Sequence

from traces.layout import Layout
from traces.model import Layer, Model
from traces.program import CollectiveKind, Group, Program, StepMark
from traces.synth.attention import Ring
from traces.synth.gradients import Gradients
from traces.synth.pipeline import passes
from traces.synth.shares import Stage, shard
from traces.synth.writer import Writer


class Rank:
    """Writes one rank's program."""

    def __init__(
        self, model: Model, layout: Layout, stages: Sequence[Stage], groups: Sequence[Group], rank: int
    ) -> None:
        self._layout, self._batch, self._me, self._last = layout, model.batch, rank, len(stages) - 1
        self._writer = Writer(model)
        self._place, replica, part = layout.place(rank)
        self._chunks = stages[self._place :: layout.pp]
        self._groups = {group.name: group for group in groups if rank in group.ranks}
        self._tp = self._groups.get(f"tp-{self._place}-{replica}")
        self._ep = self._groups.get(f"ep-{self._place}-{part}-{replica - replica % layout.ep}")
        self._dp = self._groups.get(f"dp-{self._place}-{part}")
        edp = self._groups.get(f"edp-{self._place}-{part}-{replica % layout.ep}")
        self._gradients = [Gradients(self._writer, model, layout, one, self._dp, edp) for one in self._chunks]
        self._ring = Ring(self._writer, layout, self._groups, rank, model.batch)
        self._before, self._after = (layout.rank((self._place + by) % layout.pp, replica, part) for by in (-1, 1))
        self._looked_up: list[int] = []

    def program(self, steps: int) -> Program:
        """What the rank does in `steps` steps."""
        for step in range(steps):
            self._step()
            self._writer.ops.append(StepMark(step))
        return Program(self._me, tuple(self._writer.ops))

    def _step(self) -> None:
        for one in passes(self._layout, self._place):
            (self._forward if one.is_forward else self._backward)(one.chunk, is_last=one.is_last)
        if self._layout.sp and self._tp:
            whole = [layer.tensors for stage in self._chunks for layer in stage.layers if layer.split == "none"]
            if count := shard(whole, 1):
                self._writer.later(
                    self._writer.collective(CollectiveKind.ALL_REDUCE, self._tp, count, "whole layers' gradients")
                )
        self._writer.finish()
        for gradients in self._gradients:
            gradients.gather_parameters()
        self._writer.finish()

    def _forward(self, chunk: int, *, is_last: bool) -> None:
        stage = self._chunks[chunk]
        if stage.number:
            self._receive(self._before, stage.entering, "activations", "")
        gathered = self._gradients[chunk].forward(is_last=is_last)
        for index, layer in enumerate(stage.layers):
            gathered.use(layer.unit)
            entering, leaving = _moved(stage, index)
            if _begins(stage, index):
                self._exchange(entering, f"{layer.name} dispatch")
            if layer.joins:
                self._join()
            if layer.split == "column" and self._layout.sp:
                self._writer.wait(*self._gather(entering, f"{layer.name} forward"))
            self._writer.compute(layer.flops - layer.scores)
            if layer.kv:
                self._ring.forward(layer)
            if layer.split in ("row", "vocab"):
                self._reduce(leaving, f"{layer.name} forward")
            if _ends(stage, index):
                self._exchange(leaving, f"{layer.name} combine")
            if layer.split == "table":
                self._look_up(layer, f"{layer.name} forward")
        if stage.number < self._last:
            self._send(self._after, stage.leaving, "activations", "")

    def _backward(self, chunk: int, *, is_last: bool) -> None:
        stage, gradients = self._chunks[chunk], self._gradients[chunk]
        if stage.number < self._last:
            self._receive(self._after, stage.leaving, "gradients", "-gradients")
        gathered = gradients.backward(is_last=is_last)
        for index in range(len(stage.layers) - 1, -1, -1):
            layer = stage.layers[index]
            gathered.use(layer.unit)
            entering, leaving = _moved(stage, index)
            again: list[int] = []
            if layer.split == "table":
                self._join()
            if _ends(stage, index):
                self._exchange(leaving, f"{layer.name} combine backward")
            if layer.split in ("row", "vocab") and self._layout.sp:
                self._writer.wait(*self._gather(leaving, f"{layer.name} backward"))
            if layer.split == "column" and self._layout.sp:
                again = self._gather(entering, f"{layer.name} again")
            if layer.kv:
                self._ring.backward(layer)
            self._writer.compute(2 * (layer.flops - layer.scores))
            self._writer.wait(*again)
            if layer.split == "column":
                self._reduce(entering, f"{layer.name} backward")
            if layer.joins:
                for table in (one for one in stage.layers if one.split == "table"):
                    self._look_up(table, f"{table.name} backward", is_backward=True)
            if _begins(stage, index):
                self._exchange(entering, f"{layer.name} dispatch backward")
            gradients.done(index)
        gradients.backward_done()
        if stage.number:
            self._send(self._before, stage.entering, "gradients", "-gradients")

    def _mine(self, elements: int) -> int:
        """Elements a pass that one rank holds of an activation: with `sp` tensor parallel ranks share the tokens out."""
        return -(-elements * self._batch // (self._layout.tp if self._layout.sp else 1))

    def _reduce(self, elements: int, name: str) -> None:
        if self._tp and elements:
            kind = CollectiveKind.REDUCE_SCATTER if self._layout.sp else CollectiveKind.ALL_REDUCE
            self._writer.wait(self._writer.collective(kind, self._tp, self._mine(elements), name))

    def _gather(self, elements: int, name: str) -> list[int]:
        if not (self._tp and elements):
            return []
        return [self._writer.collective(CollectiveKind.ALL_GATHER, self._tp, self._mine(elements), name)]

    def _exchange(self, elements: int, name: str) -> None:
        """Tokens go to the ranks of their experts, as many to each."""
        if self._ep:
            splits = (-(-self._mine(elements) // self._layout.ep),) * self._layout.ep
            self._writer.wait(self._writer.exchange(self._ep, splits, splits, name))

    def _look_up(self, layer: Layer, name: str, *, is_backward: bool = False) -> None:
        """Each rank looks up in its tables for all; the first ranks have a table more than the others.

        So does DLRM (facebookresearch/dlrm, extend_distributed.py, get_split_lengths).
        """
        if self._dp is None:
            return
        ranks, width = len(self._dp.ranks), layer.activation // len(layer.tensors) * self._batch
        each, more = divmod(len(layer.tensors), ranks)
        theirs = tuple((each + (place < more)) * width for place in range(ranks))
        mine = (theirs[self._dp.ranks.index(self._me)],) * ranks
        sent, received = (theirs, mine) if is_backward else (mine, theirs)
        self._looked_up.append(self._writer.exchange(self._dp, sent, received, name))

    def _join(self) -> None:
        self._writer.wait(*self._looked_up)
        self._looked_up.clear()

    def _send(self, peer: int, elements: int, name: str, way: str) -> None:
        group = self._groups[f"pp-{self._me}-{peer}{way}"]
        self._writer.later(self._writer.send(group, peer, self._mine(elements), name))

    def _receive(self, peer: int, elements: int, name: str, way: str) -> None:
        group = self._groups[f"pp-{peer}-{self._me}{way}"]
        self._writer.wait(self._writer.receive(group, peer, self._mine(elements), name))


def _moved(stage: Stage, index: int) -> tuple[int, int]:
    """Elements a sample that enter and leave layer `index`: `top_k` of each token between experts."""
    layer = stage.layers[index]
    times = layer.top_k if layer.experts else 1
    return stage.before(index) * times, layer.activation * times


def _begins(stage: Stage, index: int) -> bool:
    """Whether layer `index` is the first of a run of layers of experts."""
    return stage.layers[index].experts > 0 and (index == 0 or not stage.layers[index - 1].experts)


def _ends(stage: Stage, index: int) -> bool:
    """Whether layer `index` is the last of a run of layers of experts."""
    layers = stage.layers
    return layers[index].experts > 0 and (index + 1 == len(layers) or not layers[index + 1].experts)
