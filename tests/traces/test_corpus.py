"""Real recordings give the counts and sizes that they are known to hold."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import pytest

from traces.checks import check, is_replayable
from traces.errors import TraceError
from traces.files import open_all
from traces.formats import choose
from traces.importer import import_files
from traces.program import Collective, CollectiveKind, Compute, DType, Program, Recv, Send, Trace, Wait

pytestmark = pytest.mark.corpus

PARAM = "param/et_replay/tests/inputs"
MEGATRON = "astra-sim/my_test/inputs/workload/megatron-tp8"
HTA = "HolisticTraceAnalysis/tests/data"
SYMMETRIC = {
    CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_TO_ALL,
    CollectiveKind.BARRIER,
}  # fmt: skip


def collectives(program: Program) -> list[Collective]:
    return [op for op in program.ops if isinstance(op, Collective)]


def kinds(program: Program) -> dict[str, int]:
    return dict(Counter(op.kind.value for op in collectives(program)))


def codes(trace: Trace) -> set[str]:
    return {finding.code for finding in check(trace)}


def dlrm(corpus: Path) -> Trace:
    return import_files([corpus / PARAM / "dlrm_kineto.tar.gz", corpus / PARAM / "dlrm_pytorch_et.tar.gz"])


def test_resnet50_ddp(corpus: Path) -> None:
    trace = import_files([corpus / "self-recorded-gloo/resnet50-ddp"])

    buckets = [2_049_000, 7_875_584, 6_563_840, 6_637_568, 2_431_040]
    assert (trace.world_size, trace.step_count, sorted(trace.programs)) == (4, 4, [0, 1, 2, 3])
    for program in trace.programs.values():
        assert kinds(program) == {"all_reduce": 20, "broadcast": 8}
        reduced = [op for op in collectives(program) if op.kind is CollectiveKind.ALL_REDUCE]
        assert [op.count for op in reduced] == buckets * 4
        assert {op.dtype for op in reduced} == {DType.FLOAT32}
    assert sum(buckets) == 25_557_032
    assert is_replayable(check(trace))


def test_gpt2s_ddp(corpus: Path) -> None:
    trace = import_files([corpus / "self-recorded-gloo/gpt2s-ddp"])

    assert (trace.world_size, trace.step_count) == (4, 4)
    for program in trace.programs.values():
        counts = [op.count for op in collectives(program)]
        assert kinds(program) == {"all_reduce": 52}
        assert [sum(counts[at : at + 13]) for at in range(0, 52, 13)] == [124_439_808] * 4
    assert is_replayable(check(trace))


def test_ddp_keeps_the_overlap(corpus: Path) -> None:
    """All buckets of a step but the last start while backward goes on: compute lies before their waits."""
    trace = import_files([corpus / "self-recorded-gloo/resnet50-ddp"])

    for program in trace.programs.values():
        waits = {op.op: at for at, op in enumerate(program.ops) if isinstance(op, Wait)}
        beside = [
            sum(between.ns for between in program.ops[index : waits[index]] if isinstance(between, Compute))
            for index, op in enumerate(program.ops)
            if isinstance(op, Collective) and op.kind is CollectiveKind.ALL_REDUCE
        ]
        assert min(ns for position, ns in enumerate(beside) if position % 5 < 4) > 50_000_000


def test_fsdp2(corpus: Path) -> None:
    trace = import_files([corpus / "self-recorded-gloo/fsdp2"])

    assert (trace.world_size, trace.step_count) == (4, 3)
    for program in trace.programs.values():
        assert kinds(program) == {"all_gather": 18, "reduce_scatter": 9}
    assert is_replayable(check(trace))


def test_ops(corpus: Path) -> None:
    trace = import_files([corpus / "self-recorded-gloo/ops"])

    assert (trace.world_size, trace.step_count) == (4, 3)
    assert [group.ranks for group in trace.groups] == [(0, 1, 2, 3), (0, 2), (1, 3)]
    for rank, program in trace.programs.items():
        own = collectives(program)
        uneven = [op for op in own if op.kind is CollectiveKind.ALL_TO_ALL and op.send_splits]
        assert [(op.send_splits, op.recv_splits) for op in uneven] == [((10, 20, 30, 40), ((rank + 1) * 10,) * 4)] * 3
        assert sum(op.dtype is DType.BFLOAT16 and op.count == 1000 for op in own) == 3
        assert [op.root for op in own if op.kind is CollectiveKind.BROADCAST and op.dtype is DType.INT64][::2] == [
            1
        ] * 3
        assert [op.root for op in own if op.kind is CollectiveKind.REDUCE] == [2] * 3
        ring = [(op.peer, op.count) for op in program.ops if isinstance(op, Send) and op.count == 1024]
        assert ring == [((rank + 1) % 4, 1024)] * 3
    received = [(op.peer, op.count) for op in trace.programs[3].ops if isinstance(op, Recv)]
    assert received == [(2, 1024), (2, 12)] * 3  # the second one was recorded as from any source
    assert is_replayable(check(trace))
    assert "unmatched-send" not in codes(trace)


def test_dlrm_splits_meet_across_ranks(corpus: Path) -> None:
    trace = dlrm(corpus)

    assert (trace.world_size, trace.step_count) == (8, 1)
    exchanges = {
        r: [op for op in collectives(p) if op.kind is CollectiveKind.ALL_TO_ALL] for r, p in trace.programs.items()
    }
    for program in trace.programs.values():
        assert kinds(program) == {"all_to_all": 5, "all_reduce": 3}
    for position in range(5):
        for rank, mine in exchanges.items():
            op = mine[position]
            assert not op.send_splits or sum(op.send_splits) == op.count
            for other, theirs in exchanges.items():
                if op.recv_splits:
                    assert op.recv_splits[other] == theirs[position].send_splits[rank]
    assert [bool(op.send_splits) for op in exchanges[0]].count(True) == 4
    dangling = [finding for finding in trace.findings if finding.code == "dangling-wait"]
    assert [finding.message.split()[0] for finding in dangling] == ["2"]
    assert is_replayable(check(trace))
    assert max(trace.clock_residual_ns.values()) <= 7_000


def test_megatron_tp8(corpus: Path) -> None:
    """85 calls a rank; one is of a group of one rank, which is why there are 84 kernels, and moves nothing."""
    for stream in open_all([corpus / MEGATRON / "megatron_et_0.json.gz"]):
        opened = stream.whole()
        known = choose(stream.head)
        assert known is not None
        calls = known.read(opened.data, opened.name).calls
        assert Counter(call.kind for call in calls) == {CollectiveKind.ALL_REDUCE: 85, "wait": 85}

    trace = import_files([corpus / MEGATRON])
    assert (trace.world_size, trace.step_count) == (8, 1)
    for program in trace.programs.values():
        own = collectives(program)
        assert Counter((op.count, op.dtype) for op in own) == {
            (33_554_432, DType.FLOAT16): 81,
            (8_192, DType.FLOAT32): 3,
        }
        assert sum(isinstance(op, Wait) for op in program.ops) == 84
    assert codes(trace) == {"assumed-group", "alone"}
    assert max(trace.clock_residual_ns.values()) <= 50_000


def test_hta_ddp_is_one_rank_of_two(corpus: Path) -> None:
    trace = import_files([corpus / HTA / "nccl_parser_config"])

    assert (trace.world_size, trace.step_count, sorted(trace.programs)) == (2, 3, [0])
    assert kinds(trace.programs[0]) == {"all_reduce": 15, "broadcast": 6}
    assert codes(trace) == {"missing-rank", "assumed-root"}


def test_an_execution_trace_alone_has_no_compute_and_says_so(corpus: Path) -> None:
    trace = import_files([corpus / PARAM / "1.1.0-chakra.0.0.4/resnet_2gpu_et.json.gz"])

    assert (trace.world_size, sorted(trace.programs)) == (2, [1])
    assert kinds(trace.programs[1]) == {"all_reduce": 15, "broadcast": 6}
    assert not any(isinstance(op, Compute) for op in trace.programs[1].ops)
    assert codes(trace) >= {"missing-rank", "no-timestamps"}


def test_kineto_alone_of_2023_has_no_sizes_and_is_not_replayed_as_nothing(corpus: Path) -> None:
    trace = import_files([corpus / PARAM / "dlrm_kineto.tar.gz"])

    assert kinds(trace.programs[0]) == {"all_to_all": 5, "all_reduce": 3}
    assert [f for f in check(trace) if f.code == "no-sizes" and not f.replayable]


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (f"{HTA}/cpu_only", {"missing-rank", "group-unknown"}),
        (f"{HTA}/trace_diff/control", {"missing-rank", "no-sizes"}),
        (f"{HTA}/trace_filter", {"missing-rank", "no-sizes"}),
        ("chakra/tests/data/1.0.2-chakra.0.0.4.tgz", {"no-timestamps"}),
    ],
)
def test_what_can_not_be_replayed_is_said_and_never_crashes(corpus: Path, file: str, expected: set[str]) -> None:
    assert codes(import_files([corpus / file])) >= expected


@pytest.mark.parametrize(
    "file",
    [
        f"{HTA}/ns_resolution_trace",
        f"{HTA}/rank_unavailable",
        f"{HTA}/distributed_info_unavailable",
        f"{PARAM}/resnet_kineto.json.gz",
        f"{PARAM}/hf_GPT2_et.json.tar.gz",
        f"{PARAM}/resnet_et.json.gz",
        f"{PARAM}/1.0.3-chakra.0.0.4/resnet_1gpu_et.json.gz",
    ],
)
def test_recordings_without_communication_are_refused(corpus: Path, file: str) -> None:
    with pytest.raises(TraceError, match=r"no communication is recorded here|no file says that there are more ranks"):
        import_files([corpus / file])


@pytest.mark.parametrize(
    "job", ["self-recorded-gloo/resnet50-ddp", "self-recorded-gloo/fsdp2", "self-recorded-gloo/ops", MEGATRON, "dlrm"]
)
def test_no_collective_ends_before_its_last_rank_has_started_it(corpus: Path, job: str) -> None:
    """What no network can do: starts and ends that were put in the wrong place would show here."""
    trace = dlrm(corpus) if job == "dlrm" else import_files([corpus / job])

    seen: dict[tuple[int, int], list[Collective]] = defaultdict(list)
    for program in trace.programs.values():
        count: Counter[int] = Counter()
        for op in collectives(program):
            seen[op.group, count[op.group]].append(op)
            count[op.group] += 1
    symmetric = [ops for ops in seen.values() if ops[0].kind in SYMMETRIC]
    assert len(symmetric) > 5
    for ops in symmetric:
        assert min(op.origin.end_ns for op in ops) >= max(op.origin.start_ns for op in ops)
