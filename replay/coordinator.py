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
from replay.gauge import Gauge
from replay.plan import Plan, RankPlan
from replay.process import Held, dismiss
from replay.stuck import is_deadlock, waiting
from replay.transports.endpoint import PeerLostError
from replay.transports.rdma.settings import rdma_options
from replay.transports.tcp_options import TcpOptions
from replay.transports.timer import Timer
from replay.worker import WorkerOptions, monotonic, start_worker
from traces.errors import TraceError

_PORT = 29500
_GRID_NS = 256_000_000
"""Connecting and starting happen at multiples of this, so that in the lab kernel they fall alike in every run, however long
setting up took. It is 64 of its ticks: timers of up to 16 s are cut to 1, 8 or 64 ticks (kernel/time/timer.c)."""
_FIRST_LOOK_S = 1.0
"""After so long a silence the ranks are asked what they wait for; then after twice as long, and so on."""
_LAST_WORDS_S = 1.0
_ERRORS = {error.__name__: error for error in (TraceError, NetworkError, MachineError, BedError)}

M = TypeVar("M", control.Listening, control.Ready, control.Result)
Said = list[tuple[int, control.FromWorker | None]]
"""Messages, each with the rank that sent it; None where that is gone."""


class Member(Held, Protocol):
    """A rank's process, as a run holds it."""

    @property
    def rank(self) -> int: ...


