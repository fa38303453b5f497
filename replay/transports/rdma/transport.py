"""Messages over UDP as a card's reliable connections carry them: what `sender` and `receiver` say, on the wire.

A connection has a UDP socket each way of its own, whose packets say that they can be marked (ECT(0)); replies go from the
rank's one address to the other's, so that they don't wait behind data. The card's queue (fq) lets connections take turns. One
that is held to a rate is held here: the kernel lets the pacing rate of a UDP socket only fall. A message is its key and its
size (16 bytes) and its bytes, cut into packets of its own.

A receiver takes what comes, posted or not, as cards write into memory that was registered before.

Where the fabric is lossless, all connections of a rank share one credit, the room that its switch's port has for it: who finds it
used up waits for whatever is in front of it to leave the network, wherever that goes. So nothing overflows, and a flow to an
idle host is held up by one to a busy host (head-of-line blocking), as by a card that is paused (IEEE 802.1Qbb) or has no credits.
"""

from __future__ import annotations

import select
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing

from emulator.errors import BedError
from replay.control import Flow
from replay.plan import Stream
from replay.transports.endpoint import Endpoint, PeerLostError
from replay.transports.events import ControlReady, Event, Received, Sent, TimerExpired
from replay.transports.rdma.dcqcn import Dcqcn
from replay.transports.rdma.packets import (
    ASKS,
    CNP,
    FIRST,
    HEADER_BYTES,
    IP_UDP_BYTES,
    Reply,
    data_header,
    decode_reply,
    encode_reply,
    read_header,
)
from replay.transports.rdma.receiver import Payload, Receiver
from replay.transports.rdma.sender import Limits, Sender, Train
from replay.transports.rdma.settings import PAYLOAD, TRAIN_BYTES, RdmaOptions
from replay.transports.rdma.wire import UdpWire
from replay.transports.timer import Timer

_HEAD = struct.Struct("<QQ")
_HELLO = struct.Struct("<4sIiIIHHH")
_MAGIC = b"TBRD"
_AGAIN_MS = 50
_MOST_SEGMENTS = 64  # UDP_MAX_SEGMENTS, linux/udp.h
_ROOM = 32 << 20
_PACED = 2
"""Packets that a connection sends at once while it is held to a rate."""


