"""`fabric.py NETWORK PAIRS SIZE`: TCP transfers of SIZE bytes at once, one for each [from, to] of PAIRS; what all took
together (ns), and how many packets each direction of each link has carried."""

from __future__ import annotations

import json
import sys
from functools import partial

from emulator.beds.netns import NetnsBed
from emulator.ledger import Ledger
from emulator.network import from_dict
from tests.guests.pair import Task, receive_bulk, report, send_bulk

if __name__ == "__main__":
    network, pairs, size = from_dict(json.loads(sys.argv[1])), json.loads(sys.argv[2]), int(sys.argv[3])
    with Ledger("guest") as ledger, NetnsBed(network, ledger) as bed:
        receivers = [Task(bed, target, partial(receive_bulk, size)) for _, target in pairs]
        senders = [Task(bed, source, partial(send_bulk, bed.address(target), size)) for source, target in pairs]
        progress = [receiver.result() for receiver in receivers]
        for sender in senders:
            sender.result()
        packets = [[way.source, way.target, way.packets] for way in bed.counters()]
    began, ended = min(points[0][0] for points in progress), max(points[-1][0] for points in progress)
    report({"took_ns": ended - began, "packets": packets})