Start = Callable[[RankPlan, Mapping[int, tuple[str, int]], WorkerOptions], Member]
"""Starts a rank, as `replay.worker.start_worker` does."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a run gave: each rank's result, what each direction of each link carried, what the background traffic did, the
    most bytes that waited in each direction at one of so many `readings`, and how many packets each of the caller's companions
    missed, by its name."""

    results: Mapping[int, control.Result]
    links: tuple[LinkCounters, ...]
    traffic: tuple[control.Carried, ...] = ()
    peaks: tuple[int, ...] = ()
    readings: int = 0
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
    stall_s: float,
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
        stall_s: seconds of this kernel's clock without anything moving after which the run is given up.

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
    rdma = rdma_options(bed.network, bed.fidelity) if bed.network.transport == "rdma" else None
    director = Director(bed)
    beside = Companions([*background.companions(bed), *companions], on_start, stall_s)
    gauge = Gauge(bed)
    crew = _Crew(on_progress, stall_s, director, beside, gauge)
    try:
        for rank, own in plan.ranks.items():
            options = WorkerOptions(verify, tcp, rdma, costs.get(rank), partial(bed.enter, hosts[rank]))
            worker = start(own, addresses, options)
            crew.add(worker)
            if worker.pid is not None:
                on_start(worker.pid)
        beside.prepare()
        crew.gather(control.Listening)
        _wait_until(_on_grid(ahead=1))
        crew.tell(control.Connect())
        crew.gather(control.Ready)
        before = bed.counters()
        begin = _on_grid(ahead=2)
        director.start(begin)
        gauge.start(begin)
        beside.start(begin)
        crew.tell(control.Go(begin))
        results = crew.gather(control.Result)
        done = beside.finish()
        crew.tell(control.Bye())
        return Measurement(
            results,
            tuple(now.since(then) for now, then in zip(bed.counters(), before, strict=True)),
            background.totals(done.values()),
            tuple(gauge.peaks),
            gauge.readings,
            {companion.name: done[companion.name].missed for companion in companions},
        )
    finally:
        crew.dismiss()
        beside.close()
        director.close()
        gauge.close()


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
        self,
        on_progress: Callable[[control.Progress], None],
        stall_s: float,
        director: Director,
        beside: Companions,
        gauge: Gauge,
    ) -> None:
        self._workers: dict[int, Member] = {}
        self._on_progress = on_progress
        self._stall_s = stall_s
        self._director = director
        self._beside = beside
        self._gauge = gauge

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
            said = self._news(running=kind is control.Result)
            for rank, message in said:
                if isinstance(message, control.Progress):
                    self._on_progress(message)
                elif isinstance(message, kind):
                    found[rank] = message
            failures = {rank: message for rank, message in said if isinstance(message, control.Failed)}
            if failures or any(message is None for _, message in said):
                raise self._why(failures, running=kind is control.Result)
        return found

    def _news(self, running: bool) -> Said:
        """The next messages. BedError where none can come, or nothing has moved for too long; ranks that run are asked."""
        quiet, look, last = 0.0, _FIRST_LOOK_S, dict[int, control.Status]()
        while not (said := self._listen(pause := min(look, self._stall_s - quiet))):
            states, said = self._ask() if running else ({}, [])
            if said:
                return said
            if len(states) == len(self._workers):
                if is_deadlock(states):
                    again, said = self._ask()
                    if said:
                        return said
                    if again == states:  # nothing moved between the two, so they are of one moment
                        raise BedError(f"the ranks wait for each other for ever: {waiting(states)}")
                if states != last or any(state.computing for state in states.values()):
                    quiet = 0.0
            quiet, look, last = quiet + pause, 2 * look, states
            if quiet >= self._stall_s:
                down = "".join(f", link {link} is down" for link in self._director.down())
                raise BedError(f"nothing has moved for {self._stall_s:.0f} s{down}: {waiting(states)}")
        return said

    def _ask(self, without: Collection[int] = ()) -> tuple[dict[int, control.Status], Said]:
        """What every rank waits for, of those that answer soon; and what else they said meanwhile."""
        self.tell(control.Ask())
        states: dict[int, control.Status] = {}
        others: Said = []
        while len(states) < len(self._workers) - len(without) and (said := self._listen(_LAST_WORDS_S, without)):
            for rank, message in said:
                if isinstance(message, control.Status):
                    states[rank] = message
                else:
                    others.append((rank, message))
            if any(message is None for _, message in said):
                break
        return states, others

    def _listen(self, limit_s: float, without: Collection[int] = ()) -> Said:
        """The next messages; None for a rank that is gone. Empty after `limit_s` of silence."""
        sources = {worker.control.fileno(): worker for rank, worker in self._workers.items() if rank not in without}
        ready = self._wait_for(list(sources), limit_s)
        said: Said = []
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
        others = self._director.fd, self._beside.fd, self._gauge.fd
        while True:
            ready, _, _ = select.select([*sources, *others], [], [], max(0, deadline - time.monotonic()))
            if self._beside.fd in ready:
                self._beside.act()
            if self._director.fd in ready:
                self._director.act(monotonic())
            if self._gauge.fd in ready:
                self._gauge.act()
            told = [source for source in ready if source not in others]
            if told or not ready:
                return told

    def _why(self, failures: dict[int, control.Failed], *, running: bool) -> Exception:
        """The cause: a rank that ended without a word or failed by itself, rather than one that lost another. With the former,
        what a rank that lost it was waiting for, or all others where none noticed."""
        silent: dict[int, None] = {}
        deadline = time.monotonic() + _LAST_WORDS_S
        while all(map(_lost_another, failures.values())) and not any(_lost(rank, failures) for rank in silent):
            said = self._listen(max(0, deadline - time.monotonic()), without={*failures, *silent})
            if not said:
                break
            for rank, message in said:
                if isinstance(message, control.Failed):
                    failures[rank] = message
                elif message is None:
                    silent[rank] = None
        if silent:
            first = min(silent)
            waited = "".join(f"; {text}" for text in _lost(first, failures)[:1])
            if running and not waited and (states := self._ask({*failures, *silent})[0]):
                waited = f"; {waiting(states)}"
            return BedError(f"rank {first}'s process {self._workers[first].fate()}{waited}")
        cause = min(failures.values(), key=_lost_another)
        return _ERRORS.get(cause.kind, BedError)(_with_rank(cause))

    def dismiss(self) -> None:
        """End every process that is left, and wait for all."""
        dismiss(self._workers.values())


def _lost(rank: int, failures: Mapping[int, control.Failed]) -> list[str]:
    """What those say that lost their connection to this rank."""
    return [failure.text for _, failure in sorted(failures.items()) if f" connection to rank {rank} " in failure.text]


def _lost_another(failure: control.Failed) -> bool:
    """The cause is not this rank but the one at the other end of its connection."""
    return failure.kind == PeerLostError.__name__


def _with_rank(failure: control.Failed) -> str:
    known = failure.kind in _ERRORS or _lost_another(failure)
    text = failure.text if known else f"{failure.kind}: {failure.text}"
    return text if text.startswith("rank ") else f"rank {failure.rank}: {text}"
