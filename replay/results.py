"""The run folder: what a run was, and what it measured.

    run.json     the request (enough to run it again), the machine it ran on, how it ended, and the summary
    steps.csv    a row a step, written as the steps end: when the last rank passed its mark, what ranks waited and took
    ops.npz      a row an operation of every rank: when it was issued, began and ended
    links.csv    a row a direction of a link: packets, bytes, drops, marks, utilisation, its queue's peak
    collectives.csv  a row a kind, group and size of operation: its times, algorithm and bus bandwidth (nccl-tests)
    critical.json  what holds the steps, and the step without each (`replay.critical`)
    timeline.json  what each rank did when, for ui.perfetto.dev
    flows.csv    a row an end of a TCP connection: TCP_INFO when the run ended
    truth.json   what was seen of the machine, on `host` only (`replay.truth`)
    traffic.csv  a row a pair of hosts of each entry of the background traffic, where there is some
    LINK.pcap    the packets that left a link, where they were captured (replay.capture says which and when)
    totals.json  sums over links, flows and ranks, for the summary
    console.log  what the lab kernel printed, on `virtual` only

Times are ns after the common start, on the run's clock; steps have the numbers of the recording. On `virtual`, the same
request gives the same bytes. A run whose command was killed stays "running".
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import msgspec

from replay import control
from replay.critical import Holder
from replay.ideal import step_times
from replay.request import Request
from replay.statistics import describe
from replay.truth import Evidence
from traces.errors import TraceError

FORMAT = 1
STEP_COLUMNS = ("step", "end_ns", "step_ns", "exposed_mean_ns", "exposed_max_ns", "own_mean_ns")


class Summary(msgspec.Struct, frozen=True):
    """What the table shows. Times in ns; `recorded_step_ns` is 0 where the recording has no times.

    All is of the steps behind the `warmup_steps` first of the `steps` that ended; `replay.statistics` says how they are found,
    and what median, 95th percentile and the 95 % interval of the mean are. Drops, marks and retransmissions are of the whole run,
    None where it was stopped. `held`: of each kind of what is on the critical path, the one that takes most of it.
    `own_step_mean_ns` is a rank's own time for a step, in the mean over ranks.
    """

    steps: int
    warmup_steps: int
    step_mean_ns: float
    step_low_ns: float
    step_high_ns: float
    step_median_ns: float
    step_p95_ns: float
    exposed_mean_ns: float
    recorded_step_ns: float
    ideal_step_ns: float
    drops: int | None
    marks: int | None
    retransmits: int | None
    verified: int
    held: tuple[Holder, ...] = ()
    own_step_mean_ns: float = 0.0


class Run(msgspec.Struct, frozen=True):
    """`run.json`. `kernel` says which kernel and clock measured; `assumed` what the what-ifs and the network assume;
    `doubts` why the run can't be trusted: what `replay.truth` says of the machine that it was made on."""

    format: int
    tracebed: str
    command: tuple[str, ...]
    request: Request
    kernel: dict[str, str]
    fidelity: str
    assumed: tuple[str, ...]
    status: Literal["running", "complete", "stopped", "failed"]
    error: str = ""
    doubts: tuple[str, ...] = ()
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


def read_run(folder: Path) -> Run:
    """What `run.json` says. Raises TraceError where there is none that can be read."""
    path = folder / "run.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Run)
    except FileNotFoundError:
        raise TraceError("is no run folder: it has no run.json", file=folder) from None
    except msgspec.MsgspecError as error:
        raise TraceError(f"is no run of this version: {error}", file=path) from None


def read_totals(folder: Path) -> dict[str, int]:
    """`drops`, `marks`, `verified` and, where flows are known, `retransmits` of a run that came to its end."""
    return msgspec.json.decode((folder / "totals.json").read_bytes(), type=dict[str, int])


def read_evidence(folder: Path) -> Evidence:
    """What was seen of the machine in a run in real time that came to its end."""
    return msgspec.json.decode((folder / "truth.json").read_bytes(), type=Evidence)


def read_holders(folder: Path) -> tuple[Holder, ...]:
    """What is on the critical path of a run: kind by kind, most first. Raises TraceError where it did not come to its end."""
    try:
        return msgspec.json.decode((folder / "critical.json").read_bytes(), type=tuple[Holder, ...])
    except FileNotFoundError:
        mend = "run.json says how it ended"
        raise TraceError("did not come to its end, so what holds it is not known", file=folder, mend=mend) from None


def summarise(
    folder: RunFolder,
    recorded: tuple[int, ...],
    ideal: tuple[int, ...],
    totals: Mapping[str, int] = MappingProxyType({}),
    found: Sequence[Holder] = (),
) -> Summary:
    """The summary of a run of which one step ended at least; `recorded` and `ideal` are step times in ns.

    `totals` and `found`, as `read_totals` and `read_holders` give them, are there where it came to its end.
    """
    steps = folder.step_ns()
    said = describe(steps)
    return Summary(
        steps=len(steps),
        warmup_steps=said.warmup,
        step_mean_ns=said.mean_ns,
        step_low_ns=said.low_ns,
        step_high_ns=said.high_ns,
        step_median_ns=said.median_ns,
        step_p95_ns=said.p95_ns,
        exposed_mean_ns=_mean(folder.exposed_ns()[said.warmup :]),
        recorded_step_ns=_mean(recorded[said.warmup :]),
        ideal_step_ns=_mean(ideal[said.warmup :]),
        drops=totals.get("drops"),
        marks=totals.get("marks"),
        retransmits=totals.get("retransmits"),
        verified=totals.get("verified", 0),
        held=tuple({holder.kind: holder for holder in reversed(found)}.values())[::-1],
        own_step_mean_ns=_mean(folder.own_step_ns()[said.warmup :]),
    )


def _mean(times: Sequence[float]) -> float:
    return sum(times) / len(times) if times else 0.0
