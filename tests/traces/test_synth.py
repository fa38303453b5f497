"""Traces made from descriptions: DDP's buckets as torch makes them, volumes as the papers count them, and that they run."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from replay.ideal import ideal_step_ns
from replay.plan import lower
from tests.conftest import ROOT
from tests.traces.test_commands import Capture, tracebed
from traces import archive, layout
from traces.buckets import BUCKET, FIRST_BUCKET, buckets
from traces.checks import check
from traces.errors import TraceError
from traces.model import Model, load, parse, shipped
from traces.program import Collective, CollectiveKind, Compute, Send, Trace, op_bytes
from traces.synth import synthesize

# Tensors and parameters of torchvision's and transformers' models; buckets of torch itself (fp32, 1 MiB then 25 MiB).
PUBLISHED = {
    "resnet50": (161, 25_557_032, 5),
    "vgg16": (32, 138_357_544, 6),
    "bert-base": (206, 110_106_428, 14),
    "bert-large": (398, 336_226_108, 38),
    "gpt2": (148, 124_439_808, 13),
    "alexnet": (16, 61_100_840, 4),
    "vgg19": (38, 143_667_240, 6),
    "resnet101": (314, 44_549_160, 8),
    "resnet152": (467, 60_192_808, 10),
    "gpt2-medium": (292, 354_823_168, 37),
    "gpt2-xl": (580, 1_557_611_200, 145),
    "llama2-7b": (291, 6_738_415_616, 226),
    "llama2-70b": (723, 68_976_648_192, None),
    "llama3-8b": (291, 8_030_261_248, None),
    "llama3-70b": (723, 70_553_706_496, None),
    "vgg16-bn": (58, 138_365_992, 6),
    "inception-v3": (292, 27_161_264, 5),
    "googlenet": (187, 13_004_888, 3),
    "mixtral-8x7b": (995, 46_702_792_704, None),
    "dlrm": (42, 128 * 187_767_399 + 2_368_897, None),
}
LAYOUTS = [
    "", "zero=1", "zero=2,microbatches=2", "zero=3,microbatches=2", "tp=2", "pp=2,microbatches=4", "tp=8", "pp=8",
    "tp=2,pp=2,microbatches=3", "pp=4,microbatches=2", "tp=2,pp=2,zero=3,microbatches=2",
]  # fmt: skip


def made(model: Model | str, ranks: int, text: str = "", *, steps: int = 1) -> Trace:
    described = load(model) if isinstance(model, str) else model
    return synthesize(described, layout.parse(text, ranks), steps=steps)


def collectives(trace: Trace, kind: CollectiveKind, rank: int = 0, group: str | None = None) -> list[Collective]:
    names = {one.id: one.name for one in trace.groups}
    ops = [op for op in trace.programs[rank].ops if isinstance(op, Collective) and op.kind is kind]
    return [op for op in ops if group is None or names[op.group].startswith(group)]


def compute_ns(trace: Trace, rank: int = 0) -> int:
    return sum(op.ns for op in trace.programs[rank].ops if isinstance(op, Compute))


def test_every_shipped_model_has_its_published_tensors_and_torch_s_buckets() -> None:
    assert sorted(PUBLISHED) == shipped()
    for name, (tensors, parameters, count) in PUBLISHED.items():
        model = load(name)
        shapes = [layer.tensors for layer in model.layers]
        assert (name, sum(map(len, shapes)), model.parameters) == (name, tensors, parameters)
        if count is not None:
            assert (name, len(buckets(shapes, 4))) == (name, count)


def test_resnet50_communicates_as_the_recorded_job() -> None:
    recorded = archive.read(ROOT / "traces" / "samples" / "resnet50-ddp.trace")
    trace = made("resnet50", 4, steps=recorded.step_count)
    for rank in range(4):
        said = [
            [(op.kind, op.count, op.dtype) for op in one.programs[rank].ops if isinstance(op, Collective)]
            for one in (recorded, trace)
        ]
        assert said[0] == said[1]
    sizes = [op.count for op in collectives(made("resnet50", 4), CollectiveKind.ALL_REDUCE)]
    assert sizes == [2_049_000, 7_875_584, 6_563_840, 6_637_568, 2_431_040]


@pytest.mark.torch
@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_buckets_are_torch_s_own(name: str) -> None:
    import torch
    from torch.distributed import _compute_bucket_assignment_by_size

    shapes = [layer.tensors for layer in load(name).layers]
    tensors = [torch.empty(shape, device="meta") for layer in shapes for shape in layer][::-1]
    assigned, _ = _compute_bucket_assignment_by_size(tensors, [FIRST_BUCKET, BUCKET])

    assert [bucket.elements for bucket in buckets(shapes, 4)] == [
        sum(tensors[index].numel() for index in bucket) for bucket in assigned
    ]


@pytest.mark.parametrize("text", LAYOUTS)
def test_every_layout_passes_the_checks_and_runs(text: str) -> None:
    trace = made("gpt2", 8, text, steps=2)

    assert [(finding.code, finding.severity) for finding in check(trace)] == [("synthetic", "info")]
    assert len(ideal_step_ns(lower(trace))) == 2


def test_a_data_parallel_step_takes_its_operations_over_the_rate() -> None:
    model = load("resnet50")
    forward = sum(layer.flops for layer in model.layers)
    trace = made(model, 2)

    assert math.isclose(forward / 2, 4.089e9, rel_tol=1e-3)  # multiply-adds an image, as published for 224 x 224
    assert math.isclose(compute_ns(trace), 64 / 253.1 * 1e9, rel_tol=0.01)  # the measured step of one GPU
    assert ideal_step_ns(lower(trace)) == (compute_ns(trace),)


def test_buckets_are_reduced_while_the_backward_pass_goes_on() -> None:
    ops = made("vgg16", 2).programs[0].ops
    started = [index for index, op in enumerate(ops) if isinstance(op, Collective)]

    assert len(started) == 6
    assert all(isinstance(ops[index - 1], Compute) for index in started)


@pytest.mark.parametrize(("stage", "times"), [(0, 2), (1, 2), (2, 2), (3, 3)])
def test_zero_moves_what_its_paper_says(stage: int, times: int) -> None:
    """Sections 7.1 and 7.2 of arXiv 1910.02054: twice the parameters a step and rank, three times for stage 3."""
    model = load("gpt2")
    trace = made(model, 4, f"zero={stage}")
    # An all-reduce's count is the whole tensor, which goes round twice; the others' is one of four shards.
    weight = {CollectiveKind.ALL_REDUCE: 2, CollectiveKind.REDUCE_SCATTER: 4, CollectiveKind.ALL_GATHER: 4}
    moved = sum(weight[op.kind] * op_bytes(op) for op in trace.programs[0].ops if isinstance(op, Collective))
    rest = 4 * sum(math.prod(s) for layer in model.layers if layer.unit < 0 for s in layer.tensors)
    expected = times * 4 * model.parameters - (rest if stage == 3 else 0)  # what is in no unit is gathered once

    assert math.isclose(moved, expected, rel_tol=1e-4)


def test_tensor_parallel_reduces_four_activations_a_layer_and_divides_compute() -> None:
    """Figure 4 of arXiv 1909.08053; beside the layers, the embedding forward and the head backward."""
    trace = made("gpt2", 2, "tp=2")
    reduced = collectives(trace, CollectiveKind.ALL_REDUCE, group="tp")

    assert len(reduced) == 4 * 12 + 2
    assert {op.count for op in reduced} == {8 * 1024 * 768}
    assert math.isclose(compute_ns(trace) * 2, compute_ns(made("gpt2", 2)), rel_tol=1e-3)


def test_a_pipeline_s_bubble_is_that_of_1f1b() -> None:
    """(p - 1) / m of the ideal time with equal stages (arXiv 2104.04473, section 2.2.1)."""
    text = """
    {name: even, source: made up, device: none, dtype: float32, batch: 1, tflops: 1,
     layers: [{name: block, repeat: 4, layers: [{name: a, tensors: [1000x1000], uses: 1000, activation: 8}]}]}
    """
    trace = made(parse(text, "even.yaml"), 4, "pp=4,microbatches=8")
    sent = [op.count for op in trace.programs[1].ops if isinstance(op, Send)]

    assert ideal_step_ns(lower(trace)) == (compute_ns(trace) * (8 + 3) // 8,)
    assert sent == [8] * 16


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dp=3", "dp 3 x tp 1 x pp 1 is 3 ranks, not 8"),
        ("tp=0", "expected a whole number above 0"),
        ("zero=4", "a stage of ZeRO, 0 to 3"),
        ("tp=8,zero=1", "shards over data parallel ranks"),
        ("xp=2", "expected each of dp, tp, pp, cp, ep, vpp, sp, zero, microbatches once"),
        ("cp=3", "dp 2 x tp 1 x pp 1 x cp 3 is 6 ranks, not 8"),
        ("ep=3", "ep=3 has to divide dp x cp, which is 8"),
        ("pp=2,vpp=2,microbatches=3", "vpp=2 needs microbatches that pp=2 divides, not 3"),
        ("vpp=2", "vpp=2 needs a pipeline"),
        ("sp=1", "sp=1 divides sequences over tensor parallel ranks"),
        ("tp=2,sp=2", "sp=2: expected 0 or 1"),
    ],
)
def test_a_layout_that_can_t_be_says_why(text: str, said: str) -> None:
    with pytest.raises(TraceError, match=said):
        layout.parse(text, 8)


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        ("{name: a, tensors: [3x]}", "'3x' is no shape"),
        ("{name: a, tensor: [3]}", "unknown field `tensor`"),
        ("{name: a, tensors: [3], flops: -1}", "expected flops, buffers and counters from 0"),
        ("{name: a}", "0 parameters in all layers"),
        ("{name: a, repeat: 2, layers: [{name: b, repeat: 2}]}", "unknown field `repeat`"),
        ("{name: a, repeat: -2}", "gives no model"),
        ("[", "not YAML"),
        ("[" * 5000, "not YAML"),
        ("&a {name: a, tensors: [3]}, *a", "aliases"),
        ("{name: a, tensors: [99999999x9999999]}", "more than 17592186044416 elements"),
        ("{name: a, tensors: [3], flops: 9999999999999999999999}", "expected flops"),
        ("{name: a, tensors: [3], split: table}", "no layer behind a has `joins`"),
        ("{name: a, tensors: [3], experts: 5000}", "expected experts up to 4096"),
        ("{name: a, tensors: [3], experts: 2, top_k: 3}", "top_k from 1 to as many"),
        ("{name: a, repeat: 10000, layers: [{name: b, tensors: [3], experts: 4096}]}", "40960000 tensors"),
    ],
)
def test_a_description_that_is_wrong_names_file_and_place(layer: str, said: str) -> None:
    text = f"{{name: x, source: x, device: x, dtype: float32, batch: 1, tflops: 1, layers: [{layer}]}}"
    with pytest.raises(TraceError, match=rf"x\.yaml.*{said}"):
        parse(text, "x.yaml")


def test_what_a_model_can_t_be_cut_into_and_unknown_models() -> None:
    with pytest.raises(TraceError, match="VGG-16 has 0 units, too few for 2 stages"):
        made("vgg16", 2, "pp=2")
    with pytest.raises(TraceError, match="no layer of VGG-16 says how tp=2 splits it"):
        made("vgg16", 2, "tp=2")
    with pytest.raises(TraceError, match="takes over 30 days"):
        synthesize(replace(load("vgg16"), tflops=1e-9), layout.Layout(dp=2))
    with pytest.raises(TraceError, match="models: alexnet, bert-base, "):
        load("resnet5")


def test_synth_writes_a_trace_that_check_accepts(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "made.trace"

    assert tracebed("synth", "bert-base", "--ranks", 4, "--layout", "tp=2", "--steps", 2, "-o", path, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["world_size"], said["steps"], said["parameters"]) == (4, 2, 110_106_428)
    assert tracebed("check", path) == 0
    assert archive.read(path).provenance["model"] == "BERT-base"
    capsys.readouterr()

    assert tracebed("synth", "bert-base", "--ranks", 4, "--layout", "tp=3", "-o", path) == 2
    assert "dp 1 x tp 3 x pp 1 is 3 ranks, not 4" in capsys.readouterr().err
