"""Makes traces: from a model's description and a parallel layout to what every rank of the job computes and sends.

- Data parallel: DDP with torch's buckets, each reduced as soon as its gradients are there; buffers broadcast before the pass.
- ZeRO (arXiv 1910.02054): stage 1 scatters the reduced buckets at the last pass, stage 2 at every pass; both gather the
  new parameters at the end of the step. Stage 3 is FSDP2: a unit is gathered before it is used, while the one before it
  computes, and its gradients are scattered; what is in no unit is gathered once a pass.
- Tensor parallel as Megatron (arXiv 1909.08053): an all-reduce of the activations behind `row` and `vocab` layers, and one of
  their gradients in front of `column` layers.
- Pipeline: 1F1B (PipeDream-Flush, arXiv 2006.09503), stages of as many units each as possible.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

from traces.buckets import buckets
from traces.errors import TraceError
from traces.layout import Layout, groups_of
from traces.model import Layer, Model
from traces.program import (
    Collective,
    CollectiveKind,
    Communication,
    Compute,
    DType,
    Finding,
    Group,
    Op,
    Program,
    Recv,
    Send,
    StepMark,
    Trace,
    Wait,
)

_LONGEST_STEP_NS = 30 * 86_400 * 10**9
_LEFT_OUT = (
    "made from a description, not recorded: every device takes equally long; optimizer, data loading, recomputation and the "
    "loss cost nothing; gradients have the parameters' type; tied weights are reduced once"
)


def synthesize(model: Model, layout: Layout, *, steps: int = 1) -> Trace:
    """The trace of `steps` steps of `model`. Raises TraceError where the model can't be cut so."""
    if layout.tp > 1 and all(layer.split == "none" for layer in model.layers):
        raise TraceError(f"no layer of {model.name} says how tp={layout.tp} splits it", place="--layout")
    forward = sum(layer.flops for layer in model.layers) * model.batch * layout.microbatches
    if 3 * forward / (model.tflops * 1e3) > _LONGEST_STEP_NS:
        raise TraceError(
            f"a step of {model.name} takes over 30 days at {model.tflops} TFLOP/s", mend="say a higher rate"
        )
    stages = _stages(model, layout)
    groups = groups_of(layout)
    programs = {}
    for rank in range(layout.ranks):
        job = _Rank(model, layout, stages, groups, rank)
        for step in range(steps):
            job.step(step)
        programs[rank] = Program(rank, tuple(job.ops))
    return Trace(
        world_size=layout.ranks,
        groups=groups,
        programs=programs,
        step_count=steps,
        findings=(Finding("synthetic", _LEFT_OUT, "info"),),
        provenance={"model": model.name, "source": model.source, "device": model.device, "layout": str(layout)},
    )


