"""`rtt.py LINK COUNT`: round trips of one UDP packet between two hosts, in ns."""

from __future__ import annotations

import json
import socket
import sys
import time

from tests.guests.pair import PORT, Task, pair, report


def echo(count: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("", PORT))
        for _ in range(count):
            data, source = server.recvfrom(64)
            server.sendto(data, source)


def ask(address: str, count: int) -> list[int]:
    """Each round trip, the first when the other end surely listens."""
    time.sleep(1)
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.connect((address, PORT))
        for _ in range(count):
            sent = time.monotonic_ns()
            client.send(b"x")
            client.recv(64)
            found.append(time.monotonic_ns() - sent)
    return found


if __name__ == "__main__":
    link, count = json.loads(sys.argv[1]), int(sys.argv[2])
    with pair(link) as bed:
        server = Task(bed, "b", lambda: echo(count))
        found = Task(bed, "a", lambda: ask(bed.address("b"), count)).result()
        server.result()
    report(found)
