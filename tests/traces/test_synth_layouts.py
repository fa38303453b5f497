"""Layouts of synth beside data and tensor parallelism: no combination hangs, and each moves what its paper says."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.ideal import ideal_step_ns
from replay.plan import lower
from tests.traces.test_mutations import MUTATIONS, damaged
from tests.traces.test_synth import collectives, compute_ns, made
from traces.checks import check
from traces.errors import TraceError
from traces.layout import Layout
from traces.model import Model, load, parse
from traces.program import Collective, CollectiveKind, Recv, Send, Trace, op_bytes
from traces.synth import synthesize

TINY = """
name: tiny
source: made up
device: none
dtype: float32
batch: 2
tflops: 0.001
layers:
  - {name: embed, tensors: [64x8], split: vocab, activation: 16x8}
  - name: block
    repeat: 4
    layers:
      - {name: norm, tensors: [8], activation: 16x8}
      - {name: qkv, tensors: [24x8, 24], uses: 16, flops: 8192, kv: 16x2x8, split: column}
      - {name: out, tensors: [8x8, 8], uses: 16, split: row, activation: 16x8}
      - {name: gate, tensors: [4x8], uses: 16}
      - {name: experts.in, tensors: [32x8], experts: 4, top_k: 2, uses: 16, split: column}
      - {name: experts.out, tensors: [8x32], experts: 4, top_k: 2, uses: 16, split: row, activation: 16x8}
  - {name: head, tensors: [64x8], uses: 16, split: column}
"""
SEQUENCE, HIDDEN, BATCH, TOP_K, BLOCKS = 16, 8, 2, 2, 4


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Layouts of up to 16 ranks that `layout.parse` would take."""
    pp, vpp, cp, tp, dp = draw(
        st.tuples(*(st.sampled_from(sizes) for sizes in ((1, 2, 4), (1, 2), (1, 2, 3), (1, 2), (1, 2, 3)))).filter(
            lambda sizes: sizes[0] * sizes[2] * sizes[3] * sizes[4] in range(2, 17)
        )
    )
    vpp = vpp if pp > 1 and pp * vpp <= BLOCKS else 1
    ep = draw(st.sampled_from([size for size in (1, 2, 4) if dp * cp % size == 0]))
    return Layout(
        dp, tp, pp, cp, ep, vpp,
        sp=draw(st.integers(0, 1)) if tp > 1 else 0,
        zero=draw(st.integers(0, 3)) if dp * cp > 1 else 0,
        microbatches=draw(st.integers(1, 3)) * (pp if vpp > 1 else 1),
    )  # fmt: skip


def tiny(ranks: int, text: str = "", *, steps: int = 1) -> Trace:
    return made(parse(TINY, "tiny.yaml"), ranks, text, steps=steps)


def even(units: int) -> Model:
    text = f"""
    {{name: even, source: made up, device: none, dtype: float32, batch: 1, tflops: 1, layers: [{{name: block,
      repeat: {units}, layers: [{{name: a, tensors: [1000x1000], uses: 1000, activation: 8}}]}}]}}
    """
    return parse(text, "even.yaml")


def sent(trace: Trace, rank: int, group: str) -> Iterator[Send]:
    names = {one.id: one.name for one in trace.groups}
    return (op for op in trace.programs[rank].ops if isinstance(op, Send) and names[op.group].startswith(group))


@settings(max_examples=120, deadline=None, derandomize=True)
@given(layouts())
def test_no_combination_of_layouts_hangs(layout: Layout) -> None:
    trace = synthesize(parse(TINY, "tiny.yaml"), layout, steps=2)

    assert [(finding.code, finding.severity) for finding in check(trace)] == [("synthetic", "info")]
    assert len(ideal_step_ns(lower(trace))) == 2


@settings(max_examples=60, deadline=None, derandomize=True)
@given(layouts())
def test_work_is_divided_and_never_lost(layout: Layout) -> None:
    """Each of the job's samples costs what it costs on one rank, however it is cut, to the rounding."""
    alone = synthesize(parse(TINY, "tiny.yaml"), Layout())
    trace = synthesize(parse(TINY, "tiny.yaml"), layout)
    done = sum(compute_ns(trace, rank) for rank in range(layout.ranks))

    gates = 3 * BATCH * BLOCKS * 2 * 4 * HIDDEN * SEQUENCE  # ns at this rate; every tensor parallel rank computes them
    assert math.isclose(
        done, (compute_ns(alone) + (layout.tp - 1) * gates) * layout.dp * layout.microbatches, rel_tol=0.01
    )


