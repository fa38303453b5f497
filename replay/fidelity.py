"""Which fidelity a run has: packet by packet, or bursts where these change nothing, neither on the network nor for the job.

A switch sends a burst on when it has all of it, as it does a packet. So in bursts each message comes later, by up to BURST_BYTES'
time on the wire for each switch on its way: nothing to a message of many MB, half as long again to one of BURST_BYTES. (8 ranks,
10 Gbit/s, one switch: a ring all-reduce of 1 MiB takes 46 % more, of 8 MiB 6 %, of 100 MB 0.5 %.)
"""

from __future__ import annotations

from emulator.network import Network
from emulator.shaping import Fidelity, choose_fidelity
from replay.plan import Plan, Transfer
from traces.program import ROOTED

BURST_BYTES = 64 << 10
"""What Linux puts into one super-packet at most (GSO_LEGACY_MAX_SIZE, include/linux/netdevice.h)."""
MOST_HELD = 0.01
"""Share of what messages take on the wire by which bursts may hold them back where nobody asks for bursts."""


def fidelity_of(wanted: str, network: Network, held: float) -> Fidelity:
    """`wanted` is "packet", "burst" or "auto": then bursts where neither the network nor the job needs packets, of which `held` is
    what `held_back` says."""
    if wanted == "auto":
        return "packet" if held > MOST_HELD else choose_fidelity(network)
    return "packet" if wanted == "packet" else "burst"


def in_bursts(fidelity: Fidelity, held: float) -> list[str]:
    """What a run in bursts has to say."""
    if fidelity == "packet" or not held:
        return []
    return [
        f"in bursts of up to 64 KiB, which each switch holds back until it has them: by up to {held:.1%} of what messages take; "
        "--fidelity packet does not"
    ]


def held_back(plan: Plan) -> float:
    """By what share of their time on the wire one switch holds the plan's messages back in bursts.

    Of a collective, each part of a rank's (a Nth of the tensor, as in a ring) is held back by itself; of what one rank gives to
    all, and of a message between two, the whole.
    """
    held = whole = 0.0
    for own in plan.ranks.values():
        for op in own.ops:
            if isinstance(op, Transfer):
                call = op.call
                nbytes = max(call.count * call.slots, sum(call.send_splits)) * call.itemsize
                part = nbytes if op.p2p or call.kind in ROOTED else nbytes / call.size
                held += nbytes / part * min(part, BURST_BYTES) if part else 0
                whole += nbytes
    return held / whole if whole else 0.0
