"""Two hosts, `a` and `b`, on one link, and what the guest scripts do on them. Runs inside the lab kernel."""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from emulator.beds.netns import NetnsBed
from emulator.ledger import Ledger
from emulator.network import from_dict
from emulator.shaping import Fidelity
from tests.guest import RESULT

PORT = 5001
_CHUNK = 1 << 20
_TOTAL_RETRANS, _DSACK_DUPS = 100, 216  # offsets in struct tcp_info (include/uapi/linux/tcp.h)
_FORK = multiprocessing.get_context("fork")


@contextmanager
def pair(link: Mapping[str, object], fidelity: Fidelity | None = None, **network: object) -> Iterator[NetnsBed]:
    """A bed that is up: `a` -- `link` -- `b`."""
    wire = {**link, "ends": ["a", "b"]}
    resolved = from_dict({"hosts": ["a", "b"], "links": {"wire": wire}, **network})
    with Ledger("guest") as ledger, NetnsBed(resolved, ledger, fidelity) as bed:
        yield bed


class Task:
    """`work()` in a process of its own on a host of the bed."""

    def __init__(self, bed: NetnsBed, host: str, work: Callable[[], object]) -> None:
        self.pipe, theirs = _FORK.Pipe(duplex=False)
        self._process = _FORK.Process(target=_on_host, args=(bed, host, work, theirs))
        self._process.start()
        theirs.close()

    def result(self) -> Any:
        """What `work` returned; raises EOFError where it failed."""
        found = self.pipe.recv()
        self._process.join()
        return found


def _on_host(bed: NetnsBed, host: str, work: Callable[[], object], pipe: Any) -> None:
    bed.enter(host)
    pipe.send(work())


def send_bulk(address: str, size: int, port: int = 0) -> tuple[int, int]:
    """Connect, send `size` bytes, wait until the other end has them all.

    Returns how many segments TCP sent again, and how many of them the other end says it had already (RFC 2883).
    """
    with _connect(address, PORT + port) as stream:
        data = memoryview(bytes(_CHUNK))
        left = size
        while left:
            left -= stream.send(data[:left])
        stream.shutdown(socket.SHUT_WR)
        stream.recv(1)
        info = stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _DSACK_DUPS + 4)
    again, needless = (struct.unpack_from("=I", info, offset)[0] for offset in (_TOTAL_RETRANS, _DSACK_DUPS))
    return again, needless


def receive_bulk(size: int, port: int = 0) -> list[tuple[int, int]]:
    """Accept one connection and read `size` bytes: when (ns) how many had come, at each read."""
    progress = []
    with socket.create_server(("", PORT + port)) as server:
        stream, _ = server.accept()
        with stream:
            buffer, have = bytearray(_CHUNK), 0
            while have < size:
                have += stream.recv_into(buffer)
                progress.append((time.monotonic_ns(), have))
    return progress


def _connect(address: str, port: int) -> socket.socket:
    """Connect as soon as the other end listens."""
    while True:
        with suppress(ConnectionRefusedError):
            return socket.create_connection((address, port))
        time.sleep(0.001)


def report(result: object) -> None:
    """What `tests.guest.run_guest` hands to the test."""
    Path(os.environ[RESULT]).write_text(json.dumps(result))
