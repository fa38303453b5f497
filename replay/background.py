"""A network's background traffic: one process on each host that sends or receives some, over the kernel's UDP and TCP.

What is sent when is decided beforehand (`emulator.traffic_schedule`); a timerfd says when it is due, in virtual time to the
nanosecond. A flow of TCP is a connection of its own.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial

import msgspec

from emulator.beds.bed import Bed
from emulator.traffic import Traffic
from emulator.traffic_schedule import Piece, pieces
from replay.companions import Companion, Task
from replay.control import Carried, Done
from replay.transports.timer import Timer
from replay.worker import monotonic

_FIRST_PORT = 20_000
"""Of the first entry. They end below the ports that the kernel draws (32768 on) and those of the ranks (29500 on)."""
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33  # asm-generic/socket.h
_BUFFER = 64 << 20
"""Bytes that UDP sockets may hold: who sends at a pace does not wait, and who receives is not woken for each packet."""
_CHUNK = 1 << 20
_PAUSE_NS = 1_000_000
"""From the first packet of UDP that has come until a host reads all that has: each wake costs wall-clock time."""


def companions(bed: Bed) -> list[Companion]:
    """A companion for each host of the bed's network that has a part in its background traffic."""
    traffic = bed.network.traffic
    hosts = [host.name for host in bed.network.hosts]
    busy = {name for entry in traffic for name in (*entry.sources, *entry.targets)}
    return [
        Companion(f"the background traffic of host {name}", partial(_prepare, bed, name))
        for name in hosts
        if name in busy
    ]


def totals(done: Iterable[Done]) -> tuple[Carried, ...]:
    """What both ends of each pair say, together; sorted by entry, source and target."""
    found: dict[tuple[int, str, str], Carried] = {}
    for carried in (each for one in done for each in one.carried):
        key = carried.entry, carried.source, carried.target
        both = found.get(key)
        found[key] = carried if both is None else _together(both, carried)
    return tuple(found[key] for key in sorted(found))


def _together(one: Carried, other: Carried) -> Carried:
    counted = ("flows", "sent_bytes", "received_bytes")
    return msgspec.structs.replace(one, **{name: getattr(one, name) + getattr(other, name) for name in counted})


@contextmanager
def _prepare(bed: Bed, host: str) -> Iterator[Task]:
    """On the host, with its ports open: what it does from Go to Bye."""
    bed.enter(host)
    with ExitStack() as opened:
        yield _Host(bed, host, opened).run


@dataclass(slots=True)
class _Connection:
    """One that sends, and the bytes that it has not taken yet. `ends`: no more will come."""

    socket: socket.socket
    count: _Count
    left: int = 0
    ends: bool = False


@dataclass(slots=True)
class _Count:
    flows: int = 0
    sent: int = 0
    received: int = 0


