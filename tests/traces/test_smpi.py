"""Time-independent traces of SMPI: what they hold, and what is wrong with a bad one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from traces.checks import check
from traces.errors import TraceError
from traces.files import Opened
from traces.formats import smpi
from traces.importer import import_files
from traces.program import Collective, CollectiveKind, Compute, DType, Op, Program, Recv, Send, StepMark, Trace, Wait

EXAMPLES = "simgrid/examples/smpi/replay"


def read(text: str) -> Trace:
    return smpi.read([Opened("x.txt", text.encode(), "", True)])


def imported(corpus: Path, *names: str) -> Trace:
    return import_files([corpus / EXAMPLES / f"actions{name}.txt" for name in names])


def codes(trace: Trace) -> list[str]:
    return [finding.code for finding in check(trace)]


def collective(trace: Trace, rank: int = 0) -> Collective:
    """The rank's first collective, which it waits for at once."""
    ops = trace.programs[rank].ops
    at, found = next((at, op) for at, op in enumerate(ops) if isinstance(op, Collective))
    assert ops[at + 1] == Wait(at)
    return found


def test_requests_are_found_again(corpus: Path) -> None:
    trace = imported(corpus, "_with_isend")

    assert trace.programs[1].ops == (
        Recv(0, 1_000_000, tag=0), Compute(500_000_000), Compute(500_000_000), Wait(0),
        Send(2, 1_000_000, tag=1), Wait(4), StepMark(0),
    )  # fmt: skip
    assert codes(trace) == ["assumed-speed", "skipped-test"]


def test_one_file_a_rank_is_one_job(corpus: Path) -> None:
    trace = imported(corpus, "0", "1")

    assert (trace.world_size, [source.name for source in trace.sources]) == (2, ["actions0.txt", "actions1.txt"])
    assert [type(op) for op in trace.programs[1].ops] == [Recv, Wait, Compute, Send, Recv, Wait, StepMark]
    assert codes(trace) == ["assumed-speed"]


def test_waitall(corpus: Path) -> None:
    trace = imported(corpus, "_waitall")

    assert trace.programs[2].ops == (Recv(1, 3000, tag=1), Send(0, 3000, tag=2), Wait(0), Wait(1), StepMark(0))
    assert codes(trace) == []


@pytest.mark.parametrize(
    ("name", "expected", "said"),
    [
        ("_allreduce", Collective(CollectiveKind.ALL_REDUCE, 0, 50_000), ["assumed-reduce-op", "assumed-speed"]),
        ("_bcast", Collective(CollectiveKind.BROADCAST, 0, 50_000, root=0), ["assumed-reduce-op", "assumed-speed"]),
        (
            "_bcast_reduce_datatypes",
            Collective(CollectiveKind.BROADCAST, 0, 50_000, DType.FLOAT64, root=1),
            ["assumed-reduce-op", "assumed-speed"],
        ),
        ("_barrier", Collective(CollectiveKind.BARRIER, 0, 0), ["assumed-speed"]),
        ("_gather", Collective(CollectiveKind.GATHER, 0, 68, DType.FLOAT64, root=0), []),
        ("_alltoall", Collective(CollectiveKind.ALL_TO_ALL, 0, 1500), []),
        (
            "_alltoallv",
            Collective(CollectiveKind.ALL_TO_ALL, 0, 71, send_splits=(1, 40, 30), recv_splits=(1, 80, 100)),
            [],
        ),
        # 3 * 275,427 + 204,020 elements over 4 ranks
        ("_allgatherv", Collective(CollectiveKind.ALL_GATHER, 0, 257_576, DType.FLOAT64), ["assumed-even"]),
        (
            "_reducescatter",
            Collective(CollectiveKind.REDUCE_SCATTER, 0, 257_576, DType.FLOAT64),
            ["assumed-even", "assumed-reduce-op", "assumed-speed"],
        ),
    ],
)
def test_collectives(corpus: Path, name: str, expected: Collective, said: list[str]) -> None:
    trace = imported(corpus, name)

    assert collective(trace) == expected
    assert codes(trace) == said


def test_the_work_of_a_reduction_comes_behind_it(corpus: Path) -> None:
    assert imported(corpus, "_allreduce").programs[0].ops[2:] == (
        Compute(500_000_000),
        Compute(500_000_000),
        StepMark(0),
    )


def test_a_wait_without_a_request_is_left_out_and_said() -> None:
    assert codes(read("0 init\n0 wait 1 0 5\n0 barrier\n")) == ["dangling-wait"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0 init\nzero send\n", "line 2: expected `RANK ACTION ...`"),
        ("0 init\n0 jump 5\n", "line 2: jump: is no action that can be read"),
        ("0 init\n0 gatherv 5 5 0\n", "line 2: gatherv: is no action that can be read"),
        ("0 init\n0 send 1 0\n", "line 2: send: rank 1 of a job of 1"),
        ("0 init\n1 init\n0 send 1 0\n", "line 3: send: expected 3 arguments at least, found 2"),
        ("0 init\n0 bcast nan\n", "line 2: bcast: expected a number"),
        ("0 init\n0 compute 1e99\n", "line 2: compute: expected a number"),
        ("0 init\n0 bcast 5 0 99\n", "line 2: bcast: no datatype has the number '99'"),
        ("0 init\n0 bcast 5e9\n", "line 2: bcast: expected an int, found 5000000000"),
        ("999999999 init\n", "rank 999999999 is beyond"),
        (
            "0 init\n1 init\n0 isend 1 0 5\n0 isend 1 0 5\n",
            "line 4: isend: a request from 0 to 1 with tag 0 is still open",
        ),
    ],
)
def test_what_is_wrong_is_named(text: str, said: str) -> None:
    with pytest.raises(TraceError) as caught:
        read(text)
    assert said in str(caught.value)


def test_what_is_written_comes_back() -> None:
    everything: list[Op] = []
    for kind in CollectiveKind:
        count = 0 if kind is CollectiveKind.BARRIER else 12
        root = 1 if kind in ("broadcast", "reduce", "gather", "scatter") else -1
        dtype = DType.UINT8 if kind is CollectiveKind.BARRIER else DType.INT32
        everything += [Collective(kind, 0, count, dtype, root), Wait(len(everything))]
    splits = Collective(CollectiveKind.ALL_TO_ALL, 0, 3, DType.INT64, send_splits=(1, 2), recv_splits=(1, 2))
    everything += [Compute(5), splits, Wait(len(everything) + 1), StepMark(3)]
    first = (*everything, Send(1, 9, DType.FLOAT32, 4), Compute(2), Wait(len(everything)), StepMark(4))
    second = (*everything, Recv(0, 9, DType.FLOAT32, 4), Compute(2), Wait(len(everything)), StepMark(4))
    text = "".join(f"{rank} init\n" for rank in (0, 1))
    made = read(text)
    trace = replace(made, programs={0: Program(0, first), 1: Program(1, second)}, step_count=2)
    data, said = smpi.write(trace)

    assert smpi.read([Opened("x.txt", data, "", True)]).programs == trace.programs
    assert [finding.code for finding in said] == ["speed"]