class _Connection:
    """One stream: its two ends here, the messages on their way, and what has come of the one that is coming."""

    def __init__(self, number: int, stream: Stream, wire: UdpWire, options: RdmaOptions) -> None:
        self.number = number
        self.stream = stream
        self.wire = wire
        self.theirs = -1  # the other end's number for it
        self.knows = False  # the other end has ours
        self.payload = self.train = 1
        self.receiver = Receiver(options.recovery, notify=options.dcqcn)
        self.rate = Dcqcn(options.line)
        self.free_at = 0
        self.sender: Sender
        self.outgoing: dict[int, tuple[bytes, int, memoryview | None]] = {}
        self.posted: dict[int, tuple[int, memoryview | None]] = {}
        self.early: dict[int, tuple[int, bytearray]] = {}
        self.coming: tuple[int, int] | None = None
        self.kept = bytearray()
        self.left = 0
        self.cnps = self.bytes_sent = self.bytes_received = self.bytes_acked = 0

    def open(self, options: RdmaOptions) -> None:
        """The path is known: packets, window."""
        self.payload = min(PAYLOAD, self.wire.mtu() - IP_UDP_BYTES - HEADER_BYTES)
        self.train = min(_MOST_SEGMENTS, TRAIN_BYTES // (self.payload + HEADER_BYTES))
        packets = max(2, -(-options.window // (self.payload + HEADER_BYTES + IP_UDP_BYTES)))
        self.sender = Sender(options.recovery, Limits(packets, max(1, packets // 5), options.retry_ns))

    def wait_ns(self) -> int:
        """How long what is under way takes to leave at the connection's rate."""
        return int(self.sender.under_way * self.payload * 8e9 / self.rate.rate)


class RdmaTransport(Endpoint):
    """The connections of one rank, with the interface of `replay.transports.tcp.TcpTransport`, whose arguments these are.

    PeerLostError for a rank that is gone, BedError for anything else.
    """

    def __init__(
        self,
        rank: int,
        streams: Sequence[Stream],
        addresses: Mapping[int, tuple[str, int]],
        options: RdmaOptions,
        *,
        keep: bool = False,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        super().__init__(rank)
        self._addresses = addresses
        self._options = options
        self._keep = keep
        self._clock = clock
        self._armed: int | None = None
        self._zeros = memoryview(bytes(PAYLOAD))
        room = max(_ROOM, 8 * options.window)
        with ExitStack() as opened:
            self._timer = opened.enter_context(closing(Timer()))
            self._retry = opened.enter_context(closing(Timer()))
            self._epoll = opened.enter_context(select.epoll())
            try:
                self._door = opened.enter_context(closing(UdpWire(*addresses[rank], room, trains=False)))
                wires = [
                    opened.enter_context(closing(UdpWire(addresses[rank][0], 0, room, trains=options.trains)))
                    for _ in streams
                ]
            except OSError as error:
                raise BedError(f"rank {rank} can't listen at {addresses[rank]}: {error.strerror}") from error
            for timer in (self._timer, self._retry):
                self._epoll.register(timer.fd, select.EPOLLIN | select.EPOLLET)
            self._epoll.register(self._door.fileno(), select.EPOLLIN)
            self._list = [_Connection(n, *pair, options) for n, pair in enumerate(zip(streams, wires, strict=True))]
            self._opened = opened.pop_all()
        self._connections = {connection.stream: connection for connection in self._list}
        self._by_fd = {connection.wire.fileno(): connection for connection in self._list}
        self._turns: deque[_Connection] = deque()

    def connect(self) -> None:
        """Brings up every stream: both ends tell their socket and number until they know that the other has heard it."""
        ask = select.poll()
        ask.register(self._door.fileno(), select.POLLIN)
        while missing := [one for one in self._list if one.theirs < 0 or not one.knows]:
            for connection in missing:
                self._greet(connection)
            while ask.poll(_AGAIN_MS):
                packet, _, _ = self._door.receive()
                if bytes(packet[:4]) == _MAGIC:
                    self._greeted(packet)
                if all(one.theirs >= 0 and one.knows for one in self._list):
                    break
        for connection in self._list:
            connection.open(self._options)
            self._epoll.register(connection.wire.fileno(), select.EPOLLIN)

    def _greet(self, connection: _Connection) -> None:
        stream = connection.stream
        port = connection.wire.socket.getsockname()[1]
        fields = (
            self._rank,
            stream.lane,
            stream.p2p,
            connection.number,
            port,
            connection.theirs >= 0,
            not connection.knows,
        )
        self._door.socket.sendto(_HELLO.pack(_MAGIC, *fields), self._addresses[stream.peer])

    def _greeted(self, packet: memoryview) -> None:
        _, peer, lane, p2p, number, port, knows, asks = _HELLO.unpack(packet)
        connection = self._connections.get(Stream(peer, lane, bool(p2p)))
        if connection is None:
            raise BedError(f"rank {self._rank}: rank {peer} connected, which is not expected")
        if connection.theirs < 0:
            connection.wire.socket.connect((self._addresses[peer][0], port))
            connection.theirs = number
        connection.knows = connection.knows or bool(knows)
        if asks:
            self._greet(connection)

    def send(self, stream: Stream, key: int, nbytes: int, data: memoryview | None, *, held: bool = False) -> None:
        """Queues a message behind those of its stream; without `data`, any `nbytes` bytes. All are `held`: sent when they are
        acknowledged."""
        connection = self._connections[stream]
        connection.outgoing[key] = _HEAD.pack(key, nbytes), nbytes, data
        connection.sender.queue(key, -(-(_HEAD.size + nbytes) // connection.payload))
        self._want(connection)
        self._pump()

    def post(self, stream: Stream, key: int, nbytes: int, data: memoryview | None) -> None:
        """Expects message `key`; its bytes go to `data`, or nowhere."""
        connection = self._connections[stream]
        connection.posted[key] = nbytes, data
        if key in connection.early:
            self._deliver(connection, key, *connection.early.pop(key))

    def settle(self) -> None:
        """Answers the other ranks until the watched socket can be read: they may lack what was lost."""
        while not any(isinstance(event, ControlReady) for event in self.wait()):
            pass

    def wait(self) -> list[Event]:
        """Blocks until something has happened. Call it again only when every event has been dealt with."""
        while not self._events:
            for fd, _ in self._epoll.poll():
                if fd == self._timer.fd:
                    self._events.append(TimerExpired())
                elif fd == self._control:
                    self._events.append(ControlReady())
                else:
                    now = self._clock()
                    try:
                        self._ready(fd, now)
                    except ConnectionRefusedError as error:
                        raise PeerLostError(f"rank {self._rank} lost its connection to a rank ({error})") from error
            self._pump()
        events, self._events = self._events, []
        return events

    def _ready(self, fd: int, now: int) -> None:
        if fd == self._retry.fd:
            self._armed = None
            self._expire(now)
        elif fd == self._door.fileno():
            packet, _, _ = self._door.receive()
            if bytes(packet[:4]) == _MAGIC:
                self._greeted(packet)
            elif packet:
                _, _, number, _ = read_header(packet)
                connection = self._list[number]
                self._heard(connection, decode_reply(packet, connection.sender.acknowledged), now)
        else:
            self._data(self._by_fd[fd], now)

    def _expire(self, now: int) -> None:
        for connection in self._list:
            connection.rate.expire(now)
            deadline = connection.sender.deadline
            if deadline is not None and deadline <= now:
                connection.sender.expire(now, connection.wait_ns())
            self._want(connection)

    def _heard(self, connection: _Connection, reply: Reply, now: int) -> None:
        if reply.opcode == CNP:
            connection.cnps += 1
            connection.rate.notified(now)
            return
        for key in connection.sender.heard(reply, now, connection.wait_ns()):
            connection.bytes_acked += connection.outgoing.pop(key)[1]
            self._events.append(Sent(connection.stream, key))
        # Room on one connection is room for all, where they share credit.
        self._want(connection)

    def _data(self, connection: _Connection, now: int) -> None:
        packets, segment, marked = connection.wire.receive()
        near = connection.receiver
        for start in range(0, len(packets), segment or 1):
            packet = packets[start : start + segment]
            _, flags, _, psn = read_header(packet)
            size = len(packet) - HEADER_BYTES
            count = near.expected + ((psn - near.expected + (1 << 23)) & 0xFFFFFF) - (1 << 23)
            wanted = self._keep or flags & FIRST
            payload = (flags, size, bytes(packet[HEADER_BYTES:]) if wanted else None)
            ready, replies = near.receive(count, payload, marked, now)
            for one in ready:
                self._take(connection, one)
            for reply in replies:
                self._door.socket.sendto(
                    encode_reply(connection.theirs, reply), self._addresses[connection.stream.peer]
                )

    def _take(self, connection: _Connection, payload: Payload) -> None:
        """The next payload in order: of a message that begins, or of the one that is coming."""
        flags, size, data = payload
        if flags & FIRST:
            assert data is not None
            connection.coming = _HEAD.unpack_from(data)
            connection.left = connection.coming[1]
            connection.kept = bytearray()
            size, data = size - _HEAD.size, data[_HEAD.size :]
        assert connection.coming is not None
        connection.left -= size
        connection.bytes_received += size
        if self._keep and data is not None:
            connection.kept += data
        if connection.left == 0:
            key, nbytes = connection.coming
            if key in connection.posted:
                self._deliver(connection, key, nbytes, connection.kept)
            else:
                connection.early[key] = nbytes, connection.kept

    def _deliver(self, connection: _Connection, key: int, nbytes: int, kept: bytearray) -> None:
        expected, data = connection.posted.pop(key)
        if expected != nbytes:
            raise self._wrong_size(connection.stream.peer, key, nbytes, expected)
        if data is not None:
            data[:] = kept
        self._events.append(Received(connection.stream, key))

    def _want(self, connection: _Connection) -> None:
        if connection not in self._turns:
            self._turns.append(connection)

    def _pump(self) -> None:
        """Sends what may be sent; connections take turns, a train each. Then sees to the timer."""
        now = self._clock()
        waiting: deque[_Connection] = deque()
        while self._turns:
            connection = self._turns.popleft()
            most = connection.train
            if connection.rate.deadline is not None:
                most = _PACED
                if connection.free_at > now:
                    waiting.append(connection)
                    continue
            if self._options.credit:
                used = sum(one.sender.under_way * (one.payload + HEADER_BYTES + IP_UDP_BYTES) for one in self._list)
                room = (self._options.credit - used) // (connection.payload + HEADER_BYTES + IP_UDP_BYTES)
                if room < 1 and used:
                    waiting.append(connection)
                    continue
                most = min(most, max(1, room))
            if (train := connection.sender.take(most, now, connection.wait_ns())) is not None:
                self._transmit(connection, train)
                self._turns.append(connection)
        self._turns = waiting
        self._arm()

    def _transmit(self, connection: _Connection, train: Train) -> None:
        head, nbytes, data = connection.outgoing[train.key]
        whole, size = _HEAD.size + nbytes, connection.payload
        parts: list[bytes | memoryview] = []
        total = 0
        for place in range(train.index, train.index + train.count):
            first, end = place * size, min((place + 1) * size, whole)
            last = place == train.index + train.count - 1
            flags = (0 if place else FIRST) | (ASKS if train.asks and last else 0)
            parts.append(data_header(connection.theirs, train.first + place - train.index, flags))
            if not place:
                parts.append(head)
                first = _HEAD.size
            parts.append(self._zeros[: end - first] if data is None else data[first - _HEAD.size : end - _HEAD.size])
            total += end - first
        connection.bytes_sent += total
        connection.rate.sent(total)
        now = self._clock()
        connection.free_at = max(now, connection.free_at) + int(total * 8e9 / connection.rate.rate)
        connection.wire.send(parts, size + HEADER_BYTES, train.count)

    def _arm(self) -> None:
        """The timer runs to the first deadline; a later one is looked at when it gets there."""
        deadlines = [at for one in self._list for at in (one.sender.deadline, one.rate.deadline) if at is not None]
        deadlines += [one.free_at for one in self._turns if one.rate.deadline is not None]
        if deadlines and (self._armed is None or min(deadlines) < self._armed):
            self._armed = min(deadlines)
            self._retry.set(self._armed)

    def flows(self) -> tuple[Flow, ...]:
        """What this end of every connection has done."""
        return tuple(self._flow(connection) for connection in self._list)

    def _flow(self, one: _Connection) -> Flow:
        options, sender = self._options, one.sender
        return Flow(
            rank=self._rank,
            peer=one.stream.peer,
            lane=one.stream.lane,
            p2p=one.stream.p2p,
            number=0,
            congestion=f"rdma {options.recovery}" + (" dcqcn" if options.dcqcn else ""),
            bytes_sent=one.bytes_sent,
            bytes_acked=one.bytes_acked,
            bytes_received=one.bytes_received,
            bytes_retransmitted=sender.retransmitted * one.payload,
            retransmits=sender.retransmitted,
            lost=None,
            delivered_ce=one.receiver.marks,
            rtt_us=None,
            rtt_var_us=None,
            min_rtt_us=None,
            cwnd=-(-options.window // one.payload),
            ssthresh=None,
            mss=one.payload,
            path_mtu=one.wire.mtu(),
            busy_us=None,
            receiver_limited_us=None,
            buffer_limited_us=None,
            naks=sender.naks,
            timeouts=sender.timeouts,
            cnps=one.cnps,
            rate_bps=int(one.rate.rate),
        )
