"""A trace that is written and read again is what it was, in what the format can hold.

| format  | does not hold                                                                                                  |
|---------|----------------------------------------------------------------------------------------------------------------|
| param   | reduce operations, tags, names of computations; computations in a row become one                               |
| chakra  | element types (bytes), reduce operations, roots but a group's first rank, splits, messages' groups; ns below us |
| smpi-ti | names, groups but that of all ranks (messages instead), reduce operations, collectives beside other work       |
| goal    | collectives (messages instead), names, groups, element types (bytes)                                           |

None holds origins, sources, hosts, findings. Perfetto, CSV and Parquet are not read again (test_written.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from replay.export import export
from replay.messages import on_world
from replay.plan import lower
from tests.replay.test_export import goal_again, lowered, sizes
from tests.traces.random_jobs import jobs
from tests.traces.symbolic import stuck
from traces.checks import check, is_replayable
from traces.files import Opened
from traces.formats import chakra, param, smpi
from traces.importer import import_files
from traces.program import (
    NOWHERE,
    ROOTED,
    Collective,
    Communication,
    Compute,
    DType,
    Op,
    Program,
    Recv,
    Send,
    StepMark,
    Trace,
    Wait,
    op_bytes,
)

MADE = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def again(job: Trace, name: str) -> Trace:
    written, _ = export(job, name)
    files = written if not isinstance(written, bytes) else {"x": written}
    opened = [Opened(file, data, "", True) for file, data in files.items()]
    return {"param": param.read, "chakra": chakra.read, "smpi-ti": smpi.read}[name](opened)


def held(job: Trace, change: Callable[[Op], Op]) -> dict[int, Program]:
    """The programs with each operation changed; computations in a row are one, and those of no time are none."""
    return {rank: Program(rank, _held(program, change)) for rank, program in job.programs.items()}


def _held(program: Program, change: Callable[[Op], Op]) -> tuple[Op, ...]:
    ops: list[Op] = []
    place: dict[int, int] = {}
    for index, op in enumerate(program.ops):
        place[index] = len(ops)
        kept = replace(change(op), origin=NOWHERE)
        before = ops[-1] if ops else None
        if isinstance(kept, Wait):
            ops.append(Wait(place[kept.op]))
        elif isinstance(kept, Compute) and isinstance(before, Compute) and not kept.name:
            ops[-1] = Compute(before.ns + kept.ns)
        elif not isinstance(kept, Compute) or kept.ns:
            ops.append(kept)
    return tuple(ops)


def by_param(op: Op) -> Op:
    if isinstance(op, Collective):
        return replace(op, reduce_op="sum")
    if isinstance(op, Send | Recv):
        return replace(op, tag=0)
    return Compute(op.ns) if isinstance(op, Compute) else op


def by_chakra(job: Trace) -> Callable[[Op], Op]:
    everyone = tuple(range(job.world_size))
    ranks = {group.id: group.ranks for group in job.groups}
    small = {group.id: number for number, group in enumerate((g for g in job.groups if g.ranks != everyone), 1)}

    def change(op: Op) -> Op:
        if isinstance(op, Compute):
            return Compute((op.ns + 500) // 1000 * 1000, op.name or "compute")
        if isinstance(op, Collective):
            root = ranks[op.group][0] if op.kind in ROOTED else -1
            return Collective(op.kind, small.get(op.group, 0), op_bytes(op), root=root, name=op.name or op.kind)
        if isinstance(op, Send | Recv):
            name = op.name or type(op).__name__.lower()
            return replace(op, count=op_bytes(op), dtype=DType.UINT8, group=0, name=name)
        return op

    return change


def without_waits(program: Program) -> list[Op]:
    return [op for op in program.ops if not isinstance(op, Wait)]


def same_by_param(job: Trace) -> None:
    found = again(job, "param")

    assert found.programs == held(job, by_param)
    assert [group.ranks for group in found.groups] == [group.ranks for group in job.groups]
    assert (found.world_size, found.step_count) == (job.world_size, job.step_count)
    assert is_replayable(check(found))


@MADE
@given(jobs())
def test_param(job: Trace) -> None:
    same_by_param(job)


@MADE
@given(jobs())
def test_chakra(job: Trace) -> None:
    """The graph may be waited for elsewhere than before; what each waits for is the same, as the second writing shows."""
    found = again(job, "chakra")

    expected = held(job, by_chakra(job))
    for rank, program in found.programs.items():
        assert without_waits(program) == without_waits(expected[rank])
    assert found.step_count == job.step_count
    uneven = [op for p in job.programs.values() for op in p.ops if isinstance(op, Collective) and op.send_splits]
    if not uneven:
        assert is_replayable(check(found))
        assert again(found, "chakra").programs == found.programs


@MADE
@given(jobs())
def test_smpi(job: Trace) -> None:
    found = again(job, "smpi-ti")

    expected = replace(job, programs=_stopping(on_world(job, lower(job))[0]))
    assert held(found, in_bytes) == held(expected, in_bytes)
    assert found.step_count == job.step_count


def _stopping(job: Trace) -> dict[int, Program]:
    """The programs with the waits of collectives right behind them."""
    programs = {}
    for rank, program in job.programs.items():
        ops: list[Op] = []
        place: dict[int, int] = {}
        for index, op in enumerate(program.ops):
            if isinstance(op, Wait) and not isinstance(program.ops[op.op], Collective):
                ops.append(Wait(place[op.op]))
            elif not isinstance(op, Wait):
                place[index] = len(ops)
                ops += [op, *([Wait(len(ops))] if isinstance(op, Collective) else [])]
        programs[rank] = Program(rank, tuple(ops))
    return programs


def in_bytes(op: Op) -> Op:
    """Without names and reduce operations, and with sizes in bytes."""
    if not isinstance(op, Communication):
        return Compute(op.ns) if isinstance(op, Compute) else op
    sized = replace(op, count=op_bytes(op), dtype=DType.UINT8, name="")
    if not isinstance(sized, Collective):
        return sized
    sends, receives = (tuple(n * op.dtype.itemsize for n in n_of) for n_of in (sized.send_splits, sized.recv_splits))
    return replace(sized, reduce_op="sum", send_splits=sends, recv_splits=receives)


@MADE
@given(jobs())
def test_goal(job: Trace) -> None:
    found = goal_again(job)

    assert sizes(found) == lowered(job)
    assert stuck(found.programs) == {}
    for rank, program in job.programs.items():
        for kind in (Compute, StepMark):
            assert [op for op in found.programs[rank].ops if isinstance(op, kind)] == [
                replace(op, name="") if isinstance(op, Compute) else op for op in program.ops if isinstance(op, kind)
            ]


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["ops", "ddp", "fsdp2"])
def test_recorded_jobs_through_param(corpus: Path, name: str) -> None:
    same_by_param(import_files([corpus / "self-recorded-gloo" / name]))