def _stages(model: Model, layout: Layout) -> list[list[Layer]]:
    """The layers of each pipeline stage; what is in no unit goes with the unit before it."""
    units = 1 + max(layer.unit for layer in model.layers)
    if layout.pp > 1 and units < layout.pp:
        raise TraceError(f"{model.name} has {units} units, too few for {layout.pp} stages", place="--layout")
    made: list[list[Layer]] = [[] for _ in range(layout.pp)]
    unit = 0
    for layer in model.layers:
        unit = max(unit, layer.unit)
        made[unit * layout.pp // max(1, units)].append(layer)
    return made


def _split(layer: Layer, parts: int) -> Layer:
    """What one of `parts` tensor-parallel ranks has of `layer`, padded to equal sizes."""
    if layer.split == "none" or parts == 1:
        return layer
    place = 1 if layer.split == "row" else 0
    shapes = tuple(
        tuple(-(-size // parts) if index == place else size for index, size in enumerate(shape))
        for shape in layer.tensors
    )
    return Layer(
        layer.name, shapes, -(-layer.flops // parts), layer.activation,
        layer.buffers, layer.counters, layer.split, layer.unit,
    )  # fmt: skip


def _shard(layers: Sequence[Layer], parts: int) -> int:
    """Elements that one rank keeps of `layers`: FSDP2 cuts each tensor along its first dimension, padded."""
    return sum(-(-shape[0] // parts) * math.prod(shape[1:]) for layer in layers for shape in layer.tensors)


class _Rank:
    """Writes one rank's program."""

    def __init__(
        self, model: Model, layout: Layout, stages: list[list[Layer]], groups: tuple[Group, ...], rank: int
    ) -> None:
        self.ops: list[Op] = []
        self._model, self._layout = model, layout
        self._stage, replica, part = layout.place(rank)
        self._layers = [_split(layer, layout.tp) for layer in stages[self._stage]]
        self._groups = {group.name: group for group in groups}
        self._dp = self._groups.get(f"dp-{self._stage}-{part}")
        self._tp = self._groups.get(f"tp-{self._stage}-{replica}")
        self._me = rank
        self._before = layout.rank(self._stage - 1, replica, part) if self._stage else -1
        self._after = layout.rank(self._stage + 1, replica, part) if self._stage + 1 < layout.pp else -1
        self._output = _output(stages[self._stage])
        self._input = _output(stages[self._stage - 1]) if self._stage else 0
        self._busy_ns = 0.0
        self._open: list[int] = []
        shapes = [layer.tensors for layer in self._layers]
        self._buckets = buckets(shapes, model.dtype.itemsize) if self._dp and layout.zero < 3 else ()
        runs = [(unit, list(run)) for unit, run in groupby(self._layers, lambda layer: layer.unit)]
        self._units = {unit: run for unit, run in runs if unit >= 0}
        self._rest = [layer for layer in self._layers if layer.unit < 0]

    def step(self, number: int) -> None:
        """One step: its passes in 1F1B order, then what ends it."""
        passes = self._layout.microbatches
        ahead = min(self._layout.pp - 1 - self._stage, passes)
        for _ in range(ahead):
            self._forward(is_last=False)
        for done in range(passes):
            if done + ahead < passes:
                self._forward(is_last=done + ahead == passes - 1)
            self._backward(is_last=done == passes - 1)
        self._finish()
        if self._dp and self._layout.zero in (1, 2):
            for index, bucket in enumerate(self._buckets):
                self._gather(-(-bucket.elements // self._layout.dp), f"parameters {index}")
            self._finish()
        self.ops.append(StepMark(number))

    def _forward(self, *, is_last: bool) -> None:
        if self._before >= 0:
            self._receive(self._before, self._input, "activations")
        if is_last and self._layout.zero < 3:
            self._broadcast_buffers()
        gathered = self._gather_units(list(self._units), with_rest=True)
        for unit, run in groupby(self._layers, lambda layer: layer.unit):
            gathered.use(unit)
            for layer in run:
                self._compute(layer.flops)
                if layer.split in ("row", "vocab"):
                    self._reduce_activation(layer.activation, f"{layer.name} forward")
        if self._after >= 0:
            self._send(self._after, self._output, "activations")

    def _backward(self, *, is_last: bool) -> None:
        if self._after >= 0:
            self._receive(self._after, self._output, "gradients")
        gathered = self._gather_units(list(reversed(self._units)), with_rest=False)
        sends_buckets = is_last or self._layout.zero == 2
        due = list(self._buckets) if sends_buckets else []
        for index in range(len(self._layers) - 1, -1, -1):
            layer = self._layers[index]
            gathered.use(layer.unit)
            self._compute(2 * layer.flops)
            if layer.split == "column":
                self._reduce_activation(self._entering(index), f"{layer.name} backward")
            while due and due[0].last_layer == index:
                self._reduce_bucket(due.pop(0).elements, f"bucket {len(self._buckets) - len(due) - 1}")
            if self._is_first_of_unit(index):
                self._scatter(self._units[layer.unit], f"unit {layer.unit}")
        self._scatter(self._rest, "rest")
        if self._before >= 0:
            self._send(self._before, self._input, "gradients")

    def _is_first_of_unit(self, index: int) -> bool:
        unit = self._layers[index].unit
        return unit >= 0 and (index == 0 or self._layers[index - 1].unit != unit)

    def _entering(self, index: int) -> int:
        """Elements a sample of the activation that enters layer `index`."""
        return _output(self._layers[:index]) or self._input

    def _compute(self, flops: int) -> None:
        self._busy_ns += flops * self._model.batch / (self._model.tflops * 1e3)

    def _start(self, op: Communication) -> int:
        self._flush()
        self.ops.append(op)
        return len(self.ops) - 1

    def _flush(self) -> None:
        """Says the compute so far; the part of a nanosecond that is left counts for the next."""
        whole = int(self._busy_ns)
        if whole:
            self.ops.append(Compute(whole))
            self._busy_ns -= whole

    def wait(self, op: int) -> None:
        """Stops until operation `op` has ended."""
        self._flush()
        self.ops.append(Wait(op))

    def _finish(self) -> None:
        self._flush()
        self.ops += [Wait(op) for op in self._open]
        self._open.clear()

    def _collective(self, kind: CollectiveKind, group: Group, count: int, name: str) -> int:
        return self._start(Collective(kind, group.id, count, self._model.dtype, name=name))

    def _reduce_bucket(self, elements: int, name: str) -> None:
        assert self._dp
        if self._layout.zero == 0:
            self._open.append(self._collective(CollectiveKind.ALL_REDUCE, self._dp, elements, name))
        else:
            count = -(-elements // self._layout.dp)
            self._open.append(self._collective(CollectiveKind.REDUCE_SCATTER, self._dp, count, name))

    def _gather(self, count: int, name: str) -> None:
        assert self._dp
        self._open.append(self._collective(CollectiveKind.ALL_GATHER, self._dp, count, name))

    def _scatter(self, layers: Sequence[Layer], name: str) -> None:
        count = _shard(layers, self._layout.dp)
        if self._dp and self._layout.zero == 3 and count:
            self._open.append(self._collective(CollectiveKind.REDUCE_SCATTER, self._dp, count, name))

    def _gather_units(self, order: list[int], *, with_rest: bool) -> _Gathered:
        return _Gathered(self, order if self._dp and self._layout.zero == 3 else [], with_rest=with_rest)

    def gather_now(self, unit: int) -> int | None:
        """Starts gathering a unit, or the rest (-1). None where there is nothing to gather."""
        layers = self._rest if unit < 0 else self._units[unit]
        count = _shard(layers, self._layout.dp)
        if not (self._dp and self._layout.zero == 3 and count):
            return None
        name = "rest" if unit < 0 else f"unit {unit}"
        return self._collective(CollectiveKind.ALL_GATHER, self._dp, count, name)

    def _reduce_activation(self, elements: int, name: str) -> None:
        if self._tp and elements:
            self.wait(self._collective(CollectiveKind.ALL_REDUCE, self._tp, elements * self._model.batch, name))

    def _broadcast_buffers(self) -> None:
        if self._dp is None:
            return
        floats = sum(layer.buffers for layer in self._layers)
        counters = sum(layer.counters for layer in self._layers)
        kind, root = CollectiveKind.BROADCAST, self._dp.ranks[0]
        for count, dtype in ((floats, self._model.dtype), (counters, DType.INT64)):
            if count:
                self.wait(self._start(Collective(kind, self._dp.id, count, dtype, root, name="buffers")))

    def _send(self, peer: int, elements: int, name: str) -> None:
        group = self._groups[f"pp-{self._me}-{peer}"].id
        count = elements * self._model.batch
        self._open.append(self._start(Send(peer, count, self._model.dtype, group=group, name=name)))

    def _receive(self, peer: int, elements: int, name: str) -> None:
        group = self._groups[f"pp-{peer}-{self._me}"].id
        count = elements * self._model.batch
        self.wait(self._start(Recv(peer, count, self._model.dtype, group=group, name=name)))


class _Gathered:
    """FSDP's gathering during one pass: the next unit's is started as soon as the unit in use is there."""

    def __init__(self, rank: _Rank, order: list[int], *, with_rest: bool) -> None:
        self._rank = rank
        self._order = order
        self._started: dict[int, int] = {}
        rest = rank.gather_now(-1) if with_rest else None
        self._next()
        if rest is not None:
            rank.wait(rest)

    def use(self, unit: int) -> None:
        """Waits until `unit` is there; nothing is done a second time."""
        op = self._started.pop(unit, None)
        if op is not None:
            self._rank.wait(op)
            self._next()

    def _next(self) -> None:
        if self._order:
            unit = self._order.pop(0)
            op = self._rank.gather_now(unit)
            if op is not None:
                self._started[unit] = op


def _output(layers: Sequence[Layer]) -> int:
    """Elements a sample of the activation that leaves `layers`: the last one that is said."""
    return next((layer.activation for layer in reversed(layers) if layer.activation), 0)
