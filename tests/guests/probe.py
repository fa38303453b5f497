"""`probe.py BUILT ASKED`: a bed of the one network, two hosts and a link, probed as if it were the other; the verdicts."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from emulator.measure import survey
from emulator.network import from_dict
from emulator.probe import VIRTUAL
from tests.guests.pair import pair, report

if __name__ == "__main__":
    built, asked = map(json.loads, sys.argv[1:])
    network = from_dict({"hosts": ["a", "b"], "links": {"wire": {**asked, "ends": ["a", "b"]}}})
    with pair(built) as bed:
        report([asdict(path) for path in survey(network, bed.namespace, VIRTUAL)])
