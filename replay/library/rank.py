"""One rank's process whose operations are a library's. Says to the coordinator what `replay.worker` says.

What it can't know it doesn't say: connections, messages, and when an operation began. A thread of its own answers what the
rank waits for, as the program itself is inside the library then.
"""

from __future__ import annotations

import os
import queue
import select
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from emulator.errors import BedError
from replay import control
from replay.engine import StepDone
from replay.library.program import Make, Runner
from replay.plan import RankPlan
from replay.process import fork
from replay.transports.endpoint import PeerLostError
from replay.transports.timer import Timer
from replay.worker import Worker, WorkerOptions, monotonic, on_processor, reporting, result, strain_since

Wanted = TypeVar("Wanted", bound=control.FromCoordinator)
_RECEIVED = 1  # the column of a device's bytes in /proc/net/dev (proc(5))


def start_rank(plan: RankPlan, make: Make, addresses: Mapping[int, tuple[str, int]], options: WorkerOptions) -> Worker:
    """Forks the process of `plan.rank`, as `replay.worker.start_worker` does."""

    def work(channel: socket.socket) -> int:
        talk = _Talk(channel)
        return reporting(plan.rank, talk.say, lambda: _run(plan, make, addresses, talk, options))

    process = fork(work)
    return Worker(process.pid, process.control, plan.rank)


class _Talk:
    """A channel that two threads of this process say things on."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._turn = threading.Lock()
        self._heard: queue.SimpleQueue[control.FromCoordinator | None] = queue.SimpleQueue()

    def say(self, message: control.FromWorker) -> None:
        with self._turn:
            control.send(self._channel, message)

    def listen(self, status: Callable[[], control.Status]) -> None:
        """From now on answer each Ask with `status`, and keep all else for `expect`."""
        threading.Thread(target=self._listen, args=[status], daemon=True).start()

    def _listen(self, status: Callable[[], control.Status]) -> None:
        try:
            while True:
                message = control.from_coordinator(self._channel)
                if isinstance(message, control.Ask):
                    self.say(status())
                else:
                    self._heard.put(message)
        except (EOFError, OSError):  # hung up on
            self._heard.put(None)

    def expect(self, wanted: type[Wanted]) -> Wanted:
        """The next message that is no Ask. EOFError: the coordinator is gone."""
        message = self._heard.get()
        if message is None:
            raise EOFError
        if not isinstance(message, wanted):
            raise BedError(f"expected {wanted.__name__} from the coordinator, got {type(message).__name__}")
        return message


def _run(
    plan: RankPlan,
    make: Make,
    addresses: Mapping[int, tuple[str, int]],
    talk: _Talk,
    options: WorkerOptions,
) -> None:
    if options.setup is not None:
        options.setup()
    with closing(Timer()) as timer:

        def sleep_until(at_ns: int) -> None:
            timer.set(at_ns)
            select.select([timer.fd], [], [])

        def passed(mark: StepDone) -> None:
            talk.say(control.Progress(plan.rank, mark.step, mark.at_ns - begin, mark.exposed_ns))

        def status() -> control.Status:
            return control.Status(plan.rank, runner.blocked(), runner.computing, runner.finished, (), _heard_bytes())

        _be_quiet()
        library = make(plan, addresses)
        runner = Runner(plan, library, monotonic, sleep_until, passed)
        talk.listen(status)
        try:
            talk.say(control.Listening(plan.rank))
            talk.expect(control.Connect)
            library.connect()
            talk.say(control.Ready(plan.rank))
            begin = talk.expect(control.Go).at_ns
            before = on_processor()
            runner.run(begin)
        except PeerLostError as error:
            raise PeerLostError(f"{error}; {runner.blocked()}") from error
        except RuntimeError as error:  # of a rank that is gone, a library may say no more than that something failed
            raise PeerLostError(f"rank {plan.rank}: {error}; {runner.blocked()}") from error
        strain = strain_since(before, monotonic() - begin, runner.late_ns)
        talk.say(result(plan.rank, runner.times, begin, strain, flows=None))
        talk.expect(control.Bye)


def _be_quiet() -> None:
    """What libraries print of themselves is not for whoever reads our output."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def _heard_bytes() -> int:
    """All bytes that have come to this host."""
    _, _, *devices = Path("/proc/self/net/dev").read_text().splitlines()
    return sum(int(line.replace(":", ": ").split()[_RECEIVED]) for line in devices)
