"""Messages over the kernel's TCP: one connection a stream or several, one epoll loop, payload that Python never touches.

Ahead of each message goes a header of 16 bytes, its key and its size, which the receiver holds against what it expects.
A connection is read only while a receive is posted on it, so a slow receiver holds its sender back as TCP does it. What
then comes first may be a message that is posted later: it is taken all the same, because the one that is waited for
lies behind it. Where a stream has several connections, a message goes over all of them, in parts.

Where hosts take time to copy, a message goes to the kernel in pieces, each when it has been copied, and comes from it in
pieces, none before the one ahead has been copied: copying overlaps the wire, and a slow receiver's window closes.

A system call is what costs time in the lab kernel (wall-clock time; CPU work takes no virtual time): so epoll is asked
first, and a socket is read or written until it was short, not until it says EAGAIN.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial

from emulator.errors import BedError
from replay.collectives.schedule import part
from replay.control import Flow
from replay.costs import Copying, RankCosts, copying
from replay.plan import MESSAGE_BITS, Stream
from replay.transports.acknowledged import acknowledged, number_bytes, want
from replay.transports.alarms import Alarms
from replay.transports.endpoint import Endpoint, PeerLostError
from replay.transports.events import ControlReady, Event, Received, Sent, TimerExpired
from replay.transports.tcp_connection import HEADER, Connection, Incoming, Outgoing, Whole
from replay.transports.tcp_info import flow
from replay.transports.tcp_options import TcpOptions, new_socket
from replay.transports.timer import Timer

_HELLO = struct.Struct("<4sIiHH")
_MAGIC = b"TBED"
_INLINE = 16 << 10
"""Bytes up to which a pretended payload goes out with its header in one call, instead of by sendfile."""
_POOL = 4 << 20
"""Bytes of pretended payload that one sendfile can take, and more than a send buffer grows to."""
_LEAST_PART = 64 << 10
"""Bytes of a message from which on it pays to have more than one connection carry it: NCCL's MIN_CHUNKSIZE (net_socket.cc)."""
_SINK = 64 << 20
"""Bytes that one call can drop. Address space only: with MSG_TRUNC the kernel writes nothing there (tcp(7))."""
_EAGER = 64 << 10
"""Bytes up to which a message is sent without the other end having to take it first: Open MPI's btl_tcp_eager_limit."""
_PIECE = 64 << 10
"""Bytes that a host copies at a time: what the kernel hands over at once at most (GSO_MAX_SIZE, include/linux/netdevice.h)."""


