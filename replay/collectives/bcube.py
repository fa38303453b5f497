"""All-reduce on a hypercube of mixed sizes, as gloo has it: in each step a rank exchanges with all others of a small group.

Source: gloo, gloo/allreduce.cc (bcube); the name is from Guo et al., "BCube: a high performance, server-centric network
architecture for modular data centers", SIGCOMM 2009.
"""

from __future__ import annotations

from replay.collectives.registry import algorithm
from replay.collectives.schedule import Call, Schedule, part
from replay.collectives.steps import Span, Steps
from traces.program import CollectiveKind


def group_sizes(size: int) -> list[int]:
    """gloo's factors of `size`: 2 as often as it goes, then what is left (computeGroupSizePerStep with n = 2)."""
    twos = (size & -size).bit_length() - 1
    rest = size >> twos
    return [2] * twos + ([rest] if rest > 1 else [])


@algorithm(CollectiveKind.ALL_REDUCE, "bcube")
def all_reduce(call: Call) -> Schedule:
    """Buffer: the tensor, input and output. In a step with groups of B ranks each sends every other of its group a Bth of what it
    has, reduces what it gets and has a Bth from then on; then the same back. 2 x steps rounds, 2(N-1)/N of the tensor sent.

    N a power of two is `halving-doubling`; an odd N exchanges with all at once in one step, many senders to each receiver.
    Wins for small tensors, loses where that many senders meet at a port that drops.
    """
    steps = Steps(call)
    span: Span = (0, call.count)
    distance, rounds = 1, []
    for size in group_sizes(call.size):
        position = call.me // distance % size
        group = [call.me + (index - position) * distance for index in range(size)]
        cut = [part(span[1], size, index) for index in range(size)]
        parts = [(span[0] + offset, count) for offset, count in cut]
        rounds.append((group, position, parts))
        distance, span = distance * size, parts[position]
    for group, position, parts in rounds:
        for peer, theirs in _others(group, position, parts):
            steps.send(peer, theirs)
            steps.recv(peer, parts[position], reduce=True)
    for group, position, parts in reversed(rounds):
        for peer, theirs in _others(group, position, parts):
            steps.send(peer, parts[position])
            steps.recv(peer, theirs)
    return steps.schedule(call.count)


def _others(group: list[int], position: int, parts: list[Span]) -> list[tuple[int, Span]]:
    """The others of the group with their parts, in the group's order: gloo has all send to the first of it first."""
    return [(peer, theirs) for index, (peer, theirs) in enumerate(zip(group, parts, strict=True)) if index != position]
