"""The run folder: what a run was, and what it measured.

    run.json     the request (enough to run it again), the machine it ran on, how it ended, and the summary
    steps.csv    a row a step, written as the steps end: when the last rank passed its mark, what ranks waited and took
    ops.npz      a row an operation of every rank: when it was issued, began and ended
    links.csv    a row a direction of a link: packets, bytes, drops
    flows.csv    a row an end of a TCP connection: TCP_INFO when the run ended
    traffic.csv  a row a pair of hosts of each entry of the background traffic, where there is some
    LINK.pcap    the packets that left a link, where they were captured (replay.capture says which and when)
    totals.json  sums over links, flows and ranks, for the summary
    console.log  what the lab kernel printed, on `virtual` only

Times are ns after the common start, on the run's clock; steps have the numbers of the recording. On `virtual`, the same
request gives the same bytes. A run whose command was killed stays "running".
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from emulator.beds.bed import LinkCounters
from replay import control
from replay.coordinator import Measurement
from replay.ideal import step_times
from replay.plan import Plan, Transfer
from replay.request import Request
from traces.program import Collective, op_bytes

FORMAT = 1
STEP_COLUMNS = ("step", "end_ns", "step_ns", "exposed_mean_ns", "exposed_max_ns", "own_mean_ns")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest date a zip can hold: no clock of ours gets into the bytes


class Summary(msgspec.Struct, frozen=True):
    """What the table shows. Times in ns; `recorded_step_ns` is 0 where the recording has no times.

    The 95th percentile lies linearly between the two steps round it. `own_step_mean_ns` is a rank's own time for a step, in
    the mean over ranks.
    """

    steps: int
    step_mean_ns: float
    step_p95_ns: float
    exposed_mean_ns: float
    recorded_step_ns: float
    ideal_step_ns: float
    drops: int
    retransmits: int
    verified: int
    own_step_mean_ns: float = 0.0


class Run(msgspec.Struct, frozen=True):
    """`run.json`. `kernel` says which kernel and clock measured; `assumed` what the what-ifs and the network assume."""

    format: int
    tracebed: str
    command: tuple[str, ...]
    request: Request
    kernel: dict[str, str]
    fidelity: str
    assumed: tuple[str, ...]
    status: Literal["running", "complete", "failed"]
    error: str = ""
    summary: Summary | None = None


class RunFolder:
    """One run's folder, which must not hold another run yet."""

    def __init__(self, path: Path, ranks: Iterable[int]) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self._ranks = frozenset(ranks)
        self._passed: dict[int, dict[int, control.Progress]] = {}
        self._ends: dict[int, int] = {}
        with (path / "steps.csv").open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(STEP_COLUMNS)

    def write_run(self, run: Run) -> None:
        (self.path / "run.json").write_bytes(msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n")

    def progress(self, said: control.Progress) -> bool:
        """A rank passed a step's mark. True where it was the last to: the step's row is written then, to outlive a crash."""
        passed = self._passed.setdefault(said.step, {})
        passed[said.rank] = said
        if passed.keys() != self._ranks:
            return False
        end = max(one.at_ns for one in passed.values())
        exposed = [one.exposed_ns for one in passed.values()]
        row = (
            said.step,
            end,
            end - max(self._ends.values(), default=0),
            round(sum(exposed) / len(exposed)),
            max(exposed),
            round(self._own_ns(said.step)),
        )
        self._ends[said.step] = end
        with (self.path / "steps.csv").open("a", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(row)
        return True

    def _own_ns(self, step: int) -> float:
        """A rank's time from its mark before to its mark, in the mean over ranks."""
        before = self._passed.get(step - 1, {})
        own = [one.at_ns - (before[rank].at_ns if rank in before else 0) for rank, one in self._passed[step].items()]
        return sum(own) / len(own)

    def own_step_ns(self) -> tuple[float, ...]:
        """Per ended step, what a rank took for it, in the mean over ranks: how fast a job is whose ranks do not wait for each
        other."""
        return tuple(map(self._own_ns, sorted(self._ends)))

    def step_ns(self) -> tuple[int, ...]:
        """How long each step took that every rank has ended."""
        return step_times(self._ends)

    def exposed_ns(self) -> tuple[float, ...]:
        """Per ended step, the time that a rank waited for the network, in the mean over ranks."""
        done = (self._passed[step] for step in sorted(self._ends))
        return tuple(sum(one.exposed_ns for one in passed.values()) / len(passed) for passed in done)


def write_measurement(folder: Path, plan: Plan, measured: Measurement) -> None:
    """Write what only the end of a run can give: operations, links, flows, traffic; and totals for the summary."""
    _write_operations(folder / "ops.npz", plan, measured.results)
    _write_rows(folder / "links.csv", [field.name for field in fields(LinkCounters)], map(asdict, measured.links))
    flows = [msgspec.structs.asdict(flow) for _, result in sorted(measured.results.items()) for flow in result.flows]
    _write_rows(folder / "flows.csv", [field.name for field in msgspec.structs.fields(control.Flow)], flows)
    if measured.traffic:
        columns = [field.name for field in msgspec.structs.fields(control.Carried)]
        _write_rows(folder / "traffic.csv", columns, map(msgspec.structs.asdict, measured.traffic))
    totals = {
        "drops": sum(link.drops for link in measured.links),
        "retransmits": sum(int(flow["retransmits"]) for flow in flows),
        "verified": sum(result.verified for result in measured.results.values()),
    }
    (folder / "totals.json").write_bytes(msgspec.json.encode(totals) + b"\n")


def read_totals(folder: Path) -> dict[str, int]:
    """`drops`, `retransmits` and `verified` of a run that came to its end."""
    return msgspec.json.decode((folder / "totals.json").read_bytes(), type=dict[str, int])


def summarise(
    folder: RunFolder, recorded: tuple[int, ...], ideal: tuple[int, ...], totals: Mapping[str, int]
) -> Summary:
    """The summary of a run that came to its end; `recorded` and `ideal` are step times in ns."""
    steps = folder.step_ns()
    return Summary(
        steps=len(steps),
        step_mean_ns=float(np.mean(steps)),
        step_p95_ns=float(np.percentile(steps, 95)),
        exposed_mean_ns=float(np.mean(folder.exposed_ns())),
        recorded_step_ns=float(np.mean(recorded)) if recorded else 0.0,
        ideal_step_ns=float(np.mean(ideal)),
        drops=totals["drops"],
        retransmits=totals["retransmits"],
        verified=totals["verified"],
        own_step_mean_ns=float(np.mean(folder.own_step_ns())),
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
