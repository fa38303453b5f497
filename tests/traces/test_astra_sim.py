"""What ASTRA-sim demands of a Chakra trace, of ours. ASTRA-sim itself can't be installed here.

The demands are read from astra-sim/astra-sim: astra-sim/workload/Workload.cc at 0383c203930cda541a9c98ead6c57eecdad9f097, and
feeder_v3/{et_feeder.cpp, dependancy_solver.cpp, et_feeder_node.cpp, et_feeder_node_attr.h} beside it at
2aa2bbd1662c3a6c6fdeb51ab8a174b1602b923f; the types of attributes from mlcommons/chakra src/feeder/et_feeder_node.cpp at
02da5d056f2f9c2a994d1887ffba6ad4c7c99695, which reads one field of each.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from graphlib import TopologicalSorter
from typing import Any

from hypothesis import given, settings

from replay.export import export
from tests.traces.random_jobs import jobs
from tests.traces.test_commands import SAMPLE
from traces import archive
from traces.formats import chakra_schema as schema
from traces.formats.chakra import SIMULATED
from traces.program import Collective, Trace

COMPUTE, SEND, RECV, COLLECTIVE = 4, 5, 6, 7
# Attribute -> the field of AttributeProto that the feeder reads.
FIELDS = {
    "is_cpu_op": "bool_val", "comm_type": "int64_val", "comm_size": "int64_val", "comm_src": "int32_val",
    "comm_dst": "int32_val", "comm_tag": "int32_val", "pg_name": "string_val",
}  # fmt: skip
# Those without a default in et_feeder_node_attr.h, or whose default would be wrong, by the type of node that asks for them.
ASKED = {
    COMPUTE: set(), SEND: {"comm_dst", "comm_size", "comm_tag"}, RECV: {"comm_src", "comm_size", "comm_tag"},
    COLLECTIVE: {"comm_type", "comm_size"},
}  # fmt: skip
# issue_coll_comm: all-reduce, all-gather, broadcast, all-to-all, reduce-scatter; others end the simulation.
TYPES = {0, 2, 5, 6, 7}


def demands(job: Trace) -> None:
    files, findings = export(job, "chakra")
    assert isinstance(files, Mapping)
    told = json.loads(files.get("comm_group.json", b"{}"))
    # Workload(): PREFIX.RANK.et of every rank; initialize_comm_groups: names are numbers.
    assert files.keys() - {"comm_group.json"} == {f"trace.{rank}.et" for rank in range(job.world_size)}
    assert all(int(name) > 0 and ranks for name, ranks in told.items())
    types = set()
    for rank in range(job.world_size):
        # build_index_dependancy_cache: metadata first, then nodes, found again by id.
        messages = [message for _, message in schema.parsed(files[f"trace.{rank}.et"], "x")]
        assert messages[0].DESCRIPTOR.name == "GlobalMetadata"
        nodes = {node.id: node for node in messages[1:]}
        assert len(nodes) == len(messages) - 1
        runs(nodes)
        for node in nodes.values():
            types |= attributes_fit(node, rank, told)
    kinds = {op.kind for p in job.programs.values() for op in p.ops if isinstance(op, Collective)}
    # What ends the simulation is said, and nothing else.
    assert (types <= TYPES) == (kinds <= SIMULATED) == ("not-simulated" not in {finding.code for finding in findings})


def runs(nodes: Mapping[int, Any]) -> None:
    """graph_sanity_check; resolve_dependancy_free_nodes: each layer has a node that follows none; no circles in any."""
    if not nodes:
        return
    for layer in (
        {number: set(node.data_deps) for number, node in nodes.items()},
        {number: set(node.ctrl_deps) for number, node in nodes.items()},
        {number: {*node.data_deps, *node.ctrl_deps} for number, node in nodes.items()},
    ):
        assert all(follows <= nodes.keys() for follows in layer.values())
        assert any(not follows for follows in layer.values())
        TopologicalSorter(layer).prepare()


def attributes_fit(node: Any, rank: int, told: Mapping[str, list[int]]) -> set[int]:
    """The node's `comm_type`, if it has one."""
    found = {attribute.name: attribute for attribute in node.attr}
    assert len(found) == len(node.attr)
    assert all(attribute.WhichOneof("value") == FIELDS[name] for name, attribute in found.items())
    assert ASKED[node.type] <= found.keys()
    assert not found["is_cpu_op"].bool_val  # issue_comm: communication is not the CPU's
    if node.type != COMPUTE:
        assert found["comm_size"].int64_val >= 0
    if node.type != COLLECTIVE:
        return set()
    if "pg_name" in found:  # extract_comm_group: "" and "0" are all ranks; others are looked up
        assert rank in told[found["pg_name"].string_val]
    return {found["comm_type"].int64_val}


def test_a_recorded_job() -> None:
    demands(archive.read(SAMPLE))


@settings(max_examples=60, deadline=None)
@given(jobs())
def test_made_jobs(job: Trace) -> None:
    demands(job)
