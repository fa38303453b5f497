"""Ranks that somebody else starts, as compose does: they report at a socket, each with the namespace that it runs in.

The coordinator's end is `called`; a rank's is `report`, in a process that needs no privilege. What follows is said as a
forked worker says it (`replay.control`). The socket is a file, for the two share no network.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from emulator.errors import BedError
from replay import control
from replay.plan import RankPlan
from replay.worker import WorkerOptions, run_rank

MEETING = Path("/tracebed/meeting/socket")
"""Where the ranks and the coordinator of a compose file meet, in each of their containers."""
_NAMESPACE = b"\0"  # what carries a namespace's descriptor: a stream socket sends none without a byte
LIMIT_S = 60.0
"""How long each side waits for another to come; a daemon starts some ten containers a second."""
_AGAIN_S = 0.05


@dataclass(frozen=True, slots=True)
class Reported:
    """A rank that has reported from its host, in whose namespace it is."""

    rank: int
    host: str
    control: socket.socket
    pid: None = None

    def fate(self) -> str:
        return f"on {self.host} ended without a word"

    def close(self) -> None:
        self.control.close()

    def end(self) -> None:
        """It ends by itself, being hung up on; whoever started it waits for it."""


@dataclass(frozen=True, slots=True)
class Muster:
    """The ranks that have reported, and their hosts' namespaces as files."""

    ranks: Mapping[int, Reported]
    namespaces: Mapping[str, Path]

    def start(self, plan: RankPlan, addresses: Mapping[int, tuple[str, int]], options: WorkerOptions) -> Reported:
        """Set a rank to work, as `replay.worker.start_worker` does; it is on its host already, whose routes choose TCP's
        congestion control.
        """
        reported = self.ranks[plan.rank]
        with suppress(OSError):  # it died: the coordinator finds out
            tcp = replace(options.tcp, congestion=None)
            control.send(reported.control, control.Listen(dict(addresses), options.verify, options.rdma, tcp))
        return reported


@contextmanager
def called(hosts: Mapping[int, str], meeting: Path = MEETING, limit_s: float = LIMIT_S) -> Iterator[Muster]:
    """Waits at the socket `meeting` until every rank has reported; `hosts`: where each is.

    Raises:
        BedError: nobody came for `limit_s` though some are missing, or who reported isn't one of them.
    """
    meeting.unlink(missing_ok=True)  # of a run that was killed
    with ExitStack() as opened:
        door = opened.enter_context(socket.socket(socket.AF_UNIX))
        door.bind(str(meeting))
        opened.callback(meeting.unlink)
        meeting.chmod(0o666)
        door.listen(len(hosts))
        door.settimeout(limit_s)
        ranks: dict[int, Reported] = {}
        namespaces: dict[str, Path] = {}
        while missing := sorted(hosts.keys() - ranks.keys()):
            try:
                channel, namespace = _admit(door)
                opened.callback(channel.close)
                opened.callback(os.close, namespace)
                said = control.from_worker(channel)
            except TimeoutError:
                names = ", ".join(f"{rank} (on {hosts[rank]})" for rank in missing)
                raise BedError(f"waited {limit_s:.0f} s for ranks that have not reported: {names}") from None
            except EOFError:
                continue  # it ended at once, so it will be missed
            if not isinstance(said, control.Here) or said.rank not in missing:
                raise BedError(f"expected a rank of {missing} to report, got {said}")
            channel.settimeout(None)
            ranks[said.rank] = Reported(said.rank, hosts[said.rank], channel)
            namespaces.setdefault(hosts[said.rank], Path(f"/proc/self/fd/{namespace}"))
        yield Muster(ranks, namespaces)


def _admit(door: socket.socket) -> tuple[socket.socket, int]:
    """Who comes next, and its namespace. Raises EOFError, TimeoutError."""
    channel, _ = door.accept()
    channel.settimeout(door.gettimeout())
    _, handles, _, _ = socket.recv_fds(channel, len(_NAMESPACE), 1)
    if not handles:
        channel.close()
        raise EOFError
    return channel, handles[0]


def report(plan: RankPlan, channel: socket.socket) -> int:
    """Runs one rank for the coordinator at the other end of `channel`, from here; gives the exit status."""
    with open("/proc/self/ns/net") as namespace:
        socket.send_fds(channel, [_NAMESPACE], [namespace.fileno()])
    control.send(channel, control.Here(plan.rank))
    try:
        asked = control.from_coordinator(channel)
    except EOFError:
        return 1  # it has given up, and says why
    assert isinstance(asked, control.Listen)
    return run_rank(plan, asked.addresses, channel, WorkerOptions(verify=asked.verify, tcp=asked.tcp, rdma=asked.rdma))


def reach(meeting: Path = MEETING, limit_s: float = LIMIT_S) -> socket.socket:
    """A channel to the coordinator, which may not be there yet. Raises BedError after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while True:
        channel = socket.socket(socket.AF_UNIX)
        try:
            channel.connect(str(meeting))
            return channel
        except (FileNotFoundError, ConnectionRefusedError):
            channel.close()
        if time.monotonic() > deadline:
            raise BedError(f"waited {limit_s:.0f} s for the coordinator at {meeting}")
        time.sleep(_AGAIN_S)
