"""Every file of the corpus imports to what it holds, or is refused with a reason that says why; none is forgotten."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from traces.checks import check, is_replayable
from traces.errors import TraceError
from traces.importer import import_files
from traces.program import Collective, Recv, Send

pytestmark = pytest.mark.corpus

HTA = "HolisticTraceAnalysis/tests/data"
PARAM = "param/et_replay/tests/inputs"
ASTRA = "astra-sim"
SMPI = "simgrid/examples/smpi/replay/actions"
AICB = "aicb/workload"

NO_TRACES = {
    "MANIFEST.md": "about the corpus", "SHA256SUMS": "about the corpus",
    "HolisticTraceAnalysis/LICENSE": "licence", "LogGOPSim/LICENCE": "licence", "SimAI/LICENSE": "licence",
    "TraceLens/LICENSE": "licence", "aicb/License": "licence", "astra-sim/LICENSE": "licence",
    "chakra/LICENSE.md": "licence", "param/LICENSE": "licence", "simgrid/LICENSE-LGPL-2.1": "licence",
    "self-recorded-gloo/rec.py": "recorder", "self-recorded-gloo/record_job.py": "recorder",
    "TraceLens/tests/traces/mi300/llama_70b_fsdp/nccl_analysis_report_csvs": "tables of sizes, of no rank and no order",
}  # fmt: skip

ELSEWHERE = {
    "test_corpus.py": (
        "self-recorded-gloo/resnet50-ddp", "self-recorded-gloo/gpt2s-ddp", "self-recorded-gloo/fsdp2", "self-recorded-gloo/ops",
        f"{PARAM}/dlrm_kineto.tar.gz", f"{PARAM}/dlrm_pytorch_et.tar.gz", f"{ASTRA}/my_test/inputs/workload/megatron-tp8",
        f"{HTA}/nccl_parser_config", f"{PARAM}/1.1.0-chakra.0.0.4/resnet_2gpu_et.json.gz", f"{HTA}/ns_resolution_trace",
        f"{HTA}/rank_unavailable", f"{HTA}/distributed_info_unavailable", f"{PARAM}/resnet_kineto.json.gz",
        f"{PARAM}/hf_GPT2_et.json.tar.gz", f"{PARAM}/resnet_et.json.gz", f"{PARAM}/1.0.3-chakra.0.0.4/resnet_1gpu_et.json.gz",
    ),
    "test_chakra.py": ("chakra/tests/data/json_trace.tar.gz",),
    "test_smpi.py": (f"{SMPI}0.txt", f"{SMPI}1.txt"),
    "test_workloads.py": ("SimAI/example/workload_analytical.txt", f"{AICB}/physical", "aicb/visualize/inputs"),
}  # fmt: skip
"""What other tests hold against its counts, by file of tests."""

# Of a job: ranks of the world, its first recorded rank's operations, findings that must be there.
JOBS: dict[str, tuple[int, dict[str, int], set[str]]] = {
    f"{HTA}/cpu_only": (300, {"all_reduce": 2}, {"missing-rank", "group-unknown", "outside-steps"}),
    f"{HTA}/negative_queue_length_values_check": (
        16, {"all_to_all": 55, "all_reduce": 10, "all_gather": 10, "reduce_scatter": 10}, {"missing-rank", "kernel-lost"}),
    f"{HTA}/trace_diff/control": (8, {"all_to_all": 42, "all_reduce": 18}, {"missing-rank", "no-sizes"}),
    f"{HTA}/trace_diff/test": (2, {"all_to_all": 42, "all_reduce": 18}, {"missing-rank", "no-sizes"}),
    f"{HTA}/trace_filter": (128, {"all_to_all": 4, "all_reduce": 4, "all_gather": 2}, {"missing-rank", "no-sizes"}),
    f"{ASTRA}/my_test/inputs/workload/et_plus": (
        8, {"all_to_all": 5, "all_reduce": 3}, {"missing-rank", "dangling-wait", "wait-after-window", "assumed-ends"}),
    f"{ASTRA}/my_test/inputs/workload/result": (2, {"all_reduce": 5, "broadcast": 2}, {"no-timestamps"}),
    f"{ASTRA}/examples/system/custom_collectives/custom_ring_allreduce_8npus_1MB": (8, {"send": 14, "recv": 14}, set()),
    **{
        f"{ASTRA}/examples/workload/microbenchmarks/{kind}/4npus_1MB": (4, {kind: 1}, set())
        for kind in ("all_reduce", "all_gather", "all_to_all", "reduce_scatter")
    },
    f"{ASTRA}/inputs/workload/ASTRA-sim-2.0/resnet_dp.tar.gz": (64, {"all_reduce": 54}, {"no-sizes"}),
    "chakra/tests/data/1.0.2-chakra.0.0.4.tgz": (2, {"all_gather": 10}, {"missing-rank", "no-timestamps"}),
    "chakra/tests/data/feeder_tests_trace.blob-2ce8cab2.tar.gz": (1, {"all_reduce": 12, "broadcast": 2}, {"assumed-root"}),
    "chakra/tests/data/feeder_tests_trace.tar.gz": (1, {"all_reduce": 5, "broadcast": 2}, {"assumed-root"}),
    "self-recorded-gloo/ddp": (4, {"all_reduce": 6}, {"assumed-group"}),
    "LogGOPSim/src/LogGOPSim/binary_tree_32.goal": (32, {"send": 5}, set()),
    "SimAI/example/microAllReduce.txt": (8, {"all_reduce": 2}, {"left-out"}),
    f"{SMPI}_allgatherv.txt": (4, {"all_gather": 1}, {"assumed-even"}),
    f"{SMPI}_allreduce.txt": (3, {"all_reduce": 1}, {"assumed-speed", "assumed-reduce-op"}),
    f"{SMPI}_alltoall.txt": (3, {"all_to_all": 1}, set()),
    f"{SMPI}_alltoallv.txt": (3, {"all_to_all": 1}, set()),
    f"{SMPI}_barrier.txt": (3, {"barrier": 1, "send": 1}, {"assumed-speed"}),
    f"{SMPI}_bcast.txt": (3, {"broadcast": 2, "reduce": 1}, {"assumed-reduce-op"}),
    f"{SMPI}_bcast_reduce_datatypes.txt": (3, {"broadcast": 2, "reduce": 1}, {"assumed-reduce-op"}),
    f"{SMPI}_gather.txt": (4, {"gather": 1}, set()),
    f"{SMPI}_reducescatter.txt": (4, {"reduce_scatter": 1}, {"assumed-even"}),
    f"{SMPI}_waitall.txt": (3, {"recv": 2}, set()),
    f"{SMPI}_with_isend.txt": (3, {"send": 1, "recv": 1}, {"skipped-test"}),
}  # fmt: skip
UNREPLAYABLE = {"missing-rank", "no-sizes"}

REFUSED = {
    f"{PARAM}/resnet_1gpu_et.json.tar.gz": "no communication is recorded here",
    f"{AICB}/simAI": "the header does not say how many GPUs there are",
}


@pytest.mark.parametrize("job", sorted(JOBS))
def test_a_job(corpus: Path, job: str) -> None:
    world_size, operations, expected = JOBS[job]
    trace = import_files([corpus / job])

    first = trace.programs[min(trace.programs)]
    counted = Counter(
        op.kind.value if isinstance(op, Collective) else type(op).__name__.lower()
        for op in first.ops
        if isinstance(op, Collective | Send | Recv)
    )
    codes = {finding.code for finding in check(trace)}
    assert (trace.world_size, counted) == (world_size, operations)
    assert codes >= expected
    assert is_replayable(check(trace)) is not bool(expected & UNREPLAYABLE)
    assert "unknown-operation" not in codes


@pytest.mark.parametrize("job", sorted(REFUSED))
def test_what_is_refused(corpus: Path, job: str) -> None:
    path = corpus / job
    files = sorted(path.rglob("*.txt")) if job == f"{AICB}/simAI" else [path]
    for file in files:
        with pytest.raises(TraceError, match=REFUSED[job]):
            import_files([file])


def test_no_file_is_forgotten(corpus: Path) -> None:
    listed = [*NO_TRACES, *(name for names in ELSEWHERE.values() for name in names), *JOBS, *REFUSED]
    files = [str(path.relative_to(corpus)) for path in corpus.rglob("*") if path.is_file()]
    assert [file for file in files if not any(file == name or file.startswith(f"{name}/") for name in listed)] == []
    assert [name for name in listed if not (corpus / name).exists()] == []
