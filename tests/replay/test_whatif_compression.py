"""Compressed gradients: what travels, who pays, and what can't be."""

from __future__ import annotations

from pathlib import Path

import pytest

from replay.whatif.registry import apply
from tests.replay.network import everywhere
from tests.replay.whatifs import behind, changed, model_file, overlapping
from traces.errors import TraceError
from traces.layout import parse
from traces.model import load
from traces.program import Collective, CollectiveKind, DType, Trace
from traces.synth import synthesize

SUMMED, GATHERED = CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER


def wire(trace: Trace, what_if: str) -> list[tuple[CollectiveKind, int, DType]]:
    """What rank 0 starts in the first step."""
    ops = apply(trace, [what_if]).trace.programs[0].ops
    return [(op.kind, op.count, op.dtype) for op in ops if isinstance(op, Collective)]


@pytest.mark.parametrize(
    ("what_if", "kind", "counts", "dtype"),
    [
        ("compress=fp16", SUMMED, [100, 200, 50], DType.FLOAT16),
        ("compress=bf16", SUMMED, [100, 200, 50], DType.BFLOAT16),
        ("compress=1bit", GATHERED, [13 + 8, 25 + 8, 7 + 8], DType.UINT8),
        ("compress=qsgd", GATHERED, [104, 204, 54], DType.UINT8),
        ("compress=qsgd,bits=3", GATHERED, [38 + 4, 75 + 4, 19 + 4], DType.UINT8),
        ("compress=terngrad", GATHERED, [25 + 4, 50 + 4, 13 + 4], DType.UINT8),
        ("compress=topk,ratio=10%", GATHERED, [10 * 8, 20 * 8, 5 * 8], DType.UINT8),
        ("compress=topk", GATHERED, [8, 2 * 8, 8], DType.UINT8),
        ("compress=dgc", GATHERED, [8, 8, 8], DType.UINT8),
        ("compress=randomk,ratio=10%", SUMMED, [10, 20, 5], DType.FLOAT32),
    ],
)
def test_every_method_sends_what_its_paper_says(
    what_if: str, kind: CollectiveKind, counts: list[int], dtype: DType
) -> None:
    assert wire(overlapping(1), what_if) == [(kind, count, dtype) for count in counts]


def test_low_rank_factors_go_one_after_the_other(tmp_path: Path) -> None:
    """high 10x10: 10 + 10 are less than half of 100. middle: vectors. low 5x10: 5 + 10 are less than half of 50."""
    made = wire(overlapping(1), f"compress=powersgd,rank=1,model={model_file(tmp_path)}")
    assert made == [(SUMMED, count, DType.FLOAT32) for count in (10, 10, 200, 5, 10)]
    none = wire(overlapping(1), f"compress=powersgd,rank=4,model={model_file(tmp_path)}")
    assert none == [(SUMMED, count, DType.FLOAT32) for count in (100, 200, 50)]


def test_powersgd_of_resnet50_is_as_small_as_its_layers_say() -> None:
    made = synthesize(load("resnet50"), parse("", 2), steps=1)
    summed = sum(count for kind, count, _ in wire(made, "compress=powersgd,rank=1") if kind is SUMMED)
    expected = 0
    for layer in load("resnet50").layers:
        for rows, *rest in layer.tensors:
            columns = 1
            for size in rest:
                columns *= size
            expected += rows + columns if rest and 2 * (rows + columns) < rows * columns else rows * columns
    assert summed == expected


def test_coding_is_compute_before_and_behind_and_gathered_parts_are_all_decoded() -> None:
    """At 8 Gbit/s a byte takes 1 ns. Three ranks: each decodes three parts of the dense size."""
    what_if = "compress=topk,ratio=10%,encode=8gbit,decode=16gbit"
    assert changed(behind(1, ranks=3), what_if) == (
        "300 400:encode +g0 -g0 600:decode 800:encode +g1 -g1 1200:decode 200:encode +g2 -g2 300:decode |"
    )
    assert changed(overlapping(1), "compress=fp16,encode=8gbit,decode=16gbit") == (
        "160 400:encode +g0 80 800:encode +g1 60 200:encode +g2 -g0 200:decode -g1 400:decode -g2 100:decode |"
    )


def test_what_is_assumed_is_said() -> None:
    free, paid = (
        apply(overlapping(2), [text]).assumed[0]
        for text in ("compress=topk", "compress=fp16,encode=8gbit,decode=16gbit")
    )
    assert free == (
        "compress: topk makes 0.001 MB a step 0.000 MB, gathered from all ranks; encoding and decoding are taken to be free"
    )
    assert paid.endswith("summed on the way; encoding at 8 Gbit/s and decoding at 16 Gbit/s of dense gradients")


def test_bytes_of_unknown_type_are_taken_for_float32() -> None:
    op = Collective(SUMMED, 0, 400)
    assert wire(everywhere(op, 2), "compress=fp16") == [(SUMMED, 100, DType.FLOAT16)]
    with pytest.raises(TraceError, match="gradients of int64 can't be compressed"):
        apply(everywhere(Collective(SUMMED, 0, 4, DType.INT64), 2), ["compress=fp16"])


@pytest.mark.parametrize(
    ("what_if", "message"),
    [
        ("compress=zip", "'zip' is not known .write one of fp16"),
        ("compress=fp16,ratio=1%", "fp16 has no ratio .leave ratio= out"),
        ("compress=topk,ratio=2", "more than all elements"),
        ("compress=powersgd", "nobody says which matrices the recorded operations hold"),
        ("compress=powersgd,model=vgg16", "does not hold whole tensors of VGG-16"),
        ("compress=qsgd,bits=99", "is not a whole number from 1 to 16"),
    ],
)
def test_what_can_not_be_is_refused(what_if: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        apply(overlapping(1), [what_if])


def test_gathered_gradients_are_no_gradients_any_more() -> None:
    with pytest.raises(TraceError, match="compress= gathers: let that come last"):
        apply(overlapping(2), ["compress=topk", "waits=forward"])
