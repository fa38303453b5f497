"""`congestion.py NETWORK PAIRS SIZE EVERY`: TCP transfers of SIZE bytes at once, one for each [from, to] of PAIRS, which meet on
the way to the last one's target, while the network's events happen; what the link there had counted every EVERY ns until they
ended, and how many segments were sent again because they were lost."""

from __future__ import annotations

import json
import select
import sys
import time
from contextlib import closing
from functools import partial

from emulator.beds.bed import LinkCounters
from emulator.beds.netns import NetnsBed
from emulator.ledger import Ledger
from emulator.network import from_dict
from replay.director import Director
from tests.guests.pair import Task, receive_bulk, report, send_bulk

if __name__ == "__main__":
    network, pairs = from_dict(json.loads(sys.argv[1])), json.loads(sys.argv[2])
    size, every_s = int(sys.argv[3]), int(sys.argv[4]) / 1e9
    samples: list[tuple[int, LinkCounters]] = []
    with Ledger("guest") as ledger, NetnsBed(network, ledger) as bed, closing(Director(bed)) as director:

        def bottleneck() -> LinkCounters:
            (way,) = (way for way in bed.counters() if way.target == pairs[-1][1])
            return way

        receivers = [Task(bed, target, partial(receive_bulk, size, port)) for port, (_, target) in enumerate(pairs)]
        senders = [
            Task(bed, source, partial(send_bulk, bed.address(target), size, port))
            for port, (source, target) in enumerate(pairs)
        ]
        pipes: list[object] = [sender.pipe for sender in senders]
        start = time.monotonic_ns()
        director.start(start)
        ready: list[object] = []
        while not all(pipe in ready for pipe in pipes):
            ready, _, _ = select.select([*pipes, director.fd], [], [], 0)
            if director.fd in ready:
                director.act(time.monotonic_ns())
            samples.append((time.monotonic_ns() - start, bottleneck()))
            time.sleep(every_s)
        lost = sum(again - needless for again, needless in (sender.result() for sender in senders))
        for receiver in receivers:
            receiver.result()
    columns = {
        name: [getattr(way, name) for _, way in samples] for name in ("backlog_bytes", "packets", "drops", "marks")
    }
    report({"at": [at for at, _ in samples], **columns, "lost": lost})
