"""Gradients that are made smaller before they travel: fewer bits, fewer elements, factors of low rank.

What a method sends can be summed on the way (an all-reduce of less), or each rank's has to come to all ranks, which then make
sense of all of them (an all-gather, whose volume grows with the number of ranks, as does decoding).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from replay.whatif.edit import Edit, Place, edited, edits_of
from replay.whatif.gradients import Round, rounds
from replay.whatif.options import VALUE, Options
from replay.whatif.registry import Scenario, what_if
from replay.whatif.tensors import Tensor, contents, model_of
from traces.errors import TraceError
from traces.model import Model
from traces.program import Collective, CollectiveKind, DType, op_bytes

_INDEX = 4  # bytes of a sparse element's index
_SCALE = 4  # bytes of a float32 that goes with a tensor: its norm, its largest element, a mean
_FLOATS = {DType.FLOAT16: 2, DType.BFLOAT16: 2, DType.FLOAT32: 4, DType.FLOAT64: 8}


@dataclass(frozen=True, slots=True)
class _Gradient:
    """One recorded operation: `elements` of `itemsize` bytes, and its tensors where they are known."""

    elements: int
    itemsize: int
    tensors: Sequence[Tensor]


Wire = tuple[tuple[CollectiveKind, int, DType], ...]
"""What is started in the place of one gradient: kind, count, type."""


def _summed(count: int, dtype: DType) -> Wire:
    return ((CollectiveKind.ALL_REDUCE, count, dtype),)


def _gathered(nbytes: int) -> Wire:
    return ((CollectiveKind.ALL_GATHER, nbytes, DType.UINT8),)


def _narrow(dtype: DType) -> Callable[[_Gradient, Options], Wire]:
    return lambda gradient, options: _summed(gradient.elements, dtype)


def _one_bit(gradient: _Gradient, options: Options) -> Wire:
    """A bit an element, and the means of both halves (Seide et al., Interspeech 2014)."""
    return _gathered(-(-gradient.elements // 8) + 2 * _SCALE)


def _qsgd(gradient: _Gradient, options: Options) -> Wire:
    """`bits` an element, sign included, and a norm (Alistarh et al., NIPS 2017), without its entropy coding."""
    return _gathered(-(-gradient.elements * options.whole("bits", 1, 16, 8) // 8) + _SCALE)


def _terngrad(gradient: _Gradient, options: Options) -> Wire:
    """One of three values an element, in two bits, and the largest (Wen et al., NIPS 2017)."""
    return _gathered(-(-gradient.elements // 4) + _SCALE)


def _kept(gradient: _Gradient, options: Options, default: str) -> int:
    ratio = options.ratio("ratio", default)
    if ratio > 1:
        raise options.error("more than all elements", "write ratio=1%, say")
    return max(1, math.floor(gradient.elements * ratio)) if gradient.elements else 0


def _sparse(default: str) -> Callable[[_Gradient, Options], Wire]:
    """Elements and where they belong."""
    return lambda gradient, options: _gathered(_kept(gradient, options, default) * (gradient.itemsize + _INDEX))


def _random_k(gradient: _Gradient, options: Options) -> Wire:
    """Elements that all ranks draw alike, so that they can be summed without saying where they belong."""
    dtype = next(dtype for dtype in (DType.FLOAT32, *_FLOATS) if _FLOATS[dtype] == gradient.itemsize)
    return _summed(_kept(gradient, options, "1%"), dtype)


def _power_sgd(gradient: _Gradient, options: Options) -> Wire:
    """Matrices as products of `rank` columns and as many rows, one after the other; vectors, and what would not become half as
    large, go with the first as they are (Vogels et al., NeurIPS 2019; torch's powerSGD_hook.py)."""
    rank = options.whole("rank", 1, 1024, 4)
    first = second = 0
    for tensor in gradient.tensors:
        rows = tensor.shape[0]
        columns = math.prod(tensor.shape[1:])
        if len(tensor.shape) < 2 or 2 * (rows + columns) * rank >= rows * columns:
            first += rows * columns
        else:
            first += rows * rank
            second += columns * rank
    return _summed(first, DType.FLOAT32) + (_summed(second, DType.FLOAT32) if second else ())


_METHODS: dict[str, Callable[[_Gradient, Options], Wire]] = {
    "fp16": _narrow(DType.FLOAT16),
    "bf16": _narrow(DType.BFLOAT16),
    "1bit": _one_bit,
    "qsgd": _qsgd,
    "terngrad": _terngrad,
    "topk": _sparse("1%"),
    "dgc": _sparse("0.1%"),
    "randomk": _random_k,
    "powersgd": _power_sgd,
}
_KEYS = {"qsgd": {"bits"}, "topk": {"ratio"}, "dgc": {"ratio"}, "randomk": {"ratio"}, "powersgd": {"rank", "model"}}


@what_if(
    f"compress={'|'.join(_METHODS)},ratio=RATIO,bits=N,rank=N,encode=RATE,decode=RATE,model=NAME,along=GROUP",
    does="makes gradients smaller: kept elements ratio (topk, randomk 1%; dgc 0.1%), bits an element (qsgd 8), rank (powersgd 4); "
    "sparse and quantised ones are all-gathered",
    assumes="encoding before and decoding behind an operation are compute, at the rates you give of dense bytes (free without); "
    "each rank's part is decoded where they are gathered; accuracy is not looked at",
    source="Seide 2014; QSGD, TernGrad 2017; DGC 2018; PowerSGD 2019; GRACE (ICDCS 2021)",
)
def compress(scenario: Scenario, options: Options) -> tuple[Scenario, str]:
    """Compressed gradients."""
    trace, method = scenario.trace, options.choice(VALUE, tuple(_METHODS))
    known = {VALUE, "encode", "decode", "along"} | _KEYS.get(method, set())
    if wrong := options.said.keys() - known:
        raise options.error(f"{method} has no {min(wrong)}", f"leave {min(wrong)}= out")
    model = model_of(trace, options) if method == "powersgd" else None
    if method == "powersgd" and model is None:
        text = "nobody says which matrices the recorded operations hold"
        raise options.no_model(text)
    sizes = {group.id: len(group.ranks) for group in trace.groups}
    edits = edits_of(trace)
    costs = _Costs(*(options.rate(key) if key in options else 0 for key in ("encode", "decode")))
    before = after = 0
    for one in rounds(trace, options):
        for number, gradient in enumerate(_gradients(one, model, options)):
            wire = _METHODS[method](gradient, options)
            _replace(one, number, wire, edits, costs, sizes[one.group])
            before += op_bytes(one.ops[number])
            after += sum(count * dtype.itemsize for _, count, dtype in wire)
    gathered = wire[0][0] is CollectiveKind.ALL_GATHER
    said = f"compress: {method} makes {before / trace.step_count / 1e6:.3f} MB a step {after / trace.step_count / 1e6:.3f} MB"
    said += ", gathered from all ranks" if gathered else ", summed on the way"
    return scenario.on(edited(trace, edits)), f"{said}; {costs.said}"


@dataclass(frozen=True, slots=True)
class _Costs:
    """Rates in bit/s of dense gradients; 0 is free."""

    encode: int
    decode: int

    @property
    def said(self) -> str:
        rates = [
            f"{name} at {rate / 1e9:g} Gbit/s"
            for name, rate in (("encoding", self.encode), ("decoding", self.decode))
            if rate
        ]
        return f"{' and '.join(rates)} of dense gradients" if rates else "encoding and decoding are taken to be free"


def _ns(nbytes: int, rate: int) -> int:
    return math.ceil(Fraction(nbytes * 8 * 10**9, rate)) if rate else 0


def _gradients(one: Round, model: Model | None, options: Options) -> list[_Gradient]:
    held: Sequence[Sequence[Tensor]] = [()] * len(one.ops)
    if model is not None:
        try:
            held = contents(one.ops, model)
        except TraceError as error:
            raise options.wrong_model(error) from None
    return [_gradient(op, tensors, options) for op, tensors in zip(one.ops, held, strict=True)]


def _gradient(op: Collective, tensors: Sequence[Tensor], options: Options) -> _Gradient:
    if op.dtype is DType.UINT8:  # not recorded: as most gradients are
        return _Gradient(op.count // 4, 4, tensors)
    if op.dtype not in _FLOATS:
        raise options.error(f"gradients of {op.dtype} can't be compressed", "along= names another group")
    return _Gradient(op.count, op.dtype.itemsize, tensors)


def _replace(one: Round, number: int, wire: Wire, edits: dict[int, Edit], costs: _Costs, size: int) -> None:
    op = one.ops[number]
    dense = op_bytes(op)
    decoded = size if wire[0][0] is CollectiveKind.ALL_GATHER else 1
    for rank, started in one.started.items():
        edit, old = edits[rank], started[number]
        edit.remove(old.start)
        edit.compute(Place(old.start), _ns(dense, costs.encode), "encode")
        keys = [
            edit.start(Place(old.start), replace(op, kind=kind, count=count, dtype=dtype))
            for kind, count, dtype in wire
        ]
        if old.wait >= 0:
            edit.remove(old.wait)
            for key in keys:
                edit.wait(Place(old.wait), key)
            edit.compute(Place(old.wait), decoded * _ns(dense, costs.decode), "decode")
