"""What a rank has of a model: its stages' layers, cut by tensor and context parallelism."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from traces.errors import TraceError
from traces.layout import Layout
from traces.model import Layer, Model

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Stage:
    """One chunk of the pipeline at one rank. `entering` and `leaving` are elements a sample of its activations."""

    number: int
    layers: tuple[Layer, ...]
    entering: int
    leaving: int

    def before(self, index: int) -> int:
        """Elements a sample of the activation that enters layer `index`."""
        return _output(self.layers[:index]) or self.entering

    def units(self) -> dict[int, range]:
        """Where each unit's layers are."""
        runs = groupby(range(len(self.layers)), lambda index: self.layers[index].unit)
        made = {unit: list(run) for unit, run in runs if unit >= 0}
        return {unit: range(run[0], run[-1] + 1) for unit, run in made.items()}


def stages(model: Model, layout: Layout) -> tuple[Stage, ...]:
    """The pipeline's stages, of as many units each as possible; what is in no unit goes with the unit before it.

    Raises TraceError where there are fewer units than stages.
    """
    units = 1 + max(layer.unit for layer in model.layers)
    count = layout.pp * layout.vpp
    if count > 1 and units < count:
        raise TraceError(f"{model.name} has {units} units, too few for {count} stages", place="--layout")
    made: list[list[Layer]] = [[] for _ in range(count)]
    unit = 0
    for layer in model.layers:
        unit = max(unit, layer.unit)
        made[unit * count // max(1, units)].append(_part(layer, layout))
    outputs = [0, *(_output(layers) for layers in made)]
    return tuple(
        Stage(number, tuple(layers), outputs[number], outputs[number + 1]) for number, layers in enumerate(made)
    )


def _part(layer: Layer, layout: Layout) -> Layer:
    """What one rank has of `layer`, padded to equal sizes: a part of its weights, a part of each sample's tokens."""
    tp, cp = layout.tp, layout.cp
    if layer.split in ("none", "table"):
        tp = 1
    place = 1 if layer.split == "row" else 0
    shapes = tuple(
        tuple(-(-size // tp) if index == place else size for index, size in enumerate(shape)) for shape in layer.tensors
    )
    return replace(
        layer,
        tensors=shapes,
        flops=-(-layer.flops // (tp * cp)),
        scores=-(-layer.scores // (tp * cp)),
        kv=-(-layer.kv // (tp * cp)),
        activation=-(-layer.activation // cp),
    )


def shard(tensors: Sequence[Shapes], parts: int) -> int:
    """Elements that one rank keeps of `tensors`: FSDP2 cuts each along its first dimension, padded."""
    return sum(-(-shape[0] // parts) * math.prod(shape[1:]) for shapes in tensors for shape in shapes)


def _output(layers: Sequence[Layer]) -> int:
    """Elements a sample of the activation that leaves `layers`: the last one that is said."""
    return next((layer.activation for layer in reversed(layers) if layer.activation), 0)
