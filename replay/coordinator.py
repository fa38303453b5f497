"""Runs a plan on a bed that is up: one process a rank, started together, watched until all have ended.

A rank that dies, fails or waits for ever ends the run with an error that says which and why; no process is left then.
Who starts a rank's process is a parameter: it is forked, or one that was there already reports.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

from emulator.beds.bed import Bed, LinkCounters
from emulator.errors import BedError, MachineError, NetworkError
from replay import background, control
from replay.companions import Companion, Companions
from replay.costs import costs_of
from replay.director import Director
from replay.plan import Plan, RankPlan
from replay.process import Held, dismiss
from replay.transports.tcp import PeerLostError
from replay.transports.tcp_options import TcpOptions
from replay.transports.timer import Timer
from replay.worker import WorkerOptions, monotonic, start_worker
from traces.errors import TraceError

_PORT = 29500
_GRID_NS = 256_000_000
"""Connecting and starting happen at multiples of this, so that in the lab kernel they fall alike in every run, however long
setting up took. It is 64 of its ticks: timers of up to 16 s are cut to 1, 8 or 64 ticks (kernel/time/timer.c)."""
STALL_S = 900
"""Seconds of the run's own clock without a step or a result after which it is given up."""
_LAST_WORDS_S = 1.0
_ERRORS = {error.__name__: error for error in (TraceError, NetworkError, MachineError, BedError)}

M = TypeVar("M", control.Listening, control.Ready, control.Status, control.Result)


class Member(Held, Protocol):
    """A rank's process, as a run holds it."""

    @property
    def rank(self) -> int: ...


Start = Callable[[RankPlan, Mapping[int, tuple[str, int]], WorkerOptions], Member]
"""Starts a rank, as `replay.worker.start_worker` does."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a run gave: each rank's result, what each direction of each link carried, what the background traffic did, and
    how many packets each of the caller's companions missed, by its name."""

    results: Mapping[int, control.Result]
    links: tuple[LinkCounters, ...]
    traffic: tuple[control.Carried, ...] = ()
    missed: Mapping[str, int] = field(default_factory=dict)


def run(
    plan: Plan,
    bed: Bed,
    *,
    verify: bool = False,
    companions: Sequence[Companion] = (),
    on_progress: Callable[[control.Progress], None] = lambda progress: None,
    start: Start = start_worker,
    on_start: Callable[[int], None] = lambda pid: None,
    stall_s: float = STALL_S,
) -> Measurement:
    """Run every rank of `plan` on its host of `bed`, and let the network's events and traffic happen meanwhile.

    Args:
        plan: what each rank does; each of its ranks must be on a host of the bed's network.
        bed: a bed that is up.
        verify: send real tensors and check them.
        companions: processes that run beside the ranks, besides those of the background traffic.
        on_progress: called with each step mark that a rank passes.
        start: starts a rank's process.
        on_start: called with the id of each process that is forked here; all have ended when this returns.
        stall_s: seconds of this kernel's clock without any news after which the run is given up.

    Raises:
        BedError: a rank or a companion died, failed or waits for ever.
    """
    hosts = {rank: host.name for host in bed.network.hosts for rank in host.ranks}
    if missing := sorted(plan.ranks.keys() - hosts.keys()):
        raise NetworkError(
            f"no host for rank {missing[0]}: the network has {len(hosts)} ranks, the job {len(plan.ranks)}"
        )
    addresses = {rank: (bed.address(hosts[rank]), _PORT + rank) for rank in plan.ranks}
    tcp, costs = TcpOptions.of(bed.network.tcp), costs_of(bed.network)
    director = Director(bed)
    beside = Companions([*background.companions(bed), *companions], on_start, stall_s)
    crew = _Crew(on_progress, stall_s, director, beside)
    try:
        for rank, own in plan.ranks.items():
            options = WorkerOptions(verify, tcp, costs.get(rank), partial(bed.enter, hosts[rank]))
            worker = start(own, addresses, options)
            crew.add(worker)
            if worker.pid is not None:
                on_start(worker.pid)
        beside.prepare()
        crew.gather(control.Listening)
        _wait_until(_on_grid(ahead=1))
        crew.tell(control.Connect())
        crew.gather(control.Ready)
        begin = _on_grid(ahead=2)
        director.start(begin)
        beside.start(begin)
        crew.tell(control.Go(begin))
        results = crew.gather(control.Result)
        done = beside.finish()
        crew.tell(control.Bye())
        return Measurement(
            results,
            bed.counters(),
            background.totals(done.values()),
            {companion.name: done[companion.name].missed for companion in companions},
        )
    finally:
        crew.dismiss()
        beside.close()
        director.close()


