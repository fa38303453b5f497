"""`trips.py NETWORK PAIRS`: the round trip of one UDP packet, in ns, for each [from, to] of PAIRS."""

from __future__ import annotations

import json
import sys
from functools import partial

from emulator.beds.netns import NetnsBed
from emulator.ledger import Ledger
from emulator.network import from_dict
from tests.guests.pair import Task, report
from tests.guests.rtt import ask, echo

if __name__ == "__main__":
    network, pairs = from_dict(json.loads(sys.argv[1])), json.loads(sys.argv[2])
    found = []
    with Ledger("guest") as ledger, NetnsBed(network, ledger) as bed:
        for source, target in pairs:
            server = Task(bed, target, partial(echo, 1))
            found += Task(bed, source, partial(ask, bed.address(target), 1)).result()
            server.result()
    report(found)
