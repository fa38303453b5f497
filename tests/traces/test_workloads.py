"""Workloads of AICB and SimAI: real files of theirs, and what is wrong with bad ones."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from traces.checks import check, is_replayable
from traces.errors import TraceError
from traces.files import Opened
from traces.formats import aicb, choose, simai
from traces.formats.grid import Grid
from traces.importer import import_files
from traces.program import Collective, CollectiveKind, Compute, DType, Recv, Send, StepMark, Trace, Wait

K = CollectiveKind
HEAD = (
    "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 1 pp: 1 vpp: 1 ga: 1 all_gpus: 4 checkpoints: 0\n"
)
ROWS = "first -1 10 ALLREDUCE 64 20 NONE 0 30 ALLGATHER 65 100\nsecond -1 1 NONE 0 2 REDUCESCATTER 64 3 ALLTOALL_EP 8 100\n"
COLUMNS = "comm_type,comm_group,comm_group_size,msg_size,stage,dst,src,additional,_elapsed_time,algbw,busbw,count\n"


def of_simai(text: str) -> Trace:
    return simai.read([Opened("x.txt", text.encode(), "", True)])


def of_aicb(text: str) -> Trace:
    return aicb.read([Opened("x.csv", text.encode(), "", True)])


def row(
    what: str, group: str = "None", size: object = "None", msg: int = 0, hint: str = "", elapsed: object = "None"
) -> str:
    group = group if group == "None" else f"CommGroup.{group}"
    return f"CommType.{what},{group},{size},{msg},forward,None,None,{hint},{elapsed},None,None,1\n"


def codes(trace: Trace) -> Counter[str]:
    return Counter(finding.code for finding in trace.findings)


def test_ranks_are_laid_out_as_megatron_does() -> None:
    grid = Grid(tp=2, dp=4, pp=2, ep=2)

    assert grid.members("tp", 5) == (4, 5)
    assert grid.members("dp", 5) == (1, 3, 5, 7)
    assert grid.members("ep", 5) == (5, 7)
    assert grid.members("dp_ep", 5) == (1, 5)
    assert grid.members("pp", 5) == (5, 13)
    assert grid.members("embedding", 13) == (5, 13)


def test_a_layer_waits_forward_and_for_its_input_and_the_step_for_weights() -> None:
    trace = of_simai(HEAD + "2\n" + ROWS)

    ops = trace.programs[3].ops
    told = [op.kind if isinstance(op, Collective) else op for op in ops]
    assert told == [
        *(Compute(10), K.ALL_REDUCE, Wait(1), Compute(1)),
        *(Compute(2), K.REDUCE_SCATTER, Wait(5), Compute(3)),
        *(Compute(20), Compute(30), K.ALL_GATHER, Wait(10), StepMark(0)),
    ]
    found = [(op.count, op.dtype, trace.groups[op.group].ranks) for op in ops if isinstance(op, Collective)]
    # One rank's share of 64 bytes among 2, and of 65 among 2.
    assert found == [(64, DType.UINT8, (2, 3)), (32, DType.UINT8, (2, 3)), (33, DType.UINT8, (1, 3))]
    assert codes(trace) == {"left-out": 1, "assumed-even": 1}
    assert is_replayable(check(trace))


def test_the_number_of_rows_is_checked() -> None:
    assert codes(of_simai(HEAD + "839\n" + ROWS))["declared-count"] == 1


def test_of_a_pipeline_one_stage_is_taken() -> None:
    trace = of_simai(HEAD.replace("pp: 1", "pp: 2").replace("all_gpus: 4", "all_gpus: 8") + "2\n" + ROWS)

    assert (trace.world_size, codes(trace)["left-out"]) == (4, 2)


@pytest.mark.corpus
def test_a_job_of_9216_gpus_is_refused_and_one_of_384_is_not(corpus: Path) -> None:
    path = corpus / "SimAI/example/workload_analytical.txt"
    with pytest.raises(TraceError, match="768 ranks would have"):
        import_files([path])

    trace = of_simai(path.read_text().replace("all_gpus: 9216", "all_gpus: 384"))

    assert trace.world_size == 32
    kinds = Counter(op.kind for op in trace.programs[0].ops if isinstance(op, Collective))
    assert kinds[K.ALL_TO_ALL] == 1536
    assert "declared-count" not in codes(trace)


@pytest.mark.corpus
def test_simai_as_published(corpus: Path) -> None:
    trace = import_files([corpus / "SimAI/example/microAllReduce.txt"])

    assert trace.world_size == 8
    assert [op.count for op in trace.programs[0].ops if isinstance(op, Collective)] == [16_777_216, 67_108_864]
    old = corpus / "aicb/workload/simAI/model_workload/L7B-M1-C04_Llama7B_megatron_tp2_pp1_mbs1_A100.txt"
    with pytest.raises(TraceError, match="does not say how many GPUs"):
        import_files([old])
    mended = of_simai(old.read_text().replace("checkpoints:", "all_gpus: 4 checkpoints:", 1))
    rows = [line.split() for line in old.read_text().splitlines()[2:]]
    assert len([op for op in mended.programs[0].ops if isinstance(op, Collective)]) == sum(
        kind != "NONE" and size != "0" for row in rows for kind, size in (row[3:5], row[6:8], row[9:11])
    )
    assert is_replayable(check(mended))


def test_rows_of_aicb_in_steps_with_computation() -> None:
    text = "[rank0 ~ rank3]\n" + COLUMNS + row("broadcast", "tp_group", 2, 24) + row("epoch_end")
    text += row("computation", elapsed=1.5) + row("all_gather", "dp_group", 2, 64) + row("barrier", "all", 4)
    trace = of_aicb(text)

    told = [op.kind if isinstance(op, Collective) else op for op in trace.programs[1].ops]
    assert told == [
        *(K.BROADCAST, Wait(0), StepMark(0)),
        *(Compute(1_500_000, "forward"), K.ALL_GATHER, Wait(4), K.BARRIER, Wait(6), StepMark(1)),
    ]
    assert (trace.world_size, trace.step_count) == (4, 2)
    assert set(codes(trace)) == {"assumed-root", "assumed-wait"}
    assert is_replayable(check(trace))


def test_stages_of_a_pipeline_have_their_own_rows() -> None:
    first = row("isend", "pp_group", 1, 8, "send_next") + row("irecv", "pp_group", 1, 9, "recv_next")
    last = row("irecv", "pp_group", 1, 8, "recv_prev") + row("isend", "pp_group", 1, 9, "send_prev")
    trace = of_aicb(f"[ pp_stage0: [rank0, rank1] ]\n{COLUMNS}{first}[ pp_stage1: [rank2, rank3] ]\n{COLUMNS}{last}")

    sent, received = trace.programs[1].ops[:2]
    assert isinstance(sent, Send)
    assert isinstance(received, Recv)
    assert (sent.peer, sent.count, received.peer, received.count) == (3, 8, 3, 9)
    assert is_replayable(check(trace))


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("file", "ranks", "steps", "expected"),
    [
        (
            "L7B-D1-C01_Llama7B_zero2_mbs1.csv",
            128,
            2,
            {"broadcast": 291, "all_reduce": 8, "all_gather": 6, "barrier": 1},
        ),
        ("L7B-D1-C02_Llama7B_zero3_mbs1.csv", 128, 2, {"all_gather": 938, "reduce_scatter": 7}),
        ("G13B-M1-C02_GPT13B_megatron_tp8_pp1_mbs1_sp.csv", 128, 2, {"all_gather": 243, "reduce_scatter": 161}),
        ("L65B-M1-C05_Llama65B_megatron_tp2_pp8_mbs1.csv.gz", 128, 2, {"all_gather": 2, "broadcast": 17}),
    ],
)
def test_aicb_as_published(corpus: Path, file: str, ranks: int, steps: int, expected: dict[str, int]) -> None:
    trace = import_files([corpus / "aicb/workload/physical/model_workload" / file])

    assert (trace.world_size, trace.step_count, len(trace.programs)) == (ranks, steps, ranks)
    kinds = Counter(op.kind.value for op in trace.programs[0].ops if isinstance(op, Collective))
    assert {kind: kinds[kind] for kind in expected} == expected
    assert codes(trace)["no-compute"] == 1
    assert codes(trace)["left-out"] == (
        file.startswith("L65B")
    )  # the last stage reduces the embedding's gradient alone


@pytest.mark.corpus
def test_a_published_pipeline_can_be_replayed(corpus: Path) -> None:
    path = corpus / "aicb/workload/physical/model_workload/L65B-M1-C05_Llama65B_megatron_tp2_pp8_mbs1.csv.gz"

    assert is_replayable(check(import_files([path])))


@pytest.mark.corpus
def test_a_log_of_a_run_on_a100s(corpus: Path) -> None:
    trace = import_files([corpus / "aicb/visualize/inputs/A100_example.csv.gz"])

    assert (trace.world_size, trace.step_count) == (8, 11)
    assert codes(trace)["assumed-group"] == 1
    assert is_replayable(check(trace))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEAD.replace("HYBRID", "OTHER") + "1\n" + ROWS, "line 1: parallelism 'OTHER_TRANSFORMER"),
        (HEAD.replace("all_gpus: 4", "") + "2\n" + ROWS, "line 1: the header does not say how many GPUs"),
        (HEAD.replace("all_gpus: 4", "all_gpus: 5") + "2\n" + ROWS, "line 1: 5 all_gpus are no multiple"),
        (HEAD.replace("all_gpus: 4", "all_gpus: 0") + "2\n" + ROWS, "line 1: sizes are from 1"),
        (HEAD + "x\n" + ROWS, "line 2: expected the number of rows, found 'x'"),
        (HEAD + "1\na -1 5 NONE\n", "line 3: expected 12 columns, found 4"),
        (HEAD + "1\n" + ROWS.replace("ALLGATHER", "GATHERALL"), "line 3: collective 'GATHERALL'"),
        (HEAD + "1\n" + ROWS.replace(" 10 ", " -10 "), "line 3: expected a whole number"),
        (HEAD + "1\na -1 5 NONE 0 5 NONE 0 5 NONE 0 1\n", "no row has a collective"),
        (HEAD, "expected the number of rows"),
    ],
)
def test_what_is_wrong_in_simai_is_named(text: str, said: str) -> None:
    with pytest.raises(TraceError) as caught:
        of_simai(text)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (COLUMNS, "no row has an operation"),
        (row("all_reduce", "tp_group", 2, 8), "line 1: expected the columns"),
        ("[rank0]\n", "line 1: expected `[rank0 ~ rankN]`"),
        ("[rank0 ~ rank9999]\n" + COLUMNS + row("all_reduce", "all", 10_000, 8), "10000 ranks, of 4096 at most"),
        ("[rank0 ~ rank9999999]\n", "line 1: 10000000 ranks"),
        ("[ pp_stage1: [rank0] ]\n", "line 1: stage 1 where stage 0 is due"),
        (COLUMNS + row("all_reduce", "xp_group", 2, 8), "line 2: group 'xp_group'"),
        (COLUMNS + row("scan", "tp_group", 2, 8), "line 2: operation 'scan'"),
        (COLUMNS + row("isend", "pp_group", 2, 8, "up"), "line 2: isend 'up'"),
        (COLUMNS + row("all_reduce", "tp_group", 2, -8), "line 2: expected a whole number"),
        (
            COLUMNS + row("all_reduce", "tp_group", 2, 8) + row("all_reduce", "tp_group", 4, 8),
            "line 3: a tp group of 4",
        ),
        ("[rank0 ~ rank4]\n" + COLUMNS + row("all_reduce", "tp_group", 2, 8), "5 ranks are no multiple of 2"),
        ("[rank0 ~ rank3]\n" + COLUMNS + row("all_reduce", "dp_group", 2, 8), "dp groups of 2 ranks, where 4"),
    ],
)
def test_what_is_wrong_in_aicb_is_named(text: str, said: str) -> None:
    with pytest.raises(TraceError) as caught:
        of_aicb(text)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "name"), [(HEAD + "2\n" + ROWS, "simai"), ("[rank0 ~ rank3]\n" + COLUMNS, "aicb"), (COLUMNS, "aicb")]
)
def test_content_shows_the_format(text: str, name: str) -> None:
    known = choose(text.encode())

    assert known is not None
    assert known.name == name
