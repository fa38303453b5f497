"""Blink: trees packed on the links that there are, each carrying a share of the tensor.

Source: Wang et al., "Blink: fast and generic collectives for distributed ML", MLSys 2020. How the packing differs from
Blink's is said in `replay.collectives.packing`. Wins where links differ, or a host has more than one to its neighbours, so
that a ring leaves some unused; on a switch with equal links it sends what a ring does, in a few steps.
"""

from __future__ import annotations

from replay.collectives.packing import ANYWHERE, on_a_switch, pack, place_in
from replay.collectives.registry import Need, algorithm
from replay.collectives.schedule import Call, Schedule, part
from replay.collectives.steps import Steps
from replay.collectives.trees import down, up
from traces.program import CollectiveKind


@algorithm(CollectiveKind.ALL_REDUCE, "blink", needs=Need.WIRES)
def all_reduce(call: Call) -> Schedule:
    """Buffer: the tensor, input and output. Its T parts go up and down one of T trees each, pipelined: 2 x depth steps. All ranks
    together send 2(N-1) times the tensor, as in a ring; who sends how much follows from the links.
    """
    return _over_trees(call, ups=True, downs=True)


@algorithm(CollectiveKind.BROADCAST, "blink", needs=Need.WIRES)
def broadcast(call: Call) -> Schedule:
    """Buffer: the tensor, input at the root, output everywhere. Its T parts go down one of T trees each from the root, pipelined:
    as many steps as they are deep. All together send N-1 times the tensor.
    """
    return _over_trees(call, ups=False, downs=True)


@algorithm(CollectiveKind.REDUCE, "blink", needs=Need.WIRES)
def reduce(call: Call) -> Schedule:
    """Buffer: the tensor, input everywhere, output at the root. Its T parts go up one of T trees each to the root, pipelined: as
    many steps as they are deep. All together send N-1 times the tensor.
    """
    return _over_trees(call, ups=True, downs=False)


def _over_trees(call: Call, *, ups: bool, downs: bool) -> Schedule:
    steps = Steps(call)
    packing = pack(call.wires or on_a_switch(call.size), call.root if call.root >= 0 else ANYWHERE, up=ups, down=downs)
    count = len(packing.trees)
    first = call.me + 1 if packing.meet_once else 0
    order = [(first + number) % count for number in range(count)]
    for wanted, move in ((ups, up), (downs, down)):
        for number in order if wanted else ():
            move(steps, place_in(packing.trees[number], call.me), part(call.count, count, number))
    return steps.schedule(call.count)
