"""One rank: a process forked from a warm parent, which runs its plan over TCP and reports over a control socket.

Everything is imported and lowered before the fork, so a rank starts in milliseconds and shares the plan's memory.
"""

from __future__ import annotations

import socket
import time
from array import array
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from emulator.errors import BedError
from replay import control
from replay.costs import Handling, RankCosts
from replay.engine import NEVER, Action, Engine, PostRecv, Records, SetTimer, StartSend, StepDone
from replay.payload import Verified
from replay.plan import RankPlan, Stream
from replay.process import Process, fork
from replay.sending import UNSENT
from replay.transports.endpoint import PeerLostError
from replay.transports.events import ControlReady, Received, Sent
from replay.transports.handled import Handled, Transport
from replay.transports.rdma.settings import RdmaOptions
from replay.transports.rdma.transport import RdmaTransport
from replay.transports.tcp import TcpTransport
from replay.transports.tcp_options import TcpOptions

Clock = Callable[[], int]
Wanted = TypeVar("Wanted", bound=control.FromCoordinator)


def monotonic() -> int:
    """CLOCK_MONOTONIC in ns: one clock for every process of a kernel, and the one that timers count in."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """`verify`: send real tensors and compare every element. `setup` runs first in a forked process: it enters the
    rank's host. `rdma`: what its connections are where they are not TCP's; `costs`: what its host takes, None for nothing.
    """

    verify: bool = False
    tcp: TcpOptions = field(default_factory=TcpOptions)
    rdma: RdmaOptions | None = None
    costs: RankCosts | None = None
    setup: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class Worker(Process):
    """A rank's process."""

    rank: int


def start_worker(plan: RankPlan, addresses: Mapping[int, tuple[str, int]], options: WorkerOptions) -> Worker:
    """Forks the process of `plan.rank`. `addresses`: (IP, port) where each rank listens, its own and all it talks to.

    It ends with status 0 after Bye, 1 after Failed.
    """
    process = fork(lambda channel: run_rank(plan, addresses, channel, options))
    return Worker(process.pid, process.control, plan.rank)


def run_rank(
    plan: RankPlan,
    addresses: Mapping[int, tuple[str, int]],
    channel: socket.socket,
    options: WorkerOptions,
    clock: Clock = monotonic,
) -> int:
    """Runs one rank from setup to Bye over `channel`; whatever goes wrong is reported there. Gives the exit status."""

    def work() -> None:
        if options.setup is not None:
            options.setup()
        _run(plan, addresses, channel, options, clock)

    return reporting(plan.rank, lambda failed: control.send(channel, failed), work)


def reporting(rank: int, say: Callable[[control.Failed], None], work: Callable[[], None]) -> int:
    """Does a rank's `work`; whatever goes wrong is said. Gives the exit status."""
    try:
        work()
    except EOFError:
        return 1  # the coordinator is gone, so there is nobody to tell
    except Exception as error:
        say(control.Failed(rank, type(error).__name__, str(error)))
        return 1
    return 0


def _run(
    plan: RankPlan,
    addresses: Mapping[int, tuple[str, int]],
    channel: socket.socket,
    options: WorkerOptions,
    clock: Clock,
) -> None:
    payload = Verified(plan) if options.verify else None
    with _transport(plan, addresses, options, clock) as transport:
        transport.watch(channel)
        control.send(channel, control.Listening(plan.rank))
        _expect(channel, control.Connect)
        transport.connect()
        control.send(channel, control.Ready(plan.rank))
        transport.settle()
        begin = _expect(channel, control.Go).at_ns
        engine = Engine(plan, payload)
        carrier = Handled(transport, Handling(options.costs), engine.added, clock) if options.costs else transport
        driver = _Driver(engine, carrier, channel, clock)
        before = on_processor()
        try:
            driver.run(begin)
        except PeerLostError as error:
            raise PeerLostError(f"{error}; {engine.blocked()}") from error
        strain = strain_since(before, clock() - begin, driver.late_ns)
        checked = 0 if payload is None else payload.checked
        control.send(channel, result(plan.rank, engine.records, begin, strain, transport.flows(), checked))
        transport.settle()
        while not isinstance(message := control.from_coordinator(channel), control.Bye):
            driver.answer(message)
            transport.settle()


def on_processor() -> tuple[int, int]:
    """How long this process has had a processor, and has waited for one (proc(5), schedstat; 0 without), in ns."""
    try:
        _, delayed, _ = Path("/proc/self/schedstat").read_text().split()
    except FileNotFoundError:
        delayed = "0"
    return time.process_time_ns(), int(delayed)


