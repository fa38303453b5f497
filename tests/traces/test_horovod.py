"""Horovod timelines: events as timeline.cc writes them, by hand."""

from __future__ import annotations

import json

import pytest

from traces.checks import check, is_replayable
from traces.errors import TraceError
from traces.files import Opened
from traces.formats import choose, horovod
from traces.program import Collective, Compute, DType, StepMark, Trace

FIRST = {
    "name": "process_name",
    "ph": "M",
    "pid": 0,
    "args": {"start_time_since_epoch_in_micros": 1_700_000_000_000_000},
}


def named(pid: int, name: str) -> dict[str, object]:
    return {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}}


def begin(pid: int, name: str, ts: int) -> dict[str, object]:
    return {"ph": "B", "name": name, "ts": ts, "pid": pid}


def end(pid: int, ts: int, **args: str) -> dict[str, object]:
    return {"ph": "E", "ts": ts, "pid": pid, **({"args": args} if args else {})}


def ready(pid: int, rank: int, ts: int) -> dict[str, object]:
    return {"ph": "X", "name": str(rank), "ts": ts, "pid": pid, "dur": 0}


def done(pid: int, kind: str, at: tuple[int, int], shape: str = "[10, 10]") -> list[dict[str, object]]:
    """An operation from `at` to `at`, with an activity in it."""
    first, last = at
    activity = [begin(pid, "NCCL_ALLREDUCE", first + 1), end(pid, last - 1)]
    return [begin(pid, kind, first), *activity, end(pid, last, dtype="float32", shape=shape)]


def negotiated(pid: int, kind: str, readies: tuple[int, int]) -> list[dict[str, object]]:
    events = [begin(pid, f"NEGOTIATE_{kind}", min(readies)), *(ready(pid, r, ts) for r, ts in enumerate(readies))]
    return [*events, end(pid, max(readies))]


TWO_STEPS = [
    FIRST,
    *(named(1, "grad.a"), named(2, "grad.b"), {"ph": "i", "name": "CYCLE_START", "ts": 5, "s": "g"}),
    *(*negotiated(1, "ALLREDUCE", (100, 120)), *negotiated(2, "ALLREDUCE", (200, 180))),
    *(*done(1, "ALLREDUCE", (130, 190)), *done(2, "ALLREDUCE", (210, 300), "[7]")),
    *(begin(1, "NEGOTIATE_ALLREDUCE", 400), end(1, 410), *done(1, "ALLREDUCE", (410, 470))),
]


def text_of(events: list[dict[str, object]]) -> bytes:
    return ("[\n" + ",\n".join(json.dumps(event) for event in events) + "]").encode()


def read(data: bytes) -> Trace:
    return horovod.read([Opened("timeline.json", data, "", True)])


def codes(trace: Trace) -> set[str]:
    return {finding.code for finding in trace.findings}


def test_each_rank_starts_when_it_was_ready_and_waits_for_the_step() -> None:
    trace = read(text_of(TWO_STEPS))

    assert (trace.world_size, trace.step_count) == (2, 2)
    kinds = [type(op).__name__ for op in trace.programs[0].ops]
    first = ["Collective", "Compute", "Collective", "Wait", "Wait", "StepMark"]
    assert kinds == [*first, "Compute", "Collective", "Wait", "StepMark"]
    # Rank 0 is ready at 100 and 200 us, rank 1 at 120 and 180; both go on at 300 and are ready again at 410.
    computes = {r: [op.ns for op in p.ops if isinstance(op, Compute)] for r, p in trace.programs.items()}
    assert computes == {0: [100_000, 110_000], 1: [20_000, 60_000, 110_000]}
    found = [(op.count, op.dtype, op.name) for op in trace.programs[0].ops if isinstance(op, Collective)]
    assert found == [
        (100, DType.FLOAT32, "grad.a"),
        (7, DType.FLOAT32, "grad.b"),
        (100, DType.FLOAT32, "grad.a"),
    ]
    assert codes(trace) == {"assumed-wait", "ready-unknown"}
    assert is_replayable(check(trace))


def test_ranks_that_are_ready_in_another_order_start_in_the_one_that_ran() -> None:
    events = [
        FIRST,
        named(1, "a"),
        named(2, "b"),
        *negotiated(1, "ALLREDUCE", (10, 90)),
        *negotiated(2, "ALLREDUCE", (20, 80)),
    ]
    trace = read(text_of([*events, *done(1, "ALLREDUCE", (100, 110)), *done(2, "ALLREDUCE", (120, 130))]))

    for program in trace.programs.values():
        assert [op.name for op in program.ops if isinstance(op, Collective)] == ["a", "b"]


def test_output_sizes_become_what_one_rank_gives() -> None:
    events = [FIRST, named(1, "a"), *negotiated(1, "ALLGATHER", (10, 12)), *done(1, "ALLGATHER", (20, 40), "[9]")]
    trace = read(text_of(events))

    assert [op.count for op in trace.programs[1].ops if isinstance(op, Collective)] == [5]
    assert "assumed-even" in codes(trace)


def test_a_timeline_that_a_crash_cut_is_read_so_far() -> None:
    trace = read(text_of(TWO_STEPS)[:-60])

    assert {"cut-file", "cut-operation"} <= codes(trace)
    assert trace.step_count == 1
    assert isinstance(trace.programs[0].ops[-1], StepMark)


def test_a_size_that_was_not_written_is_not_taken_as_nothing() -> None:
    lost = [begin(1, "ALLREDUCE", 20), end(1, 30)]
    trace = read(text_of([FIRST, named(1, "a"), *negotiated(1, "ALLREDUCE", (10, 12)), *lost]))

    assert not is_replayable(check(trace))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"[", "the timeline holds no events"),
        (b"[\n{]", "not a timeline"),
        (text_of([FIRST]), "no operation ends"),
        (text_of([FIRST, named(1, "a"), *done(1, "ALLREDUCE", (1, 9))]), "no event says which ranks there are"),
        (text_of([FIRST, named(1, "a"), end(1, 5)]), "event 2: tensor 'a' ends what it has not begun"),
        (
            text_of([FIRST, named(1, "a"), begin(1, "NEGOTIATE_ALLREDUCE", -4)]),
            "event 2: a time of -4.0 us",
        ),
        (
            text_of([FIRST, ready(1, 5, 3), *done(1, "ALLREDUCE", (4, 9))]),
            "1 ranks were ready, and the last is 5",
        ),
        (
            text_of([FIRST, ready(1, 0, 3), *done(1, "ALLREDUCE", (4, 9), "[9999999999999999, 9]")]),
            "a tensor of shape [9999999999999999, 9]",
        ),
    ],
)
def test_what_is_wrong_is_named(data: bytes, said: str) -> None:
    with pytest.raises(TraceError) as caught:
        read(data)
    assert said in str(caught.value)


@pytest.mark.parametrize("data", [text_of(TWO_STEPS), text_of(TWO_STEPS[1:]), b"[\n"])
def test_content_shows_the_format(data: bytes) -> None:
    known = choose(data)

    assert known is not None
    assert known.name == "horovod"
