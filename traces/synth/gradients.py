"""Data parallelism: parameters gathered, gradients reduced.

- DDP with torch's buckets, each reduced as soon as its gradients are there; buffers broadcast before the pass.
- ZeRO (arXiv 1910.02054): stage 1 scatters the reduced buckets at the last pass, stage 2 at every pass; both gather the
  new parameters at the end of the step. Stage 3 is FSDP2: a unit is gathered before it is used, while the one before it
  computes, and its gradients are scattered; what is in no unit is gathered once a pass.
- Experts that are shared out are reduced among those who have the same ones only (DeepSpeed's expert data parallel groups,
  deepspeed/utils/groups.py), in buckets of their own. Tables that are shared out are nobody else's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from traces.buckets import Bucket, buckets
from traces.layout import Layout
from traces.model import Model
from traces.program import CollectiveKind, DType, Group
from traces.synth.shares import Shapes, Stage, shard
from traces.synth.writer import Writer


@dataclass(frozen=True, slots=True)
class _Share:
    """The tensors that the ranks of `group` have in common, by layer of the stage."""

    group: Group
    kind: str
    tensors: tuple[Shapes, ...]
    buckets: tuple[Bucket, ...]


class Gradients:
    """Of one stage at one rank: what is gathered, reduced and broadcast among its replicas."""

    def __init__(
        self, writer: Writer, model: Model, layout: Layout, stage: Stage, dp: Group | None, edp: Group | None
    ) -> None:
        self._writer, self._stage, self._zero, self._dp = writer, stage, layout.zero, dp
        self._units = stage.units()
        rest = (index for index, layer in enumerate(stage.layers) if layer.unit < 0)
        self._units_and_rest: dict[int, Iterable[int]] = {**self._units, -1: tuple(rest)}
        apart = [layer.experts > 0 and layout.ep > 1 for layer in stage.layers]
        dense = tuple(
            () if alone or layer.split == "table" else layer.tensors
            for layer, alone in zip(stage.layers, apart, strict=True)
        )
        mine = tuple(
            layer.tensors[: len(layer.tensors) // layout.ep] if alone else ()
            for layer, alone in zip(stage.layers, apart, strict=True)
        )
        itemsize = model.dtype.itemsize
        self._shares = [
            _Share(group, kind, tensors, buckets(tensors, itemsize) if layout.zero < 3 else ())
            for group, kind, tensors in ((dp, "", dense), (edp, "experts ", mine))
            if group
        ]
        self._due: list[list[Bucket]] = []

    def forward(self, *, is_last: bool) -> Gathered:
        """A forward pass begins."""
        if is_last and self._zero < 3:
            self._broadcast_buffers()
        return Gathered(self, self._writer, self._in_turn(), with_rest=True)

    def backward(self, *, is_last: bool) -> Gathered:
        """A backward pass begins."""
        sends = is_last or self._zero == 2
        self._due = [list(share.buckets) if sends else [] for share in self._shares]
        return Gathered(self, self._writer, self._in_turn()[::-1], with_rest=False)

    def _in_turn(self) -> list[int]:
        return list(self._units) if self._zero == 3 else []

    def done(self, index: int) -> None:
        """The backward pass has done layer `index`."""
        for share, due in zip(self._shares, self._due, strict=True):
            while due and due[0].last_layer == index:
                name = f"{share.kind}bucket {len(share.buckets) - len(due)}"
                self._reduce(share.group, due.pop(0).elements, name)
        unit = self._stage.layers[index].unit
        if unit >= 0 and self._units[unit][0] == index:
            self._scatter(unit, f"unit {unit}")

    def backward_done(self) -> None:
        """The backward pass has done all layers."""
        self._scatter(-1, "rest")

    def gather_parameters(self) -> None:
        """What stages 1 and 2 of ZeRO do at the end of a step."""
        if self._zero not in (1, 2):
            return
        for share in self._shares:
            for index, bucket in enumerate(share.buckets):
                count = -(-bucket.elements // len(share.group.ranks))
                self._later(CollectiveKind.ALL_GATHER, share.group, count, f"{share.kind}parameters {index}")

    def gather_now(self, unit: int) -> list[int]:
        """Starts gathering a unit, or the rest (-1)."""
        name = "rest" if unit < 0 else f"unit {unit}"
        return [
            self._writer.collective(CollectiveKind.ALL_GATHER, group, count, kind + name)
            for group, kind, count in self._shards(unit)
        ]

    def _shards(self, unit: int) -> list[tuple[Group, str, int]]:
        """Elements a rank keeps of a unit, or of the rest (-1), in each group that has some of it."""
        if self._zero < 3:
            return []
        layers = self._units_and_rest[unit]
        counted = [(s.group, s.kind, shard([s.tensors[i] for i in layers], len(s.group.ranks))) for s in self._shares]
        return [one for one in counted if one[2]]

    def _scatter(self, unit: int, name: str) -> None:
        for group, kind, count in self._shards(unit):
            self._later(CollectiveKind.REDUCE_SCATTER, group, count, kind + name)

    def _reduce(self, group: Group, elements: int, name: str) -> None:
        if self._zero == 0:
            self._later(CollectiveKind.ALL_REDUCE, group, elements, name)
        else:
            self._later(CollectiveKind.REDUCE_SCATTER, group, -(-elements // len(group.ranks)), name)

    def _later(self, kind: CollectiveKind, group: Group, count: int, name: str) -> None:
        self._writer.later(self._writer.collective(kind, group, count, name))

    def _broadcast_buffers(self) -> None:
        if self._dp is None:
            return
        floats = sum(layer.buffers for layer in self._stage.layers)
        counters = sum(layer.counters for layer in self._stage.layers)
        kind, root = CollectiveKind.BROADCAST, self._dp.ranks[0]
        for count, dtype in ((floats, None), (counters, DType.INT64)):
            if count:
                self._writer.wait(self._writer.collective(kind, self._dp, count, "buffers", dtype=dtype, root=root))


class Gathered:
    """FSDP's gathering during one pass: the next unit's is started as soon as the unit in use is there."""

    def __init__(self, gradients: Gradients, writer: Writer, order: list[int], *, with_rest: bool) -> None:
        self._gradients, self._writer = gradients, writer
        self._order = order
        self._started: dict[int, list[int]] = {}
        rest = gradients.gather_now(-1) if with_rest else []
        self._next()
        writer.wait(*rest)

    def use(self, unit: int) -> None:
        """Waits until `unit` is there; nothing is done a second time."""
        ops = self._started.pop(unit, [])
        if ops:
            self._writer.wait(*ops)
            self._next()

    def _next(self) -> None:
        if self._order:
            unit = self._order.pop(0)
            self._started[unit] = self._gradients.gather_now(unit)
