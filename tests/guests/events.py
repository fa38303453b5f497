"""`events.py LINK EVENTS BYTES SAMPLES`: one TCP transfer from `a` to `b` while EVENTS happen; it starts 100 ms after their 0.

Says how many packets had left the link to `b` at each of SAMPLES (ns of the events' time, rising), when `b` had all, and
what the link carried in the end.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from contextlib import closing
from dataclasses import asdict

from emulator.beds.bed import LinkCounters
from emulator.beds.netns import NetnsBed
from replay.director import Director
from replay.transports.timer import Timer
from tests.guests.pair import Task, pair, receive_bulk, report, send_bulk

START_IN_NS, SEND_IN_S = 400_000_000, 0.5


def send_later(address: str, size: int) -> tuple[int, int]:
    time.sleep(SEND_IN_S)
    return send_bulk(address, size)


def sent_by_a(bed: NetnsBed) -> LinkCounters:
    return next(way for way in bed.counters() if way.source == "a")


if __name__ == "__main__":
    link, events, size, times = (json.loads(argument) for argument in sys.argv[1:])
    samples: list[int] = []
    with pair(link, events=events) as bed, closing(Director(bed)) as director, closing(Timer()) as timer:
        start = time.monotonic_ns() + START_IN_NS
        receiver = Task(bed, "b", lambda: receive_bulk(size))
        sender = Task(bed, "a", lambda: send_later(bed.address("b"), size))
        director.start(start)
        ready: list[object] = []
        while receiver.pipe not in ready:
            if len(samples) < len(times):
                timer.set(start + times[len(samples)])
            ready, _, _ = select.select([receiver.pipe, director.fd, timer.fd], [], [])
            if director.fd in ready:
                director.act(time.monotonic_ns())
            if timer.fd in ready:
                os.read(timer.fd, 8)
                samples.append(sent_by_a(bed).packets)
        progress, (retransmits, _) = receiver.result(), sender.result()
        up = asdict(sent_by_a(bed))
    report({"samples": samples, "end": progress[-1][0] - start, "retransmits": retransmits, "up": up})
