"""Every collective with real tensors over the kernel's TCP, on links that lose packets: each element of each result is compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.replay.network import trace_of
from tests.replay.runs import replayed, written
from tests.replay.test_tcp import every_collective
from traces.program import Collective, CollectiveKind, Compute, DType, Group, Op, StepMark, Trace, Wait

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab")]

PAIR = Collective(CollectiveKind.ALL_GATHER, 1, 77, DType.FLOAT16)
ASIDE = Collective(CollectiveKind.ALL_REDUCE, 2, 500_000, DType.BFLOAT16)


def job(size: int) -> Trace:
    """Each kind one after the other, uneven, empty and in a pair, while a large all-reduce goes on beside them."""
    everyone = tuple(range(size))
    groups = (Group(0, "world", everyone, 0), Group(1, "pair", (1, 0), 1), Group(2, "aside", everyone[::-1], 2))
    programs: dict[int, list[Op]] = {}
    for rank in everyone:
        ops: list[Op] = [ASIDE]
        for collective in [*every_collective(rank, size), *([PAIR] if rank < 2 else [])]:
            ops += [Compute(10_000), collective, Wait(len(ops) + 1)]
        programs[rank] = [*ops, Wait(0), StepMark(0)]
    return trace_of(programs, groups, steps=1)


def elements(op: Collective, rank: int, size: int) -> int:
    """How many elements of the result `rank` has."""
    if op.kind is CollectiveKind.ALL_TO_ALL:
        return sum(op.recv_splits) if op.recv_splits else op.count
    if op.kind is CollectiveKind.GATHER:
        return op.count * size if rank == op.root else 0
    if op.kind is CollectiveKind.REDUCE:
        return op.count if rank == op.root else 0
    return op.count * size if op.kind is CollectiveKind.ALL_GATHER else op.count


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_every_element_of_every_result_is_right(size: int, tmp_path: Path) -> None:
    run, _ = replayed(
        written(job(size), tmp_path), "ethernet-10g", tmp_path, {"link.loss": "1%"}, fidelity="packet", verify=True
    )
    expected = size * ASIDE.count + 2 * elements(PAIR, 0, 2)
    for rank in range(size):
        expected += sum(elements(op, rank, size) for op in every_collective(rank, size))
    assert run.summary is not None
    assert run.summary.verified == expected
    assert run.summary.retransmits > 0
