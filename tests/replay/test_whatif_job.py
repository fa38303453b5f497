"""Overlap, local SGD, slow ranks, other ranks and places, on hand-written traces; and all what-ifs one on top of the other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as some

from replay.ideal import ideal_step_ns
from replay.plan import lower
from replay.whatif.compute import mean_compute
from replay.whatif.registry import apply, known
from tests.replay.network import trace_of
from tests.replay.whatifs import MODEL, behind, changed, lines, model_file, overlapping
from traces.checks import check
from traces.errors import TraceError
from traces.program import Collective, CollectiveKind, Compute, Group, Recv, Send, StepMark, Trace, Wait


def computes(trace: Trace, rank: int) -> list[int]:
    """Compute of each step."""
    made = [0]
    for op in trace.programs[rank].ops:
        if isinstance(op, Compute):
            made[-1] += op.ns
        elif isinstance(op, StepMark):
            made.append(0)
    return made[:-1]


def test_without_overlap_all_starts_behind_the_backward_pass() -> None:
    assert changed(overlapping(1, optimizer=7), "overlap=off") == "300 +g0 +g1 +g2 -g0 -g1 -g2 7 |"
    assert changed(behind(1), "overlap=off") == "300 +g0 +g1 +g2 -g0 -g1 -g2 |"


def test_with_overlap_each_starts_when_its_layers_are_done(tmp_path: Path) -> None:
    model = model_file(tmp_path)
    assert changed(behind(1), f"overlap=on,model={model}") == "160 +g0 80 +g1 60 +g2 -g0 -g1 -g2 |"
    with pytest.raises(TraceError, match=r"does not say when each gradient is there .add model=NAME"):
        apply(behind(1), ["overlap=on"])
    with pytest.raises(TraceError, match="started while ranks compute already"):
        apply(overlapping(1), [f"overlap=on,model={model}"])


def test_a_loss_that_is_waited_for_at_once_is_no_gradient() -> None:
    loss = Collective(CollectiveKind.ALL_REDUCE, 0, 1, name="loss")
    with_loss = [
        loss,
        Wait(0),
        *(type(op)(op.op + 2) if isinstance(op, Wait) else op for op in overlapping(1).programs[0].ops),
    ]
    trace = trace_of(dict.fromkeys(range(2), with_loss), steps=1)
    assert changed(trace, "overlap=off") == "+loss -loss 300 +g0 +g1 +g2 -g0 -g1 -g2 |"


def test_local_sgd_meets_in_every_hth_step() -> None:
    alone, met = "300 |", "300 +g0 +g1 +g2 -g0 -g1 -g2 |"
    assert changed(overlapping(4), "local-sgd=2") == f"{alone} {met} {alone} {met}"
    recorded = lines(overlapping(1).programs[0])
    assert changed(overlapping(4), "local-sgd=3,after=1") == f"{recorded} {alone} {alone} {met}"
    with pytest.raises(TraceError, match="of 4 steps none is step 5, the first to meet"):
        apply(overlapping(4), ["local-sgd=4,after=1"])


def test_some_ranks_compute_longer() -> None:
    trace = apply(overlapping(2, ranks=4), ["straggler=1.5,rank=1+3"]).trace
    assert [computes(trace, rank) for rank in range(4)] == [[300, 300], [450, 450]] * 2
    slowed = apply(overlapping(2, ranks=4), ["compute=600ns,rank=2"])
    assert [computes(slowed.trace, rank)[0] for rank in range(4)] == [300, 300, 600, 300]
    assert slowed.assumed[0].startswith("compute of ranks 2 x 2: 0.000 ms a step")


def test_stragglers_are_drawn_by_step_and_repeat() -> None:
    trace = apply(overlapping(50, ranks=4), ["straggler=3,chance=20%,seed=4"])
    drawn = [computes(trace.trace, rank) for rank in range(4)]
    assert {ns for steps in drawn for ns in steps} == {300, 900}
    slow = sum(ns == 900 for steps in drawn for ns in steps)
    assert 20 < slow < 60  # 40 are expected of 200, with a deviation of 5.7
    assert f"{slow} of 200 steps" in trace.assumed[0]
    assert apply(overlapping(50, ranks=4), ["straggler=3,chance=20%,seed=4"]) == trace
    assert apply(overlapping(50, ranks=4), ["straggler=3,chance=20%,seed=5"]).trace != trace.trace


def test_jitter_keeps_the_mean() -> None:
    trace = apply(apply(overlapping(400, ranks=2), ["compute=1000"]).trace, ["jitter=10%,seed=2"]).trace
    drawn = [ns for rank in range(2) for ns in computes(trace, rank)]
    assert abs(float(mean_compute(trace)) / 300_000 - 1) < 4 * 0.1 / len(drawn) ** 0.5
    deviation = (sum((ns / 300_000 - 1) ** 2 for ns in drawn) / len(drawn)) ** 0.5
    assert 0.09 < deviation < 0.11


def test_more_ranks_do_the_same() -> None:
    scenario = apply(overlapping(1), ["ranks=6"])
    assert scenario.trace.world_size == 6
    assert {lines(program) for program in scenario.trace.programs.values()} == {lines(overlapping(1).programs[0])}
    with pytest.raises(TraceError, match="what-if 'ranks=6'"):
        apply(
            trace_of({0: (Send(1, 1), Wait(0), StepMark(0)), 1: (Recv(0, 1), Wait(0), StepMark(0))}, steps=1),
            ["ranks=6"],
        )


def test_ranks_change_places_with_their_groups_roots_and_peers() -> None:
    pair = Group(1, "pair", (2, 0), 1)
    programs = {
        0: (Collective(CollectiveKind.BROADCAST, 1, 4, root=2), Wait(0), StepMark(0)),
        1: (Send(3, 8, group=0), Wait(0), StepMark(0)),
        2: (Collective(CollectiveKind.BROADCAST, 1, 4, root=2), Wait(0), StepMark(0)),
        3: (Recv(1, 8, group=0), Wait(0), StepMark(0)),
    }
    trace = apply(trace_of(programs, (Group(0, "world", (0, 1, 2, 3), 0), pair), 1), ["place=2+0+3+1"]).trace
    assert [group.ranks for group in trace.groups] == [(1, 3, 0, 2), (0, 1)]
    assert trace.programs[0].ops[0] == Collective(CollectiveKind.BROADCAST, 1, 4, root=0)
    assert trace.programs[3].ops[0] == Send(2, 8, group=0)
    assert trace.programs[2].ops[0] == Recv(3, 8, group=0)
    assert not [finding for finding in check(trace) if not finding.replayable]


def test_places_can_be_dealt_out_or_drawn() -> None:
    dealt = apply(overlapping(1, ranks=6), ["place=round-robin,hosts=2"])
    assert "have the job's ranks 0 2 4 1 3 5" in dealt.assumed[0]
    assert dealt.trace.groups[0].ranks == (0, 3, 1, 4, 2, 5)
    drawn = apply(overlapping(1, ranks=6), ["place=shuffled,seed=3"])
    assert sorted(drawn.trace.groups[0].ranks) == list(range(6)) != list(drawn.trace.groups[0].ranks)
    for text, message in (
        ("place=0+1", "2 of 6 ranks have a place"),
        ("place=0+0+1+2+3+4", "has a number twice"),
        ("place=0-6", "is not known"),
        ("place=round-robin,hosts=4", "not as many on each of 4 hosts"),
    ):
        with pytest.raises(TraceError, match=message):
            apply(overlapping(1, ranks=6), [text])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_file(tmp_path_factory.mktemp("model"))


MANY = some.sampled_from(
    [
        "compute=0.5", "compute=1us,rank=0", "straggler=2,rank=1", "straggler=2,chance=30%", "jitter=20%", "ranks=4", "ranks=3",
        "place=1+0", "place=shuffled", "overlap=off", "overlap=on,model=MODEL", "local-sgd=2", "local-sgd=2,after=1",
        "fusion=500B,cycle=100ns", "fusion=off,model=MODEL", "fusion=64MiB", "buckets=500B,first=10B", "buckets=1MB,model=MODEL",
        "merge=mg-wfbp,alpha=100ns,rate=8gbit", "partition=90B", "waits=forward", "priority=waits,credit=200B",
        "priority=fifo,credit=1kB", "compress=topk,encode=1gbit,decode=2gbit", "compress=fp16", "compress=1bit",
        "compress=powersgd,rank=1,model=MODEL", "compress=randomk",
    ]
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(what_ifs=some.lists(MANY, max_size=5), start=some.sampled_from([overlapping, behind]), optimizer=some.booleans())
def test_whatever_is_put_together_can_be_replayed_or_is_refused(
    what_ifs: Sequence[str], start: object, optimizer: bool, model: Path
) -> None:
    """And compute that no what-if changes stays, to the ns, wherever it is put."""
    trace = overlapping(3, optimizer=7 * optimizer) if start is overlapping else behind(3)
    total = sum(sum(computes(trace, rank)) for rank in trace.programs)
    try:
        scenario = apply(trace, [text.replace("MODEL", str(model)) for text in what_ifs])
    except TraceError as error:
        event(str(error).partition(": ")[2])
        return
    made = scenario.trace
    assert not [finding for finding in check(made) if finding.severity != "info"]
    assert len(scenario.assumed) == len(what_ifs)
    assert len(ideal_step_ns(lower(made, segment=64))) == 3
    if all(
        text.startswith(("overlap", "buckets", "merge", "partition", "waits", "priority", "local", "place"))
        for text in what_ifs
    ):
        ops = [op for program in made.programs.values() for op in program.ops]
        assert sum(op.ns for op in ops if isinstance(op, Compute)) == total


def test_the_examples_of_the_table_are_all_there_is() -> None:
    assert {one.name for one in known()} >= {
        "buckets", "compress", "compute", "fusion", "jitter", "local-sgd", "merge", "overlap", "partition", "place", "priority",
        "ranks", "straggler", "waits",
    }  # fmt: skip
    assert MODEL
