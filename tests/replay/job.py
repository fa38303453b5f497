"""Runs a plan with forked workers over loopback: the coordinator's part of `replay.control`, without a bed."""

from __future__ import annotations

import os
import select
import socket
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from replay import control
from replay.plan import Plan
from replay.worker import Worker, WorkerOptions, monotonic, start_worker

DEADLINE_S = 60


def free_addresses(ranks: list[int]) -> dict[int, tuple[str, int]]:
    """Loopback addresses with ports that nobody had a moment ago."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in ranks]
    addresses = {rank: ("127.0.0.1", sock.getsockname()[1]) for rank, sock in zip(ranks, sockets, strict=True)}
    for sock in sockets:
        sock.close()
    return addresses


@contextmanager
def workers(plan: Plan, options: WorkerOptions | Callable[[int], WorkerOptions]) -> Iterator[dict[int, Worker]]:
    """Every rank of `plan`, connected and waiting for Go. At the end they must all have ended by themselves."""
    addresses = free_addresses(sorted(plan.ranks))
    started = {
        rank: start_worker(own, addresses, options(rank) if callable(options) else options)
        for rank, own in plan.ranks.items()
    }
    try:
        for worker in started.values():
            worker.control.settimeout(DEADLINE_S)
        yield started
    finally:
        for worker in started.values():
            worker.close()
            os.waitpid(worker.pid, 0)


def expect(worker: Worker, wanted: control.FromWorker) -> None:
    message = control.from_worker(worker.control)
    assert message == wanted, message


def connect(started: dict[int, Worker]) -> None:
    for worker in started.values():
        expect(worker, control.Listening(worker.rank))
    for worker in started.values():
        control.send(worker.control, control.Connect())
    for worker in started.values():
        expect(worker, control.Ready(worker.rank))


def go(started: dict[int, Worker], delay_ns: int = 5_000_000) -> None:
    at = monotonic() + delay_ns
    for worker in started.values():
        control.send(worker.control, control.Go(at))


def gather(started: dict[int, Worker]) -> tuple[dict[int, control.FromWorker], list[control.Progress]]:
    """The last word of each worker (Result or Failed), and all progress."""
    last: dict[int, control.FromWorker] = {}
    progress = []
    while len(last) < len(started):
        waiting = {worker.control: rank for rank, worker in started.items() if rank not in last}
        readable, _, _ = select.select(list(waiting), [], [], DEADLINE_S)
        assert readable, f"nothing from ranks {sorted(waiting.values())} for {DEADLINE_S} s"
        for channel in readable:
            message = control.from_worker(channel)
            if isinstance(message, control.Progress):
                progress.append(message)
            else:
                last[waiting[channel]] = message
    return last, progress


def bye(started: dict[int, Worker]) -> None:
    for worker in started.values():
        control.send(worker.control, control.Bye())


def run_job(
    plan: Plan, options: WorkerOptions | None = None
) -> tuple[dict[int, control.Result], list[control.Progress]]:
    with workers(plan, options or WorkerOptions()) as started:
        connect(started)
        go(started)
        last, progress = gather(started)
        results = {}
        for rank, message in last.items():
            assert isinstance(message, control.Result), message
            results[rank] = message
        bye(started)
    return results, progress


def times(data: bytes) -> array[int]:
    """A column of a Result."""
    column = array("q")
    column.frombytes(data)
    return column