def _transport(
    plan: RankPlan, addresses: Mapping[int, tuple[str, int]], options: WorkerOptions, clock: Clock
) -> TcpTransport | RdmaTransport:
    own = plan.rank, plan.streams(), addresses
    if options.rdma is not None:
        return RdmaTransport(*own, options.rdma, keep=options.verify, clock=clock)
    tcp = options.tcp if plan.sending is None else replace(options.tcp, unsent=UNSENT, ahead=True)
    return TcpTransport(*own, tcp, keep=options.verify, costs=options.costs, clock=clock)


def _expect(channel: socket.socket, wanted: type[Wanted]) -> Wanted:
    message = control.from_coordinator(channel)
    if not isinstance(message, wanted):
        raise BedError(f"expected {wanted.__name__} from the coordinator, got {type(message).__name__}")
    return message


class _Driver:
    """Carries actions from the engine to the transport, and events back."""

    def __init__(self, engine: Engine, transport: Transport, channel: socket.socket, clock: Clock) -> None:
        self.engine = engine
        self._transport = transport
        self._channel = channel
        self._clock = clock
        self.late_ns = 0
        self._begin = self._due = 0
        self._computing = True  # until Go
        self._started, self._posted, self._received = (Counter[Stream]() for _ in range(3))

    def run(self, begin: int) -> None:
        """From `begin` until the program has ended."""
        self._begin = self._due = begin
        engine, started = self.engine, False
        self._transport.set_timer(begin)
        while not engine.finished:
            events = self._transport.wait()
            now = self._clock()
            for event in events:
                if isinstance(event, Received):
                    self._received[event.stream] += 1
                    self._do(engine.received(event.stream, event.key, now))
                elif isinstance(event, Sent):
                    self._do(engine.sent(event.stream, event.key, now))
                elif isinstance(event, ControlReady):
                    self.answer(control.from_coordinator(self._channel))
                else:
                    self.late_ns += now - self._due
                    self._computing = False
                    self._do(engine.timer(now) if started else engine.start(begin))
                    started = True

    def _do(self, actions: list[Action]) -> None:
        transport = self._transport
        for action in actions:
            if isinstance(action, StartSend):
                self._started[action.stream] += 1
                transport.send(action.stream, action.key, action.nbytes, action.data, held=action.held)
            elif isinstance(action, PostRecv):
                self._posted[action.stream] += 1
                transport.post(action.stream, action.key, action.nbytes, action.data)
            elif isinstance(action, SetTimer):
                self._computing, self._due = True, action.at_ns
                transport.set_timer(action.at_ns)
            elif isinstance(action, StepDone):
                at = action.at_ns - self._begin
                control.send(self._channel, control.Progress(self.engine.rank, action.step, at, action.exposed_ns))

    def answer(self, message: control.FromCoordinator) -> None:
        """Says what this rank waits for, and what has moved."""
        engine = self.engine
        if not isinstance(message, control.Ask):
            raise BedError(f"rank {engine.rank}: expected Ask from the coordinator, got {type(message).__name__}")
        moved = tuple(
            control.Connection(*stream, self._started[stream], self._posted[stream], self._received[stream])
            for stream in sorted(self._started.keys() | self._posted.keys())
        )
        status = control.Status(engine.rank, engine.blocked(), self._computing, engine.finished, moved)
        control.send(self._channel, status)


def strain_since(before: tuple[int, int], lasted_ns: int, late_ns: int) -> control.Strain:
    """That of a program which has just ended; `before`: `on_processor` when it began."""
    cpu, delayed = (now - then for now, then in zip(on_processor(), before, strict=True))
    return control.Strain(lasted_ns, cpu, delayed, late_ns)


def result(
    rank: int,
    records: Records,
    begin: int,
    strain: control.Strain,
    flows: tuple[control.Flow, ...] | None,
    verified: int = 0,
) -> control.Result:
    """What a rank says at its end, with times that count from `begin`."""
    return control.Result(
        rank=rank,
        finished_ns=strain.lasted_ns,
        issued=_relative(records.issued, begin),
        began=_relative(records.began, begin),
        ended=_relative(records.ended, begin),
        flows=flows,
        verified=verified,
        messages=_since(records.messages, begin),
        strain=strain,
    )


def _since(messages: array[int], begin: int) -> bytes:
    """`Records.messages`, whose every third number is a time, with times that count from `begin`."""
    messages[2::3] = array("q", [at - begin for at in messages[2::3]])
    return messages.tobytes()


def _relative(times: array[int], begin: int) -> bytes:
    return array("q", [at if at == NEVER else at - begin for at in times]).tobytes()
