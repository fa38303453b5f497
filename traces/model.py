"""A model's description (YAML): its layers, their tensors in the order of `parameters()`, and what computing them costs.

Shipped descriptions are in `traces/models/`. A layer's forward pass costs 2 x elements x `uses` floating-point operations a
sample for each tensor of two or more dimensions (a multiplication and an addition each time a weight is used; of experts
`top_k` are), plus `flops` for what has no weights (attention scores). The backward pass costs twice the forward pass: once
for the gradients of the inputs, once for those of the weights (PaLM, arXiv 2204.02311, appendix B).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import yaml

from traces.errors import TraceError
from traces.program import DType

SHIPPED = Path(__file__).parent / "models"
Split = Literal["none", "column", "row", "vocab", "table"]
_LARGEST = 64 << 10  # bytes of a description
_MOST_LAYERS = 10_000
_MOST_TENSORS = 1 << 17
_MOST_EXPERTS = 1 << 12
_MOST_ELEMENTS = 1 << 44  # of a tensor, of an activation, of all tensors
_MOST_FLOPS = 1 << 60
_MOST_SAMPLES = 1 << 16


@dataclass(frozen=True, slots=True)
class Layer:
    """`tensors` are shapes. `flops` are of a forward pass and a sample, `activation` is elements a sample that leave it.

    `buffers` and `counters` are the elements of floating-point and int64 buffers (batch norm). `unit` numbers the part of the
    model that FSDP shards together and that a pipeline does not cut; -1 is the rest. `split` says how tensor parallelism
    divides it (Megatron, arXiv 1909.08053): `column` by outputs, `row` by inputs, `vocab` by words, `none` not at all;
    `table`: data parallel ranks share its tensors out whole, as DLRM does (arXiv 1906.00091), and exchange what they look up.

    A layer of `experts` has the tensors of each expert one after the other; a token goes to `top_k` of them. `kv` is
    elements a sample of the keys and values that attention makes here, `scores` the part of `flops` that attending takes.
    `joins`: what was looked up in tables is needed here.
    """

    name: str
    tensors: tuple[tuple[int, ...], ...]
    flops: int
    activation: int
    buffers: int
    counters: int
    split: Split
    unit: int
    experts: int = 0
    top_k: int = 1
    kv: int = 0
    scores: int = 0
    joins: bool = False


@dataclass(frozen=True, slots=True)
class Model:
    """`batch` is in samples a data parallel rank and pass; `tflops` is what the device really does, 1e12 operations a second."""

    name: str
    source: str
    device: str
    dtype: DType
    batch: int
    tflops: float
    layers: tuple[Layer, ...]

    @property
    def parameters(self) -> int:
        """Elements of all tensors."""
        return sum(math.prod(shape) for layer in self.layers for shape in layer.tensors)


class _Layer(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    tensors: list[str] = []
    uses: str = ""
    flops: int = 0
    activation: str = ""
    buffers: list[int] = []
    counters: int = 0
    split: Split = "none"
    experts: int = 0
    top_k: int = 1
    kv: str = ""
    joins: bool = False


class _Entry(_Layer, forbid_unknown_fields=True):
    repeat: int = 0
    layers: list[_Layer] = []


class _File(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    source: str
    device: str
    dtype: DType
    batch: int
    tflops: float
    layers: list[_Entry]


def shipped() -> list[str]:
    """Names of the descriptions that come with Tracebed, sorted."""
    return sorted(path.stem for path in SHIPPED.glob("*.yaml"))


def load(name: str) -> Model:
    """The shipped model `name`, or the description in the file `name`. Raises TraceError, OSError."""
    if name in shipped():
        return parse((SHIPPED / f"{name}.yaml").read_text(), f"{name}.yaml")
    path = Path(name)
    if not path.is_file():
        raise TraceError(f"no model or file is called {name!r}", mend=f"models: {', '.join(shipped())}")
    if path.stat().st_size > _LARGEST:
        raise TraceError(f"larger than {_LARGEST} bytes: not a model's description", file=name)
    try:
        return parse(path.read_text(), name)
    except UnicodeDecodeError:
        raise TraceError("not text: expected a model's description in YAML", file=name) from None


def parse(text: str, file: str) -> Model:
    """The model that `text` describes. Raises TraceError naming `file` and the key."""
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.BaseLoader)):
            raise TraceError("aliases (*name) are not read", file=file)  # a few could stand for any amount of memory
        written = msgspec.convert(yaml.load(text, yaml.BaseLoader), _File, strict=False)
    except (yaml.YAMLError, RecursionError) as error:
        raise TraceError(f"not YAML: {str(error).splitlines()[0]}", file=file) from None
    except msgspec.ValidationError as error:
        raise TraceError(str(error), file=file, mend="traces/models/ has examples") from None
    if not (0 < written.batch <= _MOST_SAMPLES and 0 < written.tflops < math.inf):
        raise TraceError(f"expected batch from 1 to {_MOST_SAMPLES} and tflops above 0", file=file)
    tensors = sum(
        max(1, entry.repeat) * len(layer.tensors) * max(1, layer.experts)
        for entry in written.layers
        for layer in (entry.layers if entry.repeat else [entry])
    )
    if tensors > _MOST_TENSORS:
        raise TraceError(f"{tensors} tensors: expected at most {_MOST_TENSORS}", file=file, place="layers")
    layers: list[Layer] = []
    units = 0
    for entry in written.layers:
        if not entry.repeat:
            layers.append(_layer(entry, entry.name, -1, file))
            continue
        if entry.repeat < 0 or entry.repeat * max(1, len(entry.layers)) + len(layers) > _MOST_LAYERS:
            raise TraceError(f"repeat {entry.repeat} gives no model of 1 to {_MOST_LAYERS} layers", file=file)
        for number in range(entry.repeat):
            layers += [_layer(inner, f"{entry.name}.{number}.{inner.name}", units, file) for inner in entry.layers]
            units += 1
    tables = [index for index, layer in enumerate(layers) if layer.split == "table"]
    if tables and not any(layer.joins for layer in layers[tables[-1] + 1 :]):
        text = f"no layer behind {layers[tables[-1]].name} has `joins`: expected one where what was looked up is needed"
        raise TraceError(text, file=file, place="layers")
    model = Model(
        written.name, written.source, written.device, written.dtype, written.batch, written.tflops, tuple(layers)
    )
    if not 0 < model.parameters <= _MOST_ELEMENTS:
        text = f"{model.parameters} parameters in all layers' tensors: expected 1 to {_MOST_ELEMENTS}"
        raise TraceError(text, file=file, place="layers")
    return model


def _layer(entry: _Layer, name: str, unit: int, file: str) -> Layer:
    if not (0 <= entry.experts <= _MOST_EXPERTS and 0 < entry.top_k <= max(1, entry.experts)):
        text = f"expected experts up to {_MOST_EXPERTS} and top_k from 1 to as many"
        raise TraceError(text, file=file, place=f"layer {name}")
    shapes = tuple(_shape(shape, name, file) for shape in entry.tensors)
    uses = entry.top_k * _elements(entry.uses, name, file)
    flops = 2 * sum(math.prod(shape) for shape in shapes if len(shape) > 1) * uses + entry.flops
    if min(entry.flops, entry.counters, *entry.buffers) < 0 or flops > _MOST_FLOPS:
        raise TraceError(
            f"expected flops, buffers and counters from 0 to {_MOST_FLOPS}", file=file, place=f"layer {name}"
        )
    if sum(entry.buffers) + entry.counters > _MOST_ELEMENTS:
        raise TraceError(f"buffers of more than {_MOST_ELEMENTS} elements", file=file, place=f"layer {name}")
    kv = _elements(entry.kv, name, file)
    return Layer(
        name, shapes * max(1, entry.experts), flops, _elements(entry.activation, name, file),
        sum(entry.buffers), entry.counters, entry.split, unit,
        entry.experts, entry.top_k, kv, entry.flops if kv else 0, entry.joins,
    )  # fmt: skip


def _elements(shape: str, layer: str, file: str) -> int:
    """How many elements `shape` has; 0 where none is written."""
    return math.prod(_shape(shape, layer, file)) if shape else 0


def _shape(text: str, layer: str, file: str) -> tuple[int, ...]:
    parts = text.split("x")
    if not all(part.isascii() and part.isdigit() and len(part) < 10 and int(part) for part in parts):
        raise TraceError(f"{text!r} is no shape: expected sizes as in 64x3x7x7", file=file, place=f"layer {layer}")
    shape = tuple(int(part) for part in parts)
    if math.prod(shape) > _MOST_ELEMENTS:
        raise TraceError(f"{text!r} has more than {_MOST_ELEMENTS} elements", file=file, place=f"layer {layer}")
    return shape
