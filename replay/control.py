"""What a worker and its coordinator say to each other: length-prefixed msgpack over one stream socket a worker.

    worker                              coordinator
    Here       (not forked by it)  ->                      `replay.muster` only
                                   <-   Listen (the bed is up)
    Listening  (its port is open)  ->
                                   <-   Connect (all are listening)
    Ready      (all connections up) ->
                                   <-   Go (at a time of the common clock)
    Progress   (each step mark)    ->
                                   <-   Ask    (whenever; answered with Status)
    Status                         ->
    Result                         ->
                                   <-   Bye (all have sent their result)

Failed may come in place of anything a worker says, and is the last it says.

A companion, a process that does something else on the bed for as long as the ranks run, says less:

    companion                           coordinator
    Prepared                       ->
                                   <-   Go
                                   <-   Bye (all ranks have sent their result)
    Done       (then it ends)      ->

Broken may come in place of either.
"""

from __future__ import annotations

import socket
import struct

import msgspec

from replay.transports.rdma.settings import RdmaOptions
from replay.transports.tcp_options import TcpOptions

_LENGTH = struct.Struct("<I")


class Here(msgspec.Struct, frozen=True, tag=True):
    """The rank was started by somebody else, and runs in the network namespace that it handed over (SCM_RIGHTS)."""

    rank: int


class Listen(msgspec.Struct, frozen=True, tag=True):
    """The bed is up: what a forked worker has from its parent, its plan aside. `addresses`: (IP, port) by rank."""

    addresses: dict[int, tuple[str, int]]
    verify: bool
    rdma: RdmaOptions | None = None
    tcp: TcpOptions = TcpOptions()


class Listening(msgspec.Struct, frozen=True, tag=True):
    """The worker accepts connections on its port."""

    rank: int


class Connect(msgspec.Struct, frozen=True, tag=True):
    """Every worker is listening: connect."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Every connection of this worker is up."""

    rank: int


class Go(msgspec.Struct, frozen=True, tag=True):
    """Start the program at `at_ns` of CLOCK_MONOTONIC; all times of the result count from there."""

    at_ns: int


class Progress(msgspec.Struct, frozen=True, tag=True):
    """A step mark was passed `at_ns` after Go; the rank spent `exposed_ns` of the step waiting for the network."""

    rank: int
    step: int
    at_ns: int
    exposed_ns: int


class Ask(msgspec.Struct, frozen=True, tag=True):
    """What are you waiting for?"""


class Connection(msgspec.Struct, frozen=True):
    """How many messages a rank has started to send on one of its connections, how many it has asked for, and got."""

    peer: int
    lane: int
    p2p: bool
    started: int = 0
    posted: int = 0
    received: int = 0


class Status(msgspec.Struct, frozen=True, tag=True):
    """The answer to Ask: in words, and whether the rank's timer runs, its program is at its end, and what has moved.

    `heard`: bytes that have come to the rank's host, where its messages are a library's, which does not tell of its connections.
    """

    rank: int
    text: str
    computing: bool
    finished: bool
    connections: tuple[Connection, ...]
    heard: int | None = None


class Flow(msgspec.Struct, frozen=True):
    """One end of a TCP connection when the run ended, from TCP_INFO (linux/tcp.h). `number`: which of its stream's
    connections it is, from 0 on.

    Bytes are payload as TCP counts it, message headers included; `*_us` are microseconds; `limited` is how long TCP had
    data to send and was held by the receiver's window or by its own send buffer.

    Of an RDMA connection `bytes_*` are payload, `retransmits` packets, `delivered_ce` the marked packets that came, `cwnd` its
    window in packets, and besides: NAKs and CNPs heard, times that the retry timer ran out, and the rate at the end, in bit/s.
    What only TCP knows is None there.
    """

    rank: int
    peer: int
    lane: int
    p2p: bool
    number: int
    congestion: str
    bytes_sent: int
    bytes_acked: int
    bytes_received: int
    bytes_retransmitted: int
    retransmits: int
    lost: int | None
    delivered_ce: int
    rtt_us: int | None
    rtt_var_us: int | None
    min_rtt_us: int | None
    cwnd: int
    ssthresh: int | None
    mss: int
    path_mtu: int
    busy_us: int | None
    receiver_limited_us: int | None
    buffer_limited_us: int | None
    naks: int = 0
    timeouts: int = 0
    cnps: int = 0
    rate_bps: int = 0


