"""`bulk.py LINK BYTES [FIDELITY [SEED [CONGESTION]]]`: one TCP transfer from `a` to `b`, and what each direction of the link
carried."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

from tests.guests.pair import Task, pair, receive_bulk, report, send_bulk

if __name__ == "__main__":
    link, size = json.loads(sys.argv[1]), int(sys.argv[2])
    options: dict[str, Any] = dict(zip(("fidelity", "seed", "congestion"), sys.argv[3:], strict=False))
    tcp = {"congestion": options.get("congestion", "cubic")}
    with pair(link, options.get("fidelity"), seed=int(options.get("seed", 1)), tcp=tcp) as bed:
        receiver = Task(bed, "b", lambda: receive_bulk(size))
        sender = Task(bed, "a", lambda: send_bulk(bed.address("b"), size))
        progress, (retransmits, needless) = receiver.result(), sender.result()
        ways = {way.source: asdict(way) for way in bed.counters()}
    # Whole steady state in two points: slow start is over after a quarter, the last bytes wait for nothing.
    middle = next(index for index, (_, have) in enumerate(progress) if have >= size / 4)
    report(
        {
            "start": progress[0],
            "middle": progress[middle],
            "end": progress[-1],
            "retransmits": retransmits,
            "needless": needless,
            "up": ways["a"],
            "down": ways["b"],
        }
    )
