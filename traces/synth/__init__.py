"""Makes traces: from a model's description and a parallel layout to what every rank of the job computes and sends.

One file a matter: `shares.py` what a rank has of the model, `gradients.py` DDP and ZeRO, `pipeline.py` the order of passes,
`attention.py` context parallelism, `rank.py` a rank's passes with tensor and expert parallelism, `writer.py` the program.
"""

from __future__ import annotations

from traces.errors import TraceError
from traces.layout import Layout, groups_of
from traces.model import Model
from traces.program import Finding, Trace
from traces.synth.rank import Rank
from traces.synth.shares import stages

_LONGEST_STEP_NS = 30 * 86_400 * 10**9
_LEFT_OUT = (
    "made from a description, not recorded: every device takes equally long; optimizer, data loading, recomputation and the "
    "loss cost nothing; gradients have the parameters' type; tied weights are reduced once"
)


def synthesize(model: Model, layout: Layout, *, steps: int = 1) -> Trace:
    """The trace of `steps` steps of `model`. Raises TraceError where the model can't be cut so."""
    _refuse(model, layout)
    cut = stages(model, layout)
    groups = groups_of(layout)
    return Trace(
        world_size=layout.ranks,
        groups=groups,
        programs={rank: Rank(model, layout, cut, groups, rank).program(steps) for rank in range(layout.ranks)},
        step_count=steps,
        findings=(Finding("synthetic", "; ".join((_LEFT_OUT, *_assumed(model, layout))), "info"),),
        provenance={"model": model.name, "source": model.source, "device": model.device, "layout": str(layout)},
    )


def _assumed(model: Model, layout: Layout) -> list[str]:
    """What else is taken for granted in this layout."""
    said = []
    if any(layer.experts for layer in model.layers):
        said.append("every expert gets as many tokens, and none is dropped")
    if layout.cp > 1:
        said.append("each context parallel rank has an equal part of the attention, and all else is divided by tokens")
    if any(layer.split == "table" for layer in model.layers):
        said.append("looking up in tables and changing them costs nothing")
    return said


def _refuse(model: Model, layout: Layout) -> None:
    layers = model.layers
    if layout.tp > 1 and all(layer.split in ("none", "table") for layer in layers):
        raise TraceError(f"no layer of {model.name} says how tp={layout.tp} splits it", place="--layout")
    if layout.cp > 1 and not any(layer.kv for layer in layers):
        raise TraceError(f"no layer of {model.name} says its keys and values for cp={layout.cp}", place="--layout")
    experts = {layer.experts for layer in layers if layer.experts}
    if layout.ep > 1 and not experts:
        raise TraceError(f"{model.name} has no experts to share out with ep={layout.ep}", place="--layout")
    for count in sorted(experts):
        if count % layout.ep:
            raise TraceError(f"ep={layout.ep} does not divide the {count} experts of {model.name}", place="--layout")
    for layer in layers:
        if layer.split == "table" and layout.pp > 1:
            raise TraceError(f"{layer.name} of {model.name}: tables are not cut into stages", place="--layout")
        if layer.split == "table" and len(layer.tensors) < layout.replicas:
            text = f"{layer.name} of {model.name} has {len(layer.tensors)} tables, too few for {layout.replicas} ranks"
            raise TraceError(text, place="--layout")
    forward = sum(layer.flops for layer in layers) * model.batch * layout.microbatches
    if 3 * forward / (model.tflops * 1e3) > _LONGEST_STEP_NS:
        raise TraceError(
            f"a step of {model.name} takes over 30 days at {model.tflops} TFLOP/s", mend="say a higher rate"
        )