class Strain(msgspec.Struct, frozen=True):
    """How a rank's process fared from Go to the end of its program, `lasted_ns`, all of it real time also where the run is
    dilated: its own time on a processor, the time that it waited for one (0 where the kernel does not say), and how late
    its timers were, in all."""

    lasted_ns: int
    cpu_ns: int
    delayed_ns: int
    late_ns: int


class Result(msgspec.Struct, frozen=True, tag=True):
    """Everything measured at one rank.

    `issued`, `began`, `ended`: native int64 per op of the plan, ns after Go, -1 where it was not reached; `messages`: three
    for each message (`replay.engine.Records` says what they mean). `finished_ns`: when the program ended; `flows`: None where
    the connections are a library's, which does not tell of them; `verified`: elements compared with `--verify`, else 0.
    """

    rank: int
    finished_ns: int
    issued: bytes
    began: bytes
    ended: bytes
    flows: tuple[Flow, ...] | None
    verified: int
    messages: bytes = b""
    strain: Strain = Strain(0, 0, 0, 0)


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The worker gives up. `kind` is the error's class: TraceError, NetworkError, MachineError, BedError, or another (a
    bug).
    """

    rank: int
    kind: str
    text: str


class Bye(msgspec.Struct, frozen=True, tag=True):
    """Close everything and end."""


class Prepared(msgspec.Struct, frozen=True, tag=True):
    """The companion can start at Go."""


class Carried(msgspec.Struct, frozen=True):
    """What one entry of a network's background traffic has carried between two hosts until the run ended.

    `entry`: its place in the network's list, from 0 on. Bytes are payload. Sent is what a socket of the source has taken,
    received what the target has read; what was under way when the run ended is in the first only. A flow is a TCP
    connection, or packets of UDP that belong together, and counts as soon as it has begun.
    """

    entry: int
    kind: str
    transport: str
    source: str
    target: str
    flows: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0


class Done(msgspec.Struct, frozen=True, tag=True):
    """What a companion has done. `carried`: its end of the background traffic; `missed`: packets that a capture lost."""

    carried: tuple[Carried, ...] = ()
    missed: int = 0


class Broken(msgspec.Struct, frozen=True, tag=True):
    """The companion gives up; `kind` as in Failed."""

    kind: str
    text: str


FromCompanion = Prepared | Done | Broken
FromWorker = Here | Listening | Ready | Progress | Status | Result | Failed
FromCoordinator = Listen | Connect | Go | Ask | Bye

_from_worker = msgspec.msgpack.Decoder(FromWorker)
_from_companion = msgspec.msgpack.Decoder(FromCompanion)
_from_coordinator = msgspec.msgpack.Decoder(FromCoordinator)


def send(control: socket.socket, message: FromWorker | FromCompanion | FromCoordinator) -> None:
    """Sends one message; blocks until it is handed over."""
    data = msgspec.msgpack.encode(message)
    control.sendall(_LENGTH.pack(len(data)) + data)


def from_worker(control: socket.socket) -> FromWorker:
    """The next message of a worker; EOFError if the worker is gone."""
    return _from_worker.decode(_read(control))


def from_companion(control: socket.socket) -> FromCompanion:
    """The next message of a companion; EOFError if it is gone."""
    return _from_companion.decode(_read(control))


def from_coordinator(control: socket.socket) -> FromCoordinator:
    """The next message of the coordinator; EOFError if it is gone."""
    return _from_coordinator.decode(_read(control))


def _read(control: socket.socket) -> bytes:
    (length,) = _LENGTH.unpack(_exactly(control, _LENGTH.size))
    return _exactly(control, length)


def _exactly(control: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        more = control.recv(size - len(data))
        if not more:
            raise EOFError("the other end of the control channel has closed it")
        data += more
    return bytes(data)
