"""Measures paths with real sockets. One process holds the sockets of both hosts, so nothing but the path is between them."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from emulator.beds.netns import addresses
from emulator.errors import BedError
from emulator.namespace import inside
from emulator.network import Network
from emulator.probe import (
    IP_UDP_HEADERS,
    TRIPS,
    Arrival,
    Measured,
    Path,
    Report,
    Tolerance,
    judge,
    paths,
    patience_ns,
    train,
)

_PORT = 29400
_RECEIVE_BUFFER = 64 << 20  # bytes: a whole train may come at once
_SO_RCVBUFFORCE = 33  # asm-generic/socket.h
_NUMBER = struct.Struct("=II")  # which round of the train, or _TRIPS; which packet of it
_TRIPS = 2**32 - 1


def measure(path: Path, target: str, namespace: Callable[[str], str]) -> Measured:
    """Probe one path of a bed that is up: `target` is its end's address, `namespace` gives the name of a host's namespace.

    Round trips first, then the train. What doesn't arrive is missing in the result.

    Raises:
        BedError: a namespace is gone, or its kernel refuses to send.
    """
    with _socket(namespace(path.source)) as sender, _socket(namespace(path.target)) as receiver:
        receiver.bind(("", _PORT))
        try:
            sender.connect((target, _PORT))
            trips = [_round_trip(sender, receiver, path, number) for number in range(TRIPS)]
            rounds = tuple(_train(sender, receiver, path, number) for number in range(train(path).rounds))
        except OSError as error:
            raise BedError(f"{path.source} can't send to {path.target}: {error.strerror}") from error
    return Measured(tuple(trip for trip in trips if trip is not None), rounds)


@contextmanager
def _socket(namespace: str) -> Iterator[socket.socket]:
    with inside(namespace):
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    with made:
        made.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER)
        yield made


def _round_trip(sender: socket.socket, receiver: socket.socket, path: Path, trip: int) -> int | None:
    """Nanoseconds until a full packet is answered by another; None where either is lost."""
    packet = _packet(path, _TRIPS, trip)
    began = time.monotonic_ns()
    sender.send(packet)
    source = _await(receiver, packet, path)
    if source is None:
        return None
    receiver.sendto(packet, source)
    return time.monotonic_ns() - began if _await(sender, packet, path) else None


def _await(end: socket.socket, packet: bytes, path: Path) -> tuple[str, int] | None:
    """Where the packet came from; None where it doesn't come. Others are late ones, or their duplicates."""
    while select.select([end], [], [], patience_ns(path) / 1e9)[0]:
        received, source = end.recvfrom(path.mtu)
        if received == packet:
            return str(source[0]), int(source[1])
    return None


def _packet(path: Path, group: int, number: int) -> bytes:
    return _NUMBER.pack(group, number).ljust(path.mtu - IP_UDP_HEADERS, b"\0")


def _train(sender: socket.socket, receiver: socket.socket, path: Path, round_number: int) -> tuple[Arrival, ...]:
    """Send one train as fast as the socket takes it; what arrives of it, until all has or nothing comes any more."""
    limit_s = patience_ns(path) / 1e9
    packets = train(path).packets
    arrivals: list[Arrival] = []
    sent, seen = 0, set[int]()
    while len(seen) < packets:
        arrived, free, _ = select.select([receiver], [sender] if sent < packets else [], [], limit_s)
        if not arrived and not free:
            break
        if arrived:
            of_round, number = _NUMBER.unpack_from(receiver.recv(path.mtu))
            if of_round == round_number:  # a duplicate of an earlier one may be late
                arrivals.append((time.monotonic_ns(), number))
                seen.add(number)
        if free:
            sender.send(_packet(path, round_number, sent))
            sent += 1
    return tuple(arrivals)


def survey(
    network: Network, namespace: Callable[[str], str], tolerance: Tolerance, chosen: Sequence[Path] | None = None
) -> Iterator[Report]:
    """Probe every path of `emulator.probe.paths`, or those `chosen`, on a bed that is up, one after the other.

    Raises:
        NetworkError: there is one host only.
        BedError: as `measure` does.
    """
    for path in paths(network) if chosen is None else chosen:
        for _ in range(tolerance.tries):
            measured = measure(path, addresses(network)[path.target], namespace)
            report = Report(path.source, path.target, judge(path, measured, tolerance))
            if report.holds():
                break
        yield report