class _Host:
    """One host's sockets, and what they have carried. What is still open at the end is closed with the process."""

    def __init__(self, bed: Bed, host: str, opened: ExitStack) -> None:
        self._host = host
        self._traffic = bed.network.traffic
        self._addresses = {each.name: bed.address(each.name) for each in bed.network.hosts}
        self._names = {address: name for name, address in self._addresses.items()}
        self._coming = pieces(bed.network, host)
        self._next = next(self._coming, None)
        self._start = 0
        self._zeros = memoryview(bytes(_CHUNK))
        self._sink = bytearray(_CHUNK)
        self._counts = {
            (entry, *pair): _Count()
            for entry, traffic in enumerate(self._traffic)
            for pair in traffic.pairs
            if host in pair
        }
        self._connections: dict[tuple[int, str, int], _Connection] = {}
        self._datagrams: dict[int, socket.socket] = {}  # by entry: those that receive
        self._ready: dict[int, Callable[[], None]] = {}
        self._epoll = opened.enter_context(select.epoll())
        self._timer, self._pause = (opened.enter_context(closing(Timer())) for _ in range(2))
        # Edge-triggered: setting a timer anew is all it takes to hear of it again.
        self._watch(self._timer.fd, select.EPOLLIN | select.EPOLLET, self._send_due)
        self._watch(self._pause.fd, select.EPOLLIN | select.EPOLLET, self._drain)
        self._sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._sender.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _BUFFER)
        for entry, traffic in enumerate(self._traffic):
            if any(target == host for _, target in traffic.pairs):
                self._open(entry, traffic)

    def run(self, channel: socket.socket, start_ns: int) -> Done:
        """From Go at `start_ns` until `channel` has something to read."""
        over: list[bool] = []
        self._watch(channel.fileno(), select.EPOLLIN, partial(over.append, True))
        self._start = start_ns
        self._wind()
        while not over:
            for fd, _ in self._epoll.poll():
                if fd in self._ready:  # another report may have closed it
                    self._ready[fd]()
        self._drain()
        return Done(
            carried=tuple(
                Carried(
                    entry=entry,
                    kind=self._traffic[entry].kind,
                    transport=self._traffic[entry].transport,
                    source=source,
                    target=target,
                    flows=count.flows,
                    sent_bytes=count.sent,
                    received_bytes=count.received,
                )
                for (entry, source, target), count in self._counts.items()
            )
        )

    def _watch(self, fd: int, mask: int, ready: Callable[[], None]) -> None:
        self._epoll.register(fd, mask)
        self._ready[fd] = ready

    def _forget(self, sock: socket.socket) -> None:
        del self._ready[sock.fileno()]
        sock.close()

    def _open(self, entry: int, traffic: Traffic) -> None:
        """The port where this host receives what an entry sends."""
        kind = socket.SOCK_DGRAM if traffic.transport == "udp" else socket.SOCK_STREAM
        sock = socket.socket(socket.AF_INET, kind | socket.SOCK_NONBLOCK)
        if traffic.transport == "udp":
            sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
        sock.bind((self._addresses[self._host], _FIRST_PORT + entry))
        if traffic.transport == "udp":
            self._datagrams[entry] = sock
            self._watch(sock.fileno(), select.EPOLLIN | select.EPOLLONESHOT, self._pause_then_drain)
        else:
            sock.listen(socket.SOMAXCONN)
            self._watch(sock.fileno(), select.EPOLLIN, partial(self._accept, entry, sock))

    def _wind(self) -> None:
        if self._next is not None:
            self._timer.set(self._start + self._next.at)

    def _send_due(self) -> None:
        now = monotonic() - self._start
        while self._next is not None and self._next.at <= now:
            self._send(self._next)
            self._next = next(self._coming, None)
        self._wind()

    def _send(self, piece: Piece) -> None:
        count = self._counts[piece.entry, self._host, piece.target]
        count.flows = max(count.flows, piece.flow + 1)
        address = self._addresses[piece.target], _FIRST_PORT + piece.entry
        if self._traffic[piece.entry].transport == "udp":
            with suppress(BlockingIOError):  # the host's own card is full: what isn't sent isn't counted
                count.sent += self._sender.sendto(self._zeros[: piece.nbytes], address)
            return
        key = piece.entry, piece.target, piece.flow
        if key not in self._connections:
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            sock.connect_ex(address)
            self._connections[key] = _Connection(sock, count)
            self._watch(sock.fileno(), select.EPOLLOUT | select.EPOLLET, partial(self._push, key))
        connection = self._connections[key]
        connection.left += piece.nbytes
        connection.ends = piece.ends
        self._push(key)

    def _push(self, key: tuple[int, str, int]) -> None:
        """Give a connection what it takes. One that TCP has given up, as over a link that is down, ends its flow."""
        connection = self._connections[key]
        try:
            while connection.left:
                taken = connection.socket.send(self._zeros[: connection.left])
                connection.count.sent += taken
                connection.left -= taken
            done = connection.ends
        except BlockingIOError:
            done = False
        except OSError:
            done = True
        if done:
            del self._connections[key]
            self._forget(connection.socket)

    def _accept(self, entry: int, listener: socket.socket) -> None:
        sock, (address, _) = listener.accept()
        sock.setblocking(False)
        count = self._counts[entry, self._names[address], self._host]
        self._watch(sock.fileno(), select.EPOLLIN, partial(self._take, sock, count))

    def _take(self, sock: socket.socket, count: _Count) -> None:
        try:
            size = sock.recv_into(self._sink, _CHUNK, socket.MSG_TRUNC)
        except ConnectionError:
            size = 0
        count.received += size
        if not size:
            self._forget(sock)

    def _pause_then_drain(self) -> None:
        self._pause.set(monotonic() + _PAUSE_NS)

    def _drain(self) -> None:
        """Read all packets that have come, and hear of the next one that does."""
        for entry, sock in self._datagrams.items():
            with suppress(BlockingIOError):
                while True:
                    size, (address, _) = sock.recvfrom_into(self._sink, 1, socket.MSG_TRUNC)
                    self._counts[entry, self._names[address], self._host].received += size
            self._epoll.modify(sock.fileno(), select.EPOLLIN | select.EPOLLONESHOT)
