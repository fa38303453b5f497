"""Processes beside the ranks that last as long as the run: those of the background traffic, and the captures."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import TypeVar

from emulator.errors import BedError, MachineError, NetworkError
from replay import control
from replay.process import Process, dismiss, fork

Task = Callable[[socket.socket, int], control.Done]
"""What a companion does from Go, at that time of CLOCK_MONOTONIC, until there is something to read on the socket: Bye."""
_ERRORS = {error.__name__: error for error in (NetworkError, MachineError, BedError)}
M = TypeVar("M", control.Prepared, control.Done)


@dataclass(frozen=True, slots=True)
class Companion:
    """`name`: what it is called in errors. `prepare` is entered in the new process, and gives what it does there."""

    name: str
    prepare: Callable[[], AbstractContextManager[Task]]


class Companions:
    """The companions of a run. Whoever waits calls `act` whenever `fd` is readable before `finish`; and closes it."""

    def __init__(self, companions: Sequence[Companion], on_start: Callable[[int], None], limit_s: float) -> None:
        """Start them all. `on_start` is called with each process's id; `limit_s`: the longest silence in `prepare`."""
        self._processes: dict[str, Process] = {}
        self._limit_s = limit_s
        self._epoll = select.epoll()
        self.fd = self._epoll.fileno()
        for companion in companions:
            process = fork(lambda channel, companion=companion: _live(companion, channel))  # type: ignore[misc]
            self._processes[companion.name] = process
            self._epoll.register(process.control, select.EPOLLIN)
            on_start(process.pid)

    def prepare(self) -> None:
        """Wait until all can start. Raises what one fails with; BedError where it ends or says nothing."""
        for name in self._processes:
            self._hear(name, control.Prepared)

    def start(self, at_ns: int) -> None:
        """They start at `at_ns` of CLOCK_MONOTONIC."""
        self._tell(control.Go(at_ns))

    def act(self) -> None:
        """One has failed or ended, for else none says anything. Raises as `prepare` does."""
        for name, process in self._processes.items():
            if select.select([process.control], [], [], 0)[0]:
                self._hear(name, control.Prepared)

    def finish(self) -> dict[str, control.Done]:
        """End their work; what each has done, by its name. Raises as `prepare` does."""
        self._tell(control.Bye())
        return {name: self._hear(name, control.Done) for name in self._processes}

    def close(self) -> None:
        """End every process that is left, and wait for all."""
        self._epoll.close()
        dismiss(self._processes.values())

    def _tell(self, message: control.FromCoordinator) -> None:
        for process in self._processes.values():
            with suppress(OSError):  # it died: whoever listens finds out how
                control.send(process.control, message)

    def _hear(self, name: str, kind: type[M]) -> M:
        process = self._processes[name]
        if not select.select([process.control], [], [], self._limit_s)[0]:
            raise BedError(f"{name} says nothing for {self._limit_s:.0f} s")
        try:
            message = control.from_companion(process.control)
        except (EOFError, ConnectionError):
            raise BedError(f"the process of {name} {process.fate()}") from None
        if isinstance(message, control.Broken):
            text = message.text if message.kind in _ERRORS else f"{message.kind}: {message.text}"
            raise _ERRORS.get(message.kind, BedError)(f"{name}: {text}")
        if not isinstance(message, kind):
            raise BedError(f"{name}: expected {kind.__name__}, got {type(message).__name__}")
        return message


def _live(companion: Companion, channel: socket.socket) -> int:
    """The life of a companion's process; its exit status."""
    try:
        with companion.prepare() as task:
            control.send(channel, control.Prepared())
            go = control.from_coordinator(channel)
            if isinstance(go, control.Go):
                control.send(channel, task(channel, go.at_ns))
    except EOFError:
        return 1  # the coordinator is gone, so there is nobody to tell
    except Exception as error:
        control.send(channel, control.Broken(type(error).__name__, str(error)))
        return 1
    return 0
