"""`flood.py LINK COUNT SIZE`: `a` sends COUNT UDP packets of SIZE bytes in no time; how many reach `b`, and which were dropped."""

from __future__ import annotations

import json
import socket
import sys
import time

from tests.guests.pair import PORT, Task, pair, report

ALL_HAVE_COME_S = 60


def count() -> int:
    received = 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("", PORT))
        server.settimeout(ALL_HAVE_COME_S)
        while True:
            try:
                server.recv(2048)
            except TimeoutError:
                return received
            received += 1


def flood(address: str, packets: int, size: int) -> None:
    time.sleep(1)  # by then the other end listens
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.connect((address, PORT))
        for _ in range(packets):
            client.send(bytes(size))


if __name__ == "__main__":
    link, packets, size = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    with pair(link) as bed:
        counter = Task(bed, "b", count)
        Task(bed, "a", lambda: flood(bed.address("b"), packets, size)).result()
        received = counter.result()
        (up,) = (way for way in bed.counters() if way.source == "a")
    report({"received": received, "drops": up.drops})
