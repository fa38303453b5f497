"""What only the end of a run can give, written into its folder; `replay.results` says which files those are."""

from __future__ import annotations

import csv
import io
import zipfile
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from emulator.beds.bed import LinkCounters
from emulator.network import Network
from replay import control
from replay.coordinator import Measurement
from replay.critical import holders
from replay.loads import utilisation
from replay.moments import moments
from replay.plan import Plan, Transfer
from replay.statistics import warmup
from traces.bandwidth import OperationRow, operations, rows
from traces.families import Family
from traces.formats import perfetto
from traces.meetings import begins, meetings
from traces.program import Collective, Group, Op, Origin, Program, StepMark, Trace, op_bytes

MOST_DRAWN = 300_000
"""Operations in `timeline.json`, 80 MB: of more, the first steps are drawn, one at least."""
MOST_MESSAGES = 4_000_000
"""Sent and received: of a run of more, what holds its steps is not asked for, which takes 1 KB and 20 us of each."""
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest date a zip can hold: no clock of ours gets into the bytes


def write_measurement(folder: Path, plan: Plan, network: Network, measured: Measurement) -> None:
    """Write every file. `network` is the run's as it is resolved, and the times are in its own time."""
    _write_operations(folder / "ops.npz", plan, measured.results)
    flows = [
        msgspec.structs.asdict(flow) for _, result in sorted(measured.results.items()) for flow in result.flows or ()
    ]
    _write_rows(folder / "flows.csv", [field.name for field in msgspec.structs.fields(control.Flow)], flows)
    if measured.traffic:
        columns = [field.name for field in msgspec.structs.fields(control.Carried)]
        _write_rows(folder / "traffic.csv", columns, map(msgspec.structs.asdict, measured.traffic))
    _write_links(folder / "links.csv", network, measured)
    _write_critical(folder / "critical.json", plan, network, measured)
    recorded = as_recorded(plan, measured.results)
    columns = [field.name for field in fields(OperationRow)]
    _write_rows(folder / "collectives.csv", columns, map(asdict, _by_size(recorded)))
    (folder / "timeline.json").write_bytes(perfetto.write(_first_steps(recorded))[0])
    totals: dict[str, int] = {
        "drops": sum(link.drops for link in measured.links),
        "marks": sum(link.marks for link in measured.links),
        "verified": sum(result.verified for result in measured.results.values()),
    }
    if all(result.flows is not None for result in measured.results.values()):
        totals["retransmits"] = sum(int(flow["retransmits"]) for flow in flows)
    (folder / "totals.json").write_bytes(msgspec.json.encode(totals) + b"\n")


def as_recorded(plan: Plan, results: Mapping[int, control.Result]) -> Trace:
    """The run as if it had been recorded: the plan's operations, with the times that they were measured to have."""
    programs, members, lanes = {}, dict[int, set[int]](), dict[int, int]()
    for rank, result in sorted(results.items()):
        issued, ended = array("q", result.issued), array("q", result.ended)
        ops: list[Op] = []
        for index, planned in enumerate(plan.ranks[rank].ops):
            op = planned.op if isinstance(planned, Transfer) else planned
            if isinstance(planned, Transfer):
                members.setdefault(planned.op.group, set()).update(planned.ranks)
                lanes[planned.op.group] = planned.lane
            ops.append(replace(op, origin=Origin(start_ns=issued[index], end_ns=ended[index])))
        programs[rank] = Program(rank, tuple(ops))
    groups = [
        Group(number, str(number), tuple(sorted(ranks)), lanes[number]) for number, ranks in sorted(members.items())
    ]
    steps = {op.step for program in programs.values() for op in program.ops if isinstance(op, StepMark)}
    return Trace(len(programs), tuple(groups), programs, len(steps))


def _by_size(recorded: Trace) -> tuple[OperationRow, ...]:
    lanes = {group.id: group.lane for group in recorded.groups}
    began = {rank: begins(program, lanes) for rank, program in recorded.programs.items()}
    kin = tuple(Family((group,)) for group in recorded.groups)
    return rows(kin, list(operations(recorded, meetings(recorded.programs), began)))


def _first_steps(trace: Trace) -> Trace:
    """As many as may be drawn."""
    steps = max(
        1, trace.step_count * MOST_DRAWN // max(1, sum(len(program.ops) for program in trace.programs.values()))
    )
    if steps >= trace.step_count:
        return trace
    programs = {}
    for rank, program in trace.programs.items():
        marks = [index for index, op in enumerate(program.ops) if isinstance(op, StepMark)]
        programs[rank] = Program(rank, program.ops[: marks[steps - 1] + 1] if marks else program.ops)
    return replace(trace, programs=programs, step_count=steps)


def _write_critical(path: Path, plan: Plan, network: Network, measured: Measurement) -> None:
    """A `replay.critical.Holder` each, most of the path first; none where there are too many messages, or none was told."""
    messages = sum(len(result.messages) for result in measured.results.values()) // 24  # three int64 each
    silent = not messages and any(isinstance(op, Transfer) for own in plan.ranks.values() for op in own.ops)
    if messages > MOST_MESSAGES or silent:
        path.write_bytes(b"[]\n")
        return
    run = moments(plan, measured.results)
    found = holders(run, network, measured.links, first_step=warmup(run.step_ns(run.at)))
    path.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")


def _write_links(path: Path, network: Network, measured: Measurement) -> None:
    """A `LinkCounters` each, `utilisation`, of what the direction could carry while the ranks ran, and the most that waited in
    its queue at one of so many readings."""
    until = max(result.finished_ns for result in measured.results.values())
    columns = [*(field.name for field in fields(LinkCounters)), "utilisation", "peak_bytes", "readings"]
    used = utilisation(network, measured.links, until)
    _write_rows(
        path,
        columns,
        (
            {**asdict(link), "utilisation": share, "peak_bytes": peak, "readings": measured.readings}
            for link, share, peak in zip(measured.links, used, measured.peaks, strict=True)
        ),
    )


def _write_rows(path: Path, columns: list[str], rows: Iterable[Mapping[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _write_operations(path: Path, plan: Plan, results: Mapping[int, control.Result]) -> None:
    """`rank`, `op` (index in the rank's program), `kind`, `group`, `bytes` (of the call), `issued`, `began`, `ended` in ns."""
    rows: list[tuple[int, int, str, int, int]] = []
    times: dict[str, list[int]] = {"issued": [], "began": [], "ended": []}
    for rank, result in sorted(results.items()):
        measured = {name: np.frombuffer(getattr(result, name), dtype=np.int64) for name in times}
        for index, planned in enumerate(plan.ranks[rank].ops):
            if isinstance(planned, Transfer):
                op = planned.op
                kind = op.kind.value if isinstance(op, Collective) else type(op).__name__.lower()
                rows.append((rank, index, kind, op.group, op_bytes(op)))
            else:
                rows.append((rank, index, type(planned).__name__.lower(), -1, 0))
            for name, column in times.items():
                column.append(int(measured[name][index]))
    rank_, op_, kind_, group_, bytes_ = zip(*rows, strict=True) if rows else ((),) * 5
    columns: dict[str, np.ndarray[Any, Any]] = {
        "rank": np.array(rank_, np.int32),
        "op": np.array(op_, np.int32),
        "kind": np.array(kind_, np.str_),
        "group": np.array(group_, np.int32),
        "bytes": np.array(bytes_, np.int64),
        **{name: np.array(column, np.int64) for name, column in times.items()},
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, values in columns.items():
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, values, allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", _EPOCH), buffer.getvalue())
