"""Gradients that are fused, cut and merged, on hand-written traces."""

from __future__ import annotations

from pathlib import Path

import pytest

from replay.ideal import ideal_step_ns
from replay.plan import lower
from replay.whatif.fusion import Ready, ddp, horovod, mg_wfbp
from replay.whatif.registry import apply
from tests.replay.whatifs import behind, changed, lines, model_file, overlapping
from traces.errors import TraceError
from traces.importer import import_files
from traces.layout import parse
from traces.model import load
from traces.program import Collective, Compute
from traces.synth import synthesize


def at(*pairs: tuple[int, int]) -> list[Ready]:
    return [Ready(nbytes, "float32", ns) for nbytes, ns in pairs]


def test_horovod_fuses_what_is_ready_at_a_cycle_up_to_the_buffer() -> None:
    ready = at((40, 0), (40, 3), (40, 5), (40, 9), (40, 10), (40, 11))
    assert horovod(ready, 80, 10) == [[0], [1, 2], [3, 4], [5]]
    assert horovod(ready, 79, 10) == [[number] for number in range(6)]
    assert horovod(at((40, 7), (40, 7), (40, 8)), 1000, 0) == [[0, 1], [2]]


def test_buckets_are_closed_by_what_makes_them_full() -> None:
    ready = at((10, 0), (100, 1), (30, 2), (30, 3), (500, 4), (1, 5))
    assert ddp(ready, 50, 60) == [[0, 1], [2, 3], [4], [5]]


def test_types_are_not_mixed() -> None:
    ready = [Ready(10, "float32", 0), Ready(10, "float16", 0), Ready(10, "float16", 0)]
    for made in (horovod(ready, 1000, 10), ddp(ready, 1000, 1000), mg_wfbp(ready, 1000, 10**9)):
        assert made == [[0], [1, 2]]


def test_a_gradient_is_merged_where_waiting_costs_less_than_a_start_up() -> None:
    """At 8 Gbit/s a byte takes 1 ns. The first is sent at 0; the second, ready at 10, would save 20: merged. The third is
    ready 21 after that: not. It could go when the wire is free, at 10 + 20 + 200; the fourth is ready before that."""
    ready = at((100, 0), (100, 10), (100, 31), (100, 230), (100, 1000))
    assert mg_wfbp(ready, 20, 8 * 10**9) == [[0, 1], [2, 3], [4]]


def test_recorded_operations_can_be_joined_without_a_model() -> None:
    trace = overlapping(steps=1)
    assert changed(trace, "buckets=1kB,first=401B") == "240 +bucket 0 60 +bucket 1 -bucket 0 -bucket 1 |"
    scenario = apply(trace, ["buckets=1kB,first=401B"])
    ops = [op for op in scenario.trace.programs[0].ops if isinstance(op, Collective)]
    assert [op.count for op in ops] == [300, 50]
    assert scenario.assumed == (
        "buckets: 3 recorded operations, taken as whole, a step become 2 operations, closed at 401 B and then at 1 kB each",
    )


def test_cycles_delay_a_start_and_idle_where_nothing_is_left_to_compute() -> None:
    """Ready at 160, 240 and 300: with cycles of 250 ns the first two start at 250, the third at 500."""
    assert (
        changed(overlapping(steps=1), "fusion=64MiB,cycle=250ns")
        == "250 +fused 0 50 200:idle +fused 1 -fused 0 -fused 1 |"
    )


def test_what_is_fused_is_what_the_slowest_rank_has() -> None:
    """Rank 1 computes twice as long: at 400 it has the first gradient, at 800 the others; rank 0 has all at 400."""
    trace = apply(overlapping(steps=1), ["compute=2,rank=1", "fusion=64MiB,cycle=400ns"]).trace
    assert lines(trace.programs[0]) == "300 100:idle +fused 0 +fused 1 -fused 0 -fused 1 |"
    assert lines(trace.programs[1]) == "400 +fused 0 200 200:idle +fused 1 -fused 0 -fused 1 |"