class TcpTransport(Endpoint):
    """The connections of one rank. Listens from its making on; `connect` when every rank does.

    `addresses`: (IP, port) by rank; `keep`: payload is real, so a message that comes before it is posted is kept; `costs`:
    what its host takes, on the clock whose ns `clock` gives.
    MachineError for options the kernel refuses, PeerLostError for a rank that is gone, BedError for anything else.
    """

    def __init__(
        self,
        rank: int,
        streams: Sequence[Stream],
        addresses: Mapping[int, tuple[str, int]],
        options: TcpOptions,
        *,
        keep: bool = False,
        costs: RankCosts | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        super().__init__(rank)
        self._ends = [(stream, number) for stream in streams for number in range(options.streams)]
        self._addresses = addresses
        self._options = options
        self._keep = keep
        self._costs = costs
        self._clock = clock
        self._now = clock()  # when epoll last told something: reading the clock is a system call in the lab kernel
        self._connections: dict[tuple[Stream, int], Connection] = {}
        self._by_fd: dict[int, Connection] = {}
        with ExitStack() as opened:
            self._timer = opened.enter_context(closing(Timer()))
            self._epoll = opened.enter_context(select.epoll())
            # Edge-triggered: setting the timer anew is all it takes to hear of it again.
            self._epoll.register(self._timer.fd, select.EPOLLIN | select.EPOLLET)
            self._copied_timer = opened.enter_context(closing(Timer()))
            self._epoll.register(self._copied_timer.fd, select.EPOLLIN | select.EPOLLET)
            self._alarms = Alarms(self._copied_timer.set)
            self._pool = os.memfd_create("payload")
            opened.callback(os.close, self._pool)
            os.truncate(self._pool, _POOL)
            self._zeros = bytes(_INLINE)
            self._sink = opened.enter_context(mmap.mmap(-1, _SINK, flags=mmap.MAP_PRIVATE))
            self._listener = opened.enter_context(new_socket(addresses[rank][0], options))
            try:
                self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                self._listener.bind(addresses[rank])
                self._listener.listen(max(1, len(self._ends)))
            except OSError as error:
                raise BedError(f"rank {rank} can't listen at {_at(addresses[rank])}: {error.strerror}") from error
            self._opened = opened.pop_all()

    def connect(self) -> None:
        """Brings up every stream: the lower rank of a pair connects, the higher accepts."""
        for end in self._ends:
            if end[0].peer > self._rank:
                self._add(*end, self._opened.enter_context(self._dial(*end)))
        while len(self._connections) < len(self._ends):
            sock, address = self._listener.accept()
            self._opened.enter_context(sock)
            hello = sock.recv(_HELLO.size, socket.MSG_WAITALL)
            magic, peer, lane, p2p, number = _HELLO.unpack(hello) if len(hello) == _HELLO.size else (b"", 0, 0, 0, 0)
            end = Stream(peer, lane, bool(p2p)), number
            if magic != _MAGIC or end not in self._ends or end in self._connections:
                raise BedError(f"rank {self._rank}: {_at(address[:2])} connected, which is no rank that is expected")
            self._add(*end, sock)

    def send(self, stream: Stream, key: int, nbytes: int, data: memoryview | None, *, held: bool = False) -> None:
        """Queues a message behind those of its stream; without `data`, any `nbytes` bytes. `held`: it counts as sent when the
        other end has it, if it is large."""
        parts = self._parts(stream, key, nbytes)
        whole, held = Whole(len(parts)), held and nbytes > _EAGER
        for connection, start, size in parts:
            own = None if data is None else data[start : start + size]
            connection.outgoing.append(Outgoing(whole, key, HEADER.pack(key, size), size, own, held))
            if not connection.mask & select.EPOLLOUT and not connection.copying:
                self._write(connection)

    def post(self, stream: Stream, key: int, nbytes: int, data: memoryview | None) -> None:
        """Expects message `key`; its bytes go to `data`, or nowhere."""
        parts = self._parts(stream, key, nbytes)
        whole = Whole(len(parts))
        for connection, start, size in parts:
            posted = Incoming(whole, key, size, None if data is None else data[start : start + size])
            early = connection.early.pop(key, None)
            if early is not None:
                self._deliver(connection, posted, early)
                continue
            connection.posted[key] = posted
            if not connection.paused:
                self._interest(connection, select.EPOLLIN, True)

    def wait(self) -> list[Event]:
        """Blocks until something has happened. Call it again only when every event has been dealt with."""
        while not self._events:
            ready = self._epoll.poll()
            if self._costs:
                self._now = self._clock()
            for fd, mask in ready:
                if fd == self._timer.fd:
                    self._events.append(TimerExpired())
                elif fd == self._copied_timer.fd:
                    self._alarms.ring(self._now)
                elif fd == self._control:
                    self._events.append(ControlReady())
                else:
                    self._ready(self._by_fd[fd], mask)
        events, self._events = self._events, []
        return events

    def settle(self) -> None:
        """The kernel answers the other ranks by itself: there is nothing to wait for."""

    def flows(self) -> tuple[Flow, ...]:
        """TCP_INFO of this end of every connection."""
        return tuple(flow(self._rank, *end, self._connections[end].socket) for end in self._ends)

    def _parts(self, stream: Stream, key: int, nbytes: int) -> list[tuple[Connection, int, int]]:
        """Which connection carries how many bytes from where on of a message: all of them as many, but none fewer than 64 KiB,
        as NCCL has it (net_socket.cc). Who begins changes with the message and with the operation.
        """
        streams = self._options.streams
        count = min(streams, max(1, nbytes // _LEAST_PART))
        first = (key >> MESSAGE_BITS) + key
        return [
            (self._connections[stream, (first + index) % streams], *part(nbytes, count, index))
            for index in range(count)
        ]

    def _dial(self, stream: Stream, number: int) -> socket.socket:
        address = self._addresses[stream.peer]
        sock = new_socket(address[0], self._options)
        try:
            sock.connect(address)
            number_bytes(sock)
        except OSError as error:
            sock.close()
            raise PeerLostError(
                f"rank {self._rank} can't connect to rank {stream.peer} at {_at(address)}: {error.strerror}"
            ) from error
        sock.sendall(_HELLO.pack(_MAGIC, self._rank, stream.lane, stream.p2p, number))
        return sock

    def _add(self, stream: Stream, number: int, sock: socket.socket) -> None:
        sock.setblocking(False)
        connection = Connection(stream, number, sock, copying(self._costs, stream))
        if stream.peer > self._rank:
            connection.written = _HELLO.size
        else:
            try:
                number_bytes(sock)
            except OSError as error:  # it has closed
                raise self._lost(connection, str(error)) from error
        self._connections[stream, number] = self._by_fd[sock.fileno()] = connection
        self._epoll.register(sock.fileno(), connection.mask)

    def _interest(self, connection: Connection, what: int, wanted: bool) -> None:
        mask = connection.mask | what if wanted else connection.mask & ~what
        if mask != connection.mask:
            connection.mask = mask
            self._epoll.modify(connection.socket.fileno(), mask)

    def _ready(self, connection: Connection, mask: int) -> None:
        if mask & select.EPOLLERR and self._acknowledge(connection):
            mask &= ~select.EPOLLERR
        if mask & (select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR):
            raise self._lost(connection, os.strerror(connection.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)))
        if mask & select.EPOLLOUT:
            self._interest(connection, select.EPOLLOUT, False)
            self._write(connection)
        if mask & select.EPOLLIN:
            if connection.into and self._now < connection.taken_at:
                self._pause(connection)
            elif connection.posted or self._options.ahead:
                self._read(connection)
            else:
                self._interest(connection, select.EPOLLIN, False)

    def _write(self, connection: Connection) -> None:
        """Sends what is queued until the socket takes no more, then epoll tells when it does again, or until what has been
        copied is gone.
        """
        while connection.outgoing:
            message = connection.outgoing[0]
            if connection.out and not connection.copied:
                self._copy_out(connection, connection.out, message)
                return
            if message.held and message.left <= min(connection.copied, _POOL):
                want(connection.socket, True)
            try:
                taken, offered = self._push(connection.socket, message, connection.copied)
            except BlockingIOError:
                taken, offered = 0, 1
            except OSError as error:
                raise self._lost(connection, str(error)) from error
            message.done += taken
            connection.written += taken
            connection.copied -= taken
            if taken < offered:
                self._interest(connection, select.EPOLLOUT, True)
                return
            if not message.left:
                connection.outgoing.popleft()
                if message.held:
                    want(connection.socket, False)
                    connection.unacknowledged.append((connection.written, message))
                else:
                    self._sent(connection, message)

    def _sent(self, connection: Connection, message: Outgoing) -> None:
        if message.whole.is_last():
            self._events.append(Sent(connection.stream, message.key))

    def _acknowledge(self, connection: Connection) -> bool:
        """Whether the kernel has told that the other end has more, and not an error."""
        had, have = connection.acknowledged, acknowledged(connection.socket, connection.acknowledged)
        connection.acknowledged = have
        while connection.unacknowledged and connection.unacknowledged[0][0] <= have:
            self._sent(connection, connection.unacknowledged.popleft()[1])
        return have > had

    def _copy_out(self, connection: Connection, lane: Copying, message: Outgoing) -> None:
        piece = min(message.left, _PIECE)

        def copied(now: int) -> None:
            connection.copied, connection.copying = piece, False
            self._write(connection)

        connection.copying = True
        self._alarms.add(lane.take(self._now, piece), copied)

    def _push(self, sock: socket.socket, message: Outgoing, most: int) -> tuple[int, int]:
        """Offers the next bytes of `message`, `most` of them and a header whole; (bytes taken, bytes offered)."""
        left = min(message.left, most)
        if message.done < HEADER.size:
            head = memoryview(message.header)[message.done :]
            if message.data is not None:
                parts = [head, message.data[: left - len(head)]]
            elif message.nbytes <= _INLINE:
                parts = [head, memoryview(self._zeros)[: message.nbytes]]
            else:
                return sock.send(head, socket.MSG_MORE), len(head)
            return sock.sendmsg(parts), left
        if message.data is not None:
            start = message.done - HEADER.size
            return sock.send(message.data[start : start + left]), left
        offered = min(left, _POOL)
        return os.sendfile(sock.fileno(), self._pool, 0, offered), offered

    def _read(self, connection: Connection) -> None:
        """Takes what one report of epoll promises: a header and what has come of its message, or more of that message."""
        came = 0
        try:
            if connection.coming is None:
                connection.header += self._recv(connection, HEADER.size - len(connection.header))
                if len(connection.header) < HEADER.size:
                    return
                came = HEADER.size
                connection.coming = self._announced(connection)
                connection.header.clear()
            message = connection.coming
            if message.left:
                taken = self._take(connection, message)
                came += taken
                message.done += taken
                connection.wake_at(message.left)
        except BlockingIOError:
            # The header ended a segment, and the next has not come; or nothing has come while the last was copied.
            self._interest(connection, select.EPOLLIN, True)
        if connection.into and came:
            connection.taken_at = connection.into.take(self._now, came)
        if connection.coming and not connection.coming.left:
            if connection.into:
                self._pause(connection)
            else:
                self._complete(connection)

    def _pause(self, connection: Connection) -> None:
        """Reads no more until what was read has been copied."""
        connection.paused = True
        self._interest(connection, select.EPOLLIN, False)
        self._alarms.add(connection.taken_at, partial(self._resume, connection))

    def _resume(self, connection: Connection, now: int) -> None:
        """Reads what has come meanwhile, and pauses again, so that epoll need not be told twice of each piece."""
        connection.paused = False
        if connection.coming and not connection.coming.left:
            self._complete(connection)
        if self._options.ahead or connection.posted:
            self._read(connection)
            if not connection.paused and connection.taken_at > now:
                self._pause(connection)
            elif not connection.paused:
                self._interest(connection, select.EPOLLIN, True)

    def _announced(self, connection: Connection) -> Incoming:
        key, nbytes = HEADER.unpack(connection.header)
        message = connection.posted.get(key)
        if message is None or message.nbytes != nbytes:
            return Incoming(Whole(1), key, nbytes, memoryview(bytearray(nbytes)) if self._keep else None)
        return message

    def _complete(self, connection: Connection) -> None:
        message, connection.coming = connection.coming, None
        assert message is not None
        posted = connection.posted.pop(message.key, None)
        if posted is None:
            connection.early[message.key] = message
        else:
            self._deliver(connection, posted, message)

    def _deliver(self, connection: Connection, posted: Incoming, message: Incoming) -> None:
        if posted.nbytes != message.nbytes:
            raise self._wrong_size(connection.stream.peer, message.key, message.nbytes, posted.nbytes)
        if posted is not message and posted.data is not None and message.data is not None:
            posted.data[:] = message.data
        if posted.whole.is_last():
            self._events.append(Received(connection.stream, message.key))

    def _take(self, connection: Connection, message: Incoming) -> int:
        """Reads more of `message` to where it belongs; the number of bytes."""
        most = min(message.left, _PIECE if connection.into else _SINK)
        if message.data is None:
            return self._got(connection, connection.socket.recv_into(self._sink, most, socket.MSG_TRUNC))
        return self._got(connection, connection.socket.recv_into(message.data[message.done : message.done + most]))

    def _recv(self, connection: Connection, size: int) -> bytes:
        data = connection.socket.recv(size)
        self._got(connection, len(data))
        return data

    def _got(self, connection: Connection, size: int) -> int:
        if not size:
            raise self._lost(connection, "end of stream")
        return size

    def _lost(self, connection: Connection, why: str) -> PeerLostError:
        return PeerLostError(f"rank {self._rank} lost its connection to rank {connection.stream.peer} ({why})")


def _at(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
