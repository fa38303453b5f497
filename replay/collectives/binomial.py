"""Binomial trees: broadcast, reduce, gather and scatter in ceil(log2 N) rounds.

With the root as rank 0, a rank is under the one that lacks its lowest bit; the subtree under it are the ranks up to the next
multiple of that bit. Wins for small messages: a round is one message; loses for large ones, which cross a port log2 N times
at the root of a broadcast.

Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19(1),
2005, sections 4.2, 4.3 and 4.6; gloo/broadcast.cc.
"""

from __future__ import annotations

from replay.collectives.registry import algorithm
from replay.collectives.schedule import Call, Schedule
from replay.collectives.steps import Span, Steps, joined, slots
from replay.collectives.trees import Place, down, up
from traces.program import CollectiveKind


@algorithm(CollectiveKind.BROADCAST, "binomial")
def broadcast(call: Call) -> Schedule:
    """Buffer: the tensor, input at the root, output everywhere. A rank sends the tensor to each rank right under it, the largest
    subtree first, each once the one before has left: the root ceil(log2 N) times. Together N-1 times.
    """
    steps = Steps(call)
    down(steps, _place(call), (0, call.count), in_turn=True)
    return steps.schedule(call.count)


@algorithm(CollectiveKind.REDUCE, "binomial")
def reduce(call: Call) -> Schedule:
    """Buffer: the tensor, input everywhere, output at the root. Every rank but the root sends the tensor once; the root receives
    it ceil(log2 N) times.
    """
    steps = Steps(call)
    up(steps, _place(call), (0, call.count))
    return steps.schedule(call.count)


@algorithm(CollectiveKind.GATHER, "binomial")
def gather(call: Call) -> Schedule:
    """Buffer: N slots of `count`, input in slot `me`, output in all at the root. Each rank but the root sends the slots of its
    subtree once. The root receives N-1 slots in ceil(log2 N) messages where `flat` has N-1.
    """
    steps, place = Steps(call), _place(call)
    for child in reversed(place.children):
        steps.recv(child, *_subtree(call, child))
    if place.parent is not None:
        steps.send(place.parent, *_subtree(call, call.me))
    return steps.schedule(call.size * call.count)


@algorithm(CollectiveKind.SCATTER, "binomial")
def scatter(call: Call) -> Schedule:
    """Buffer: N slots of `count`, input in all at the root, output in slot `me`. Each rank gets the slots of its subtree once, and
    sends on what is not its own. The root sends N-1 slots in ceil(log2 N) messages where `flat` has N-1.
    """
    steps = Steps(call)
    scatter_down(steps, slots(call))
    return steps.schedule(call.size * call.count)


def scatter_down(steps: Steps, chunks: list[Span]) -> None:
    """Each rank of the call ends with its own of `chunks`, which lie behind each other, from the root, which has all."""
    call, place = steps.call, _place(steps.call)
    if place.parent is not None:
        steps.recv(place.parent, *_spans(call, call.me, chunks))
    for child in place.children:
        steps.send(child, *_spans(call, child, chunks), in_turn=True)


def _place(call: Call) -> Place:
    rank = (call.me - call.root) % call.size
    reach = _reach(call, call.me)
    children = [rank + (1 << bit) for bit in range(reach.bit_length() - 2, -1, -1)]
    parent = None if not rank else (rank - reach + call.root) % call.size
    return Place(parent, tuple((child + call.root) % call.size for child in children if child < call.size))


def _reach(call: Call, index: int) -> int:
    """How many ranks are in the subtree under `index`, were there enough: the lowest bit of its rank, the root being 0."""
    rank = (index - call.root) % call.size
    return rank & -rank if rank else 1 << (call.size - 1).bit_length()


def _subtree(call: Call, index: int) -> tuple[Span, ...]:
    return _spans(call, index, slots(call))


def _spans(call: Call, index: int, chunks: list[Span]) -> tuple[Span, ...]:
    """Those of `chunks` that belong to the subtree under `index`, in the group's order: at most two, before and behind the
    root's own."""
    first = (index - call.root) % call.size
    last = min(call.size, first + _reach(call, index))
    return joined(chunks[member] for member in sorted((rank + call.root) % call.size for rank in range(first, last)))