def _on_grid(ahead: int) -> int:
    return (monotonic() // _GRID_NS + ahead) * _GRID_NS


def _wait_until(at_ns: int) -> None:
    """To the nanosecond in virtual time: time.sleep may be late by the timer slack, 50 us (prctl(2))."""
    with closing(Timer()) as timer:
        timer.set(at_ns)
        select.select([timer.fd], [], [])


class _Crew:
    """The ranks' processes, and what they say; whoever waits for them lets the network's events happen, and hears of
    companions that fail."""

    def __init__(
        self, on_progress: Callable[[control.Progress], None], stall_s: float, director: Director, beside: Companions
    ) -> None:
        self._workers: dict[int, Member] = {}
        self._on_progress = on_progress
        self._stall_s = stall_s
        self._director = director
        self._beside = beside

    def add(self, worker: Member) -> None:
        self._workers[worker.rank] = worker

    def tell(self, message: control.FromCoordinator) -> None:
        for worker in self._workers.values():
            with suppress(OSError):  # it died: `gather` finds out how
                control.send(worker.control, message)

    def gather(self, kind: type[M]) -> dict[int, M]:
        """One message of `kind` from every rank; progress is passed on meanwhile."""
        found: dict[int, M] = {}
        while len(found) < len(self._workers):
            said = self._listen(self._stall_s)
            if not said:
                raise BedError(self._stalled())
            for rank, message in said:
                if isinstance(message, control.Progress):
                    self._on_progress(message)
                elif isinstance(message, kind):
                    found[rank] = message
            failures = {rank: message for rank, message in said if isinstance(message, control.Failed)}
            if failures or any(message is None for _, message in said):
                raise self._why(failures)
        return found

    def _listen(self, limit_s: float, without: Collection[int] = ()) -> list[tuple[int, control.FromWorker | None]]:
        """The next messages; None for a rank that is gone. Empty after `limit_s` of silence."""
        sources = {worker.control.fileno(): worker for rank, worker in self._workers.items() if rank not in without}
        ready = self._wait_for(list(sources), limit_s)
        said: list[tuple[int, control.FromWorker | None]] = []
        for source in sorted(ready, key=lambda number: sources[number].rank):
            worker = sources[source]
            try:
                said.append((worker.rank, control.from_worker(worker.control)))
            except (EOFError, ConnectionError):
                said.append((worker.rank, None))
        return said

    def _wait_for(self, sources: Sequence[int], limit_s: float) -> list[int]:
        """Those that can be read; none after `limit_s`."""
        deadline = time.monotonic() + limit_s
        others = self._director.fd, self._beside.fd
        while True:
            ready, _, _ = select.select([*sources, *others], [], [], max(0, deadline - time.monotonic()))
            if self._beside.fd in ready:
                self._beside.act()
            if self._director.fd in ready:
                self._director.act(monotonic())
            told = [source for source in ready if source not in others]
            if told or not ready:
                return told

    def _why(self, failures: dict[int, control.Failed]) -> Exception:
        """The cause: a rank that ended without a word or failed by itself, rather than one that lost another."""
        silent: list[int] = []
        deadline = time.monotonic() + _LAST_WORDS_S
        while not silent and all(map(_lost_another, failures.values())) and (left := deadline - time.monotonic()) > 0:
            for rank, message in self._listen(left, without=failures):
                if isinstance(message, control.Failed):
                    failures[rank] = message
                elif message is None:
                    silent.append(rank)
        if silent:
            return BedError(f"rank {silent[0]}'s process {self._workers[silent[0]].fate()}")
        cause = min(failures.values(), key=_lost_another)
        return _ERRORS.get(cause.kind, BedError)(_with_rank(cause))

    def _stalled(self) -> str:
        self.tell(control.Ask())
        answers: dict[int, str] = {}
        while len(answers) < len(self._workers) and (said := self._listen(_LAST_WORDS_S)):
            answers.update((rank, message.text) for rank, message in said if isinstance(message, control.Status))
        waiting = "; ".join(text for _, text in sorted(answers.items())) or "no rank answers"
        return f"nothing has happened for {self._stall_s:.0f} s: {waiting}"

    def dismiss(self) -> None:
        """End every process that is left, and wait for all."""
        dismiss(self._workers.values())


def _lost_another(failure: control.Failed) -> bool:
    """The cause is not this rank but the one at the other end of its connection."""
    return failure.kind == PeerLostError.__name__


def _with_rank(failure: control.Failed) -> str:
    known = failure.kind in _ERRORS or _lost_another(failure)
    text = failure.text if known else f"{failure.kind}: {failure.text}"
    return text if text.startswith("rank ") else f"rank {failure.rank}: {text}"
