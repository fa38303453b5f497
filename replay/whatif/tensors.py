"""Cuts a job's gradients at the tensors of a model's description: what each bucket holds, and when each tensor was ready."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from replay.whatif.edit import Edit, Place
from replay.whatif.gradients import Piece, Round, pieces
from replay.whatif.options import Options
from traces.errors import TraceError
from traces.model import Model, load, shipped
from traces.program import Collective, DType, Trace

BACKWARD = Fraction(2, 3)
"""Of a step's compute: once for the gradients of the inputs, once for those of the weights (PaLM, arXiv 2204.02311,
appendix B)."""


def model_of(trace: Trace, options: Options) -> Model | None:
    """The model that `model` of the options names, or that the trace was synthesized from; None where nobody says."""
    if "model" in options:
        try:
            return load(options.said["model"])
        except (TraceError, OSError) as error:
            raise options.error(str(error), "`tracebed synth --help` says what a description is") from None
    name = trace.provenance.get("model")
    return next((one for one in map(load, shipped()) if one.name == name), None) if name else None


def tensors(one: Round, edits: Mapping[int, Edit], model: Model) -> list[Piece]:
    """The tensors of a round in the order in which they become ready, the last of each operation where it was started.

    What lies between two operations is parted by the floating-point operations of the layers that the second one reduces;
    of what lies before the first, so much is the backward pass as its layers have of two thirds of the step's compute.

    Raises TraceError where the operations do not hold whole tensors of the model.
    """
    made: list[Piece] = []
    held = contents(one.ops, model)
    costs = [layer.flops for layer in model.layers]
    reached = len(costs)
    done_before = dict.fromkeys(one.started, 0)
    for number, (whole, parts) in enumerate(zip(pieces(one, edits), held, strict=True)):
        lowest = min((part.layer for part in parts), default=reached)
        share = sum(costs[lowest:reached])
        for rank, edit in edits.items():
            if rank in one.started:
                done_before[rank] = _begin_ns(one, edit, rank, number, Fraction(share, max(1, sum(costs))))
        for place, part in enumerate(parts):
            is_last = place == len(parts) - 1
            passed = sum(costs[part.layer : reached]) if part.layer < reached else 0
            ready = {
                rank: whole.ready[rank]
                if is_last
                else _ready(one, edits[rank], rank, number, done_before[rank], passed, share)
                for rank in one.started
            }
            made.append(replace(whole, op=replace(whole.op, count=part.count, name=part.name), ready=ready))
        reached = min(reached, lowest)
    return made


@dataclass(frozen=True, slots=True)
class Tensor:
    """One of a model's tensors: elements as its operation counts, the layer's number in the model."""

    count: int
    name: str
    layer: int
    shape: tuple[int, ...]


def contents(ops: tuple[Collective, ...], model: Model) -> list[list[Tensor]]:
    """The tensors in each operation. Raises TraceError where they are not whole tensors of the model."""
    left = [
        (shape, f"{layer.name}.{number}", index)
        for index, layer in enumerate(model.layers)
        for number, shape in enumerate(layer.tensors)
    ]
    made = []
    for number, op in enumerate(ops):
        scale = model.dtype.itemsize if op.dtype is DType.UINT8 else 1
        held: list[Tensor] = []
        missing = op.count
        while missing > 0 and left:
            shape, name, layer = left.pop()
            held.append(Tensor(math.prod(shape) * scale, name, layer, shape))
            missing -= held[-1].count
        if missing:
            what = f"{op.name!r}" if op.name else f"the step's all_reduce {number}"
            raise TraceError(f"{what} of {op.count} {op.dtype} does not hold whole tensors of {model.name}")
        made.append(held)
    if left:
        raise TraceError(f"the step's all_reduces lack {len(left)} tensors of {model.name}")
    return made


def _begin_ns(one: Round, edit: Edit, rank: int, number: int, share: Fraction) -> int:
    """Compute that is done when the backward pass of an operation's layers begins."""
    started = one.started[rank]
    if number:
        return edit.done_ns[started[number - 1].start]
    begin, first, last = (edit.done_ns[at] for at in (one.begin[rank], started[0].start, started[-1].start))
    return max(begin, first - math.floor((last - begin) * BACKWARD * share))


def _ready(one: Round, edit: Edit, rank: int, number: int, begin_ns: int, passed: int, share: int) -> Place:
    """Where `passed` of the `share` floating-point operations are done, behind what else the group started meanwhile."""
    end = one.started[rank][number].start
    low = one.started[rank][number - 1].start + 1 if number else one.begin[rank]
    for index in range(end - 1, low - 1, -1):
        op = edit.program.ops[index]
        if isinstance(op, Collective) and op.group == one.group:
            low = index + 1
            break
    span = edit.done_ns[end] - begin_ns
    return edit.place(begin_ns + (span * passed // share if share else span), low, end)
