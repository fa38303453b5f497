"""Large broadcasts and reduces in two halves: a broadcast is a scatter and an all-gather, a reduce a reduce-scatter and a gather.

Wins over a binomial tree for large tensors, which then cross a port twice and not log2 N times; a chain needs only one
crossing, but N-1 hops.

Source: van de Geijn, "On global combine operations", JPDC 22(2), 1994, and Barnett et al., "Interprocessor collective
communication library", SHPCC 1994; Rabenseifner, "Optimization of collective reduction operations", ICCS 2004; as MPICH has
them (Thakur et al., IJHPCA 19(1), 2005, sections 4.2 and 4.5).
"""

from __future__ import annotations

from replay.collectives.binomial import scatter_down
from replay.collectives.halving import fold, fold_in, halve
from replay.collectives.registry import algorithm
from replay.collectives.ring import ring_all_gather
from replay.collectives.schedule import Call, Schedule, part
from replay.collectives.steps import Steps
from traces.program import CollectiveKind


@algorithm(CollectiveKind.BROADCAST, "scatter-allgather")
def broadcast(call: Call) -> Schedule:
    """Buffer: the tensor, input at the root, output everywhere. A binomial scatter of N parts, then a ring that gathers them:
    ceil(log2 N) + N-1 steps. A rank sends (N-1)/N of the tensor in the ring; the root as much again in the scatter, others the
    parts of their subtree. 2(N-1)/N of the tensor in time.
    """
    steps = Steps(call)
    chunks = [part(call.count, call.size, index) for index in range(call.size)]
    scatter_down(steps, chunks)
    steps.next_round()
    ring_all_gather(steps, range(call.size), [(chunk,) for chunk in chunks])
    return steps.schedule(call.count)


@algorithm(CollectiveKind.REDUCE, "rabenseifner")
def reduce(call: Call) -> Schedule:
    """Buffer: the tensor, input everywhere, output at the root. Recursive halving among P ranks, the power of two that is not
    more than N (the others first give the tensor to the rank beside them), then a gather in log2 P rounds of what each has
    reduced, towards the root: 2 log2 P rounds. A rank sends (P-1)/P of the tensor, and at most as much again as it gathers.

    Wins over `binomial` for large tensors. Where the root is no player of the fold, a last round sends it the result.
    """
    steps, whole, folded = Steps(call), (0, call.count), fold(call.size)
    player = fold_in(steps, folded, whole)
    last = folded.player(call.root)
    end = last if last is not None else call.root // 2
    if player is not None:
        starts = folded.cut(call.count)
        halve(steps, folded, player, starts, nearest_first=False)
        _gather(steps, player, end, starts)
    if last is None and call.me == call.root + 1:
        steps.send(call.root, whole)
    if last is None and call.me == call.root:
        steps.recv(call.root + 1, whole)
    return steps.schedule(call.count)


def _gather(steps: Steps, player: int, root: int, starts: list[int]) -> None:
    """In round k, of the players that have the root's bits above k, those that differ in bit k give what they have."""
    folded = fold(steps.call.size)
    for width in (1 << number for number in range(folded.power.bit_length() - 1)):
        if player % width != root % width:
            return
        mine = player // width * width
        beside = mine ^ width
        if (player ^ root) & width:
            steps.send(folded.rank(player ^ width), (starts[mine], starts[mine + width] - starts[mine]))
        else:
            steps.recv(folded.rank(player ^ width), (starts[beside], starts[beside + width] - starts[beside]))