@pytest.mark.parametrize(("stages", "chunks", "passes"), [(2, 2, 4), (4, 2, 8), (4, 3, 4), (2, 4, 2), (4, 4, 16)])
def test_an_interleaved_pipeline_s_bubble(stages: int, chunks: int, passes: int) -> None:
    """(p - 1) / (m v) of the ideal time (arXiv 2104.04473, section 2.2.2), for v times the messages."""
    model = even(stages * chunks)
    trace = made(model, stages, f"pp={stages},vpp={chunks},microbatches={passes}")
    plain = made(model, stages, f"pp={stages},microbatches={passes}")
    ideal = compute_ns(trace)

    assert ideal_step_ns(lower(plain)) == (ideal * (passes + stages - 1) // passes,)
    assert ideal_step_ns(lower(trace)) == (ideal * (passes * chunks + stages - 1) // (passes * chunks),)
    everything = [sum(len(list(sent(one, rank, "pp"))) for rank in range(stages)) for one in (plain, trace)]
    assert everything == [2 * passes * (stages - 1), 2 * passes * (stages * chunks - 1)]


def test_experts_exchange_every_token_s_top_k_four_times_a_layer() -> None:
    """Dispatch and combine, forward and backward; of all that a rank holds, 1 / ep stays with it."""
    trace = tiny(4, "ep=4")
    exchanged = collectives(trace, CollectiveKind.ALL_TO_ALL)

    assert len(exchanged) == 4 * BLOCKS
    assert {op.count for op in exchanged} == {BATCH * SEQUENCE * HIDDEN * TOP_K}
    assert all(op.send_splits == op.recv_splits == (op.count // 4,) * 4 for op in exchanged)


@pytest.mark.parametrize(("text", "experts"), [("ep=4", 0), ("ep=2", 2), ("ep=1", 4)])
def test_experts_are_reduced_where_they_are_the_same(text: str, experts: int) -> None:
    """A rank reduces its own `4 / ep` experts over the ranks that have them too, and all else over all."""
    model = parse(TINY, "tiny.yaml")
    one_expert = BLOCKS * 2 * 32 * HIDDEN
    trace = tiny(4, text)
    everywhere = sum(op.count for op in collectives(trace, CollectiveKind.ALL_REDUCE, group="dp"))
    own = sum(op.count for op in collectives(trace, CollectiveKind.ALL_REDUCE, group="edp"))

    assert everywhere + own == model.parameters - 4 * one_expert + experts * one_expert
    assert own == (experts * one_expert if text == "ep=2" else 0)


def test_zero_3_gathers_experts_in_their_own_group() -> None:
    trace = tiny(4, "ep=2,zero=3")
    gathered = collectives(trace, CollectiveKind.ALL_GATHER, group="edp")

    assert len(gathered) == 2 * BLOCKS
    assert {op.count for op in gathered} == {2 * 2 * 32 * HIDDEN // 2}


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_ring_of_attention_passes_keys_and_values_round(ranks: int) -> None:
    """cp - 1 parts of K and V forward, twice as many backward; the gradients are reduced over the ring too."""
    trace = tiny(ranks, f"cp={ranks}")
    part = 2 * BATCH * SEQUENCE * HIDDEN // ranks
    around = [*sent(trace, 0, "cp")]

    assert sum(op.count for op in around) == 3 * (ranks - 1) * part * BLOCKS
    assert len(around) == (ranks - 1 + ranks) * BLOCKS
    received = sum(op_bytes(op) for op in trace.programs[0].ops if isinstance(op, Recv))
    assert received == sum(map(op_bytes, around))
    reduced = sum(op.count for op in collectives(trace, CollectiveKind.ALL_REDUCE, group="dp"))
    assert reduced == parse(TINY, "tiny.yaml").parameters


def test_sequence_parallel_moves_what_tensor_parallel_does_and_activations_again() -> None:
    """Section 4.2.2 of arXiv 2205.05198: an all-reduce is a reduce-scatter and an all-gather, of the same volume."""
    model = load("llama3-8b")
    plain = collectives(made(model, 2, "tp=2"), CollectiveKind.ALL_REDUCE, group="tp")
    trace = made(model, 2, "tp=2,sp=1")
    whole, *others = collectives(trace, CollectiveKind.ALL_REDUCE, group="tp")
    scattered = [op.count for op in collectives(trace, CollectiveKind.REDUCE_SCATTER)]
    gathered = [op.count for op in collectives(trace, CollectiveKind.ALL_GATHER) if not op.name.endswith("again")]
    again = [op.count for op in collectives(trace, CollectiveKind.ALL_GATHER) if op.name.endswith("again")]

    # The embedding is scattered forward and gathered backward, the head the other way round: an all-reduce each before.
    assert len(scattered) == len(gathered) == len(plain)
    assert 2 * sum(scattered) == 2 * sum(gathered) == sum(op.count for op in plain)
    assert again == [8192 * 4096 // 2] * (2 * 32 + 1)
    assert (whole.count, others) == (4096 * (2 * 32 + 1), [])


@pytest.mark.parametrize("ranks", [2, 8])
def test_megatron_s_bytes_a_layer(ranks: int) -> None:
    """8 b s h (t - 1) / t a layer, stage and micro-batch, in elements a device sends (arXiv 2104.04473, section 3.2)."""
    trace = made("llama3-70b", ranks, f"tp={ranks}")
    in_layers = [op for op in collectives(trace, CollectiveKind.ALL_REDUCE) if op.name.startswith("layers.7.")]
    ring = sum(2 * op.count * (ranks - 1) // ranks for op in in_layers)

    assert ring == 8 * 1 * 8192 * 8192 * (ranks - 1) // ranks


def test_dlrm_exchanges_what_it_looked_up_and_reduces_its_perceptrons() -> None:
    model = load("dlrm")
    trace = made(model, 8)
    forward, backward = collectives(trace, CollectiveKind.ALL_TO_ALL)
    tables = (4, 4, 3, 3, 3, 3, 3, 3)

    assert forward.send_splits == backward.recv_splits == (4 * 128 * 2048,) * 8
    assert forward.recv_splits == backward.send_splits == tuple(count * 128 * 2048 for count in tables)
    assert sum(op.count for op in collectives(trace, CollectiveKind.ALL_REDUCE)) == 2_368_897
    ops = trace.programs[0].ops
    assert not isinstance(ops[ops.index(forward) + 1], Collective)  # the bottom perceptron computes in the meantime
    assert [finding.code for finding in check(trace)] == ["synthetic"]


def test_mixtral_computes_what_a_token_meets() -> None:
    """12.9 billion parameters a token (arXiv 2401.04088, section 2.1): two of eight experts."""
    model = load("mixtral-8x7b")
    met = sum(layer.flops - layer.scores for layer in model.layers) / 2 / 4096
    assert math.isclose(met + 32000 * 4096, 12.9e9, rel_tol=0.002)  # the embedding's are met by looking up


@pytest.mark.parametrize(
    ("name", "layout", "said"),
    [
        ("resnet50", Layout(cp=2), "says its keys and values for cp=2"),
        ("gpt2", Layout(dp=2, ep=2), "has no experts to share out with ep=2"),
        ("mixtral-8x7b", Layout(dp=3, ep=3), "ep=3 does not divide the 8 experts"),
        ("dlrm", Layout(dp=32), "has 26 tables, too few for 32 ranks"),
        ("dlrm", Layout(pp=2), "tables of DLRM: tables are not cut into stages"),
        ("dlrm", Layout(tp=2), "no layer of DLRM says how tp=2 splits it"),
    ],
)
def test_what_a_model_can_t_be_cut_into(name: str, layout: Layout, said: str) -> None:
    with pytest.raises(TraceError, match=said):
        synthesize(load(name), layout)


def test_assumptions_are_said_where_they_are_made() -> None:
    (plain,), (cut,) = tiny(2, "tp=2").findings, tiny(2, "cp=2").findings
    assert "every expert gets as many tokens" in plain.message
    assert "equal part of the attention" not in plain.message
    assert "equal part of the attention" in cut.message
    assert "tables" in made(replace(load("dlrm"), batch=8), 2).findings[0].message


def test_a_damaged_description_is_never_a_traceback() -> None:
    text = b"""
name: x
source: x
device: x
dtype: int8
batch: 1
tflops: 1
layers:
- name: a
  repeat: 1
  layers: [{name: b, tensors: [8x1], uses: 2, flops: 9, kv: 1x1,
split: column}, {name: c,
tensors: [1x8], experts: 2, top_k: 1,
split: row, activation: 1x1}]
"""
    dice = random.Random("damage model")
    kept = refused = 0
    tries = MUTATIONS // 4  # the YAML alone takes a millisecond each
    for _ in range(tries):
        try:
            model = parse(damaged(text, dice).decode("utf-8", "replace"), "x.yaml")
            synthesize(model, dice.choice((Layout(dp=2, zero=3), Layout(tp=2, sp=1), Layout(cp=2), Layout(dp=2, ep=2))))
            kept += 1
        except TraceError:
            refused += 1
    assert kept > tries // 100
    assert refused > tries // 10