def test_tensors_are_cut_out_where_the_model_is_known(tmp_path: Path) -> None:
    """Both tensors of `middle` are ready when it is done; one operation of all is cut by the layers' flops."""
    model = model_file(tmp_path)
    alone = "160 +high.0 80 +middle.1 +middle.0 60 +low.0 -high.0 -middle.1 -middle.0 -low.0 |"
    assert changed(overlapping(steps=1), f"fusion=off,model={model}") == alone
    joined = "300 +bucket 0 -bucket 0 |"
    assert changed(overlapping(steps=1), "buckets=1GB,first=1GB") == joined
    assert changed(overlapping(steps=1), "buckets=1GB,first=1GB", f"fusion=off,model={model}") == alone


@pytest.mark.parametrize("name", ["resnet50", "vgg16"])
def test_a_made_job_that_is_cut_and_put_together_again_is_the_same(name: str) -> None:
    made = synthesize(load(name), parse("", 2), steps=2)
    for what_ifs in (["buckets=25MiB"], ["fusion=off", "buckets=25MiB"], ["fusion=8MiB,cycle=1ms", "buckets=25MiB"]):
        again = apply(made, what_ifs).trace
        if what_ifs[0].startswith("fusion=8"):  # fused later than they were ready
            assert [op.count for op in again.programs[1].ops if isinstance(op, Collective)]
        else:
            assert lines(again.programs[1]) == lines(made.programs[1])


def test_what_is_not_known_is_not_cut(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"nobody says which tensors the recorded operations hold .add model=NAME"):
        apply(overlapping(), ["fusion=off"])
    with pytest.raises(TraceError, match="'g0' of 100 float32 does not hold whole tensors of ResNet-50"):
        apply(overlapping(), ["fusion=off,model=resnet50"])
    with pytest.raises(TraceError, match="no model or file is called 'nobody'"):
        apply(overlapping(), ["buckets=1MB,model=nobody"])


def test_gradients_are_what_joins_replicas() -> None:
    made = synthesize(load("gpt2"), parse("tp=2", 4), steps=1)
    with pytest.raises(TraceError, match="along=GROUP names a group"):
        apply(made, ["buckets=50MiB"])
    scenario = apply(made, ["buckets=50MiB,along=dp-0-0"])
    counts = {
        group.name: [
            len([op for op in one.programs[0].ops if isinstance(op, Collective) and op.group == group.id])
            for one in (made, scenario.trace)
        ]
        for group in made.groups
        if 0 in group.ranks
    }
    before, after = counts["dp-0-0"]
    assert after < before
    assert counts["tp-0-0"][0] == counts["tp-0-0"][1]
    assert "recorded operations, taken as whole" in scenario.assumed[0]


def test_sharded_gradients_are_refused() -> None:
    made = synthesize(load("resnet50"), parse("zero=3", 2), steps=1)
    with pytest.raises(TraceError, match=r"no all_reduce in a step joins replicas .sharded gradients"):
        apply(made, ["fusion=64MiB"])


def test_a_merge_needs_its_figures() -> None:
    for text in (
        "merge=mg-wfbp",
        "merge=mg-wfbp,alpha=1ms",
        "merge=all,alpha=1ms,rate=1gbit",
        "merge=mg-wfbp,alpha=0,rate=0",
    ):
        with pytest.raises(TraceError, match="what-if 'merge="):
            apply(behind(), [text])


@pytest.mark.corpus
@pytest.mark.parametrize(("job", "model", "tensors"), [("resnet50-ddp", "resnet50", 161), ("gpt2s-ddp", "gpt2", 148)])
def test_buckets_of_a_recorded_job_hold_the_tensors_of_its_model(
    job: str, model: str, tensors: int, corpus: Path
) -> None:
    trace = import_files([corpus / "self-recorded-gloo" / job])
    scenario = apply(trace, [f"fusion=off,model={model}"])
    assert scenario.assumed[0].startswith(f"fusion off: {tensors} tensors a step become {tensors} operations")
    for rank, program in scenario.trace.programs.items():
        busy = [sum(op.ns for op in one.ops if isinstance(op, Compute)) for one in (trace.programs[rank], program)]
        assert busy[0] == busy[1]
    ends = [ideal_step_ns(lower(one)) for one in (trace, scenario.trace)]
    assert ends[0] == ends[1]
