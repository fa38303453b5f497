"""`dilated.py TRACE NETWORK FOLDER K`: replays a trace on this kernel in real time, dilated by K, and captures host0."""

from __future__ import annotations

import sys
from pathlib import Path

from replay.session import load_network, read_job, replay
from tests.guests.pair import report

if __name__ == "__main__":
    trace, network, folder, dilation = sys.argv[1:]
    job = read_job(Path(trace))
    run = replay(job, load_network(network, job, {}), Path(folder), ground="host", dilation=dilation, pcap=("host0",))
    report(run.assumed)
