"""Chakra traces give the operations that they are known to hold."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from traces.checks import check, is_replayable
from traces.errors import TraceError
from traces.files import open_all
from traces.formats import chakra, choose
from traces.importer import import_files
from traces.program import Collective, CollectiveKind, Compute, Recv, Send, StepMark, Trace, Wait

pytestmark = pytest.mark.corpus

MICRO = "astra-sim/examples/workload/microbenchmarks"


def codes(trace: Trace) -> set[str]:
    return {finding.code for finding in check(trace)}


@pytest.mark.parametrize(
    ("name", "count"),
    [("all_reduce", 1 << 20), ("all_gather", 1 << 20), ("all_to_all", 1 << 20), ("reduce_scatter", 1 << 18)],
)
def test_one_collective_of_four_ranks(corpus: Path, name: str, count: int) -> None:
    trace = import_files([corpus / MICRO / name / "4npus_1MB"])

    assert (trace.world_size, sorted(trace.programs)) == (4, [0, 1, 2, 3])
    for program in trace.programs.values():
        found = [(op.kind, op.count) for op in program.ops if isinstance(op, Collective)]
        assert found == [(CollectiveKind(name), count)]
    assert is_replayable(check(trace))


def test_a_ring_of_messages(corpus: Path) -> None:
    trace = import_files([corpus / "astra-sim/examples/system/custom_collectives/custom_ring_allreduce_8npus_1MB"])

    assert trace.world_size == 8
    for rank, program in trace.programs.items():
        sent = Counter((op.peer, op.count) for op in program.ops if isinstance(op, Send))
        received = Counter((op.peer, op.count) for op in program.ops if isinstance(op, Recv))
        assert sent == {((rank + 1) % 8, 131_072): 14}
        assert received == {((rank - 1) % 8, 131_072): 14}
    assert is_replayable(check(trace))


def test_calls_of_the_cpu_are_no_collectives(corpus: Path) -> None:
    trace = import_files([corpus / "chakra/tests/data/feeder_tests_trace.tar.gz"])

    assert sum(isinstance(op, Collective) for op in trace.programs[0].ops) == 7
    assert any(isinstance(op, Compute) for op in trace.programs[0].ops)
    assert "circles" in codes(trace)  # upstream's issue 160: nodes follow each other


def test_schema_1_1_0(corpus: Path) -> None:
    trace = import_files([corpus / "chakra/tests/data/feeder_tests_trace.blob-2ce8cab2.tar.gz"])

    assert Counter(op.kind for op in trace.programs[0].ops if isinstance(op, Collective)) == {
        CollectiveKind.ALL_REDUCE: 12, CollectiveKind.BROADCAST: 2,
    }  # fmt: skip


def test_no_sizes_is_said_and_not_replayed_as_nothing(corpus: Path) -> None:
    trace = import_files([corpus / "astra-sim/inputs/workload/ASTRA-sim-2.0/resnet_dp.tar.gz"])

    assert trace.world_size == 64
    assert "no-sizes" in codes(trace)
    assert not is_replayable(check(trace))


def test_json_holds_the_nodes_of_the_protobuf_file(corpus: Path) -> None:
    """The kernels' names tell their kinds; no field tells their sizes."""
    small, trace = (
        chakra.read([file])
        for file in sorted(
            (stream.whole() for stream in open_all([corpus / "chakra/tests/data/json_trace.tar.gz"])),
            key=lambda file: len(file.data),
        )
    )
    same = import_files([corpus / "chakra/tests/data/feeder_tests_trace.tar.gz"])

    def kinds(of: Trace) -> Counter[CollectiveKind]:
        return Counter(op.kind for op in of.programs[0].ops if isinstance(op, Collective))

    assert kinds(trace) == kinds(same) == {CollectiveKind.ALL_REDUCE: 5, CollectiveKind.BROADCAST: 2}
    assert kinds(small) == {CollectiveKind.BROADCAST: 1}
    computed = [sum(op.ns for op in t.programs[0].ops if isinstance(op, Compute)) for t in (trace, same)]
    assert computed[0] == computed[1]
    assert {"assumed-kind", "no-sizes"} <= codes(trace)
    assert "missing-dependency" in codes(small)  # upstream's excerpt names nodes that it leaves out
    assert not is_replayable(check(trace))


def test_json_with_all_fields(tmp_path: Path) -> None:
    """A collective of a group, a message, and one kernel of which nothing is told."""
    node = {"NodeType": 7, "is_cpu_op": False, "data_deps": []}
    shared = {**node, "Id": 1, "Name": "ag", "comm_type": 2, "comm_size": 64, "pg_name": "5"}
    kernel = {**node, "Id": 3, "Name": "ncclDevKernel_SendRecv(x)", "runtime": 9}
    there = {
        **node,
        "Id": 2,
        "Name": "p2p",
        "NodeType": 5,
        "comm_dst": 1,
        "comm_tag": 3,
        "comm_size": 8,
        "data_deps": [1],
    }
    back = {**there, "NodeType": 6, "comm_src": 0}
    for rank, message in enumerate((there, back)):
        nodes = {"workload_graph": [shared, message, kernel]}
        (tmp_path / f"job.{rank}.json").write_bytes(json.dumps(nodes).encode())
    (tmp_path / "comm_group.json").write_text('{"5": [0, 1]}')
    trace = import_files([tmp_path])

    gather, message, mark = (
        Collective(CollectiveKind.ALL_GATHER, 1, 64, name="ag"),
        {"tag": 3, "name": "p2p"},
        StepMark(0),
    )
    assert trace.programs[0].ops == (gather, Wait(0), Send(1, 8, **message), Wait(2), mark)
    assert trace.programs[1].ops == (gather, Wait(0), Recv(0, 8, **message), Wait(2), mark)
    assert trace.groups[1].ranks == (0, 1)
    assert codes(trace) == {"no-kind"}
    assert not is_replayable(check(trace))


def test_no_communication_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.0.json").write_text('{"workload_graph": [{"Id": 1, "NodeType": 4, "runtime": 5}]}')

    with pytest.raises(TraceError, match=r"x.0.json: no node communicates"):
        import_files([tmp_path / "x.0.json"])


def test_other_formats_are_not_taken_for_it(corpus: Path) -> None:
    for path in (
        "self-recorded-gloo/ops",
        "LogGOPSim/src/LogGOPSim/binary_tree_32.goal",
        "simgrid/examples/smpi/replay",
    ):
        for opened in open_all([corpus / path]):
            assert not chakra.sniff(opened.head)


def test_a_cut_file_is_named(corpus: Path, tmp_path: Path) -> None:
    whole = (corpus / MICRO / "all_reduce/4npus_1MB/all_reduce.1.et").read_bytes()
    (tmp_path / "cut.1.et").write_bytes(whole[:-9])

    assert choose(whole) is not None
    with pytest.raises(TraceError, match=r"cut.1.et, byte 8: the file ends inside a node"):
        import_files([tmp_path / "cut.1.et"])
