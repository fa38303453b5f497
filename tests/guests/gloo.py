"""`gloo.py PROFILE FIDELITY RANKS BYTES TIMES`: unmodified torch.distributed on gloo; when each all_reduce ended at each rank."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist

from emulator.beds.netns import NetnsBed
from emulator.ledger import Ledger
from emulator.network import load
from tests.guests.pair import PORT, Task, report


def all_reduces(address: str, rank: int, ranks: int, nbytes: int, times: int) -> list[int]:
    """The monotonic time in ns at which each of `times` all_reduces of `nbytes` of float32 ended."""
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"  # else it asks the resolver for an address, and there is none
    torch.set_num_threads(1)
    where = f"tcp://{address}:{PORT}"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=ranks, timeout=timedelta(seconds=60))
    tensor = torch.ones(nbytes // 4)
    ends = []
    for _ in range(times):
        dist.all_reduce(tensor)
        ends.append(time.monotonic_ns())
    assert tensor[-1] == ranks**times
    return ends


if __name__ == "__main__":
    profile, fidelity = sys.argv[1:3]
    ranks, nbytes, times = map(int, sys.argv[3:])
    network = load(profile, ranks=ranks)
    with Ledger("gloo") as ledger, NetnsBed(network, ledger, "packet" if fidelity == "packet" else "burst") as bed:
        root = bed.address(network.hosts[0].name)
        tasks = [
            Task(bed, host.name, partial(all_reduces, root, rank, ranks, nbytes, times))
            for host in network.hosts
            for rank in host.ranks
        ]
        report([task.result() for task in tasks])
