"""Processes that a run forks from its own: they share what is imported already, and die with their parent."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

_PR_SET_PDEATHSIG = 1


class Held(Protocol):
    """A process that does a part of a run, at the other end of a socket. `pid`: None where it is not our child."""

    @property
    def pid(self) -> int | None: ...

    @property
    def control(self) -> socket.socket: ...

    def fate(self) -> str:
        """How it ended, having hung up without a word."""
        ...

    def close(self) -> None:
        """Hang up: it then ends as soon as it listens."""
        ...

    def end(self) -> None:
        """See to it, after `close`, that no child of ours is left."""
        ...


@dataclass(frozen=True, slots=True)
class Process:
    """A forked process, as its parent holds it. Who starts it must `close` it, and `end` it or wait for `pid`."""

    pid: int
    control: socket.socket

    def close(self) -> None:
        """Hangs up; a process that has not ended yet does so as soon as it listens."""
        # Processes forked later hold a copy of this end, so closing alone would not reach the other.
        self.control.shutdown(socket.SHUT_RDWR)
        self.control.close()

    def fate(self) -> str:
        """How the process ended; waits for it, for its sockets are closed before it is gone."""
        _, status = os.waitpid(self.pid, 0)
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        return f"was killed by signal {number} ({signal.Signals(number).name})" if number else "ended without a word"

    def end(self) -> None:
        """Kill the process if it is left, and wait for it."""
        with suppress(ProcessLookupError, ChildProcessError):
            if os.waitpid(self.pid, os.WNOHANG) == (0, 0):
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)


def fork(work: Callable[[socket.socket], int]) -> Process:
    """Starts a process that does `work` with its end of a socket to this one; what that gives is its exit status.

    The process dies with its parent, also when that is killed.
    """
    ours, theirs = socket.socketpair()
    parent = os.getpid()
    # What the parent holds is shared as long as no collector writes to it.
    gc.collect()
    gc.freeze()
    pid = os.fork()
    if pid:
        theirs.close()
        return Process(pid, ours)
    status = 1
    try:
        ours.close()
        _die_with(parent)
        signal.signal(
            signal.SIGINT, signal.SIG_IGN
        )  # Ctrl-C reaches all of a terminal's processes: the parent ends this one
        gc.disable()
        status = work(theirs)
    finally:
        os._exit(status)


def dismiss(processes: Iterable[Held]) -> None:
    """End every process that is left, and wait for all."""
    left = list(processes)
    for process in left:
        process.close()
    for process in left:
        process.end()


def _die_with(parent: int) -> None:
    """Has the kernel kill this process when its parent dies; `parent` may have died before that could be asked."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) or os.getppid() != parent:
        os._exit(1)
