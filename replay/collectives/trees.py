"""Binary trees, pipelined in segments: all-reduce by one tree or by two, broadcast and reduce by one.

A tensor goes up the tree, reduced at each rank, and down again; a segment goes on as soon as it is there, so `--segment`
decides how well that overlaps. The depth is log2 N, so trees win over rings for many ranks and long delays.

Source: Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel
Computing 35(12), 2009. The trees are NCCL's (src/graph/trees.cc): their leaves are the odd ranks, and the second is the
first mirrored (N even) or turned by one (N odd), so that no rank is inside both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from replay.collectives.registry import algorithm
from replay.collectives.schedule import Call, Schedule, part, segments
from replay.collectives.steps import Span, Steps
from traces.program import CollectiveKind


@dataclass(frozen=True, slots=True)
class Place:
    """One rank's place in a tree: whom it is under (None for the root), and who is under it."""

    parent: int | None
    children: tuple[int, ...]


@algorithm(CollectiveKind.ALL_REDUCE, "tree")
def tree_all_reduce(call: Call) -> Schedule:
    """Buffer: the tensor, input and output. Up and down a tree of depth log2 N: a rank sends the tensor once up (but for the
    root) and once to each rank under it, three times at most, so it takes three times the tensor over a port.

    For small tensors as good as `double-tree`, in fewer connections.
    """
    steps = Steps(call)
    up_and_down(steps, binary_tree(call.size, call.me), (0, call.count))
    return steps.schedule(call.count)


@algorithm(CollectiveKind.ALL_REDUCE, "double-tree")
def double_tree_all_reduce(call: Call) -> Schedule:
    """Buffer: the tensor, input and output. Half of it goes over each of two trees: a rank is a leaf in one, where it sends half
    of the tensor, and inside the other, where it sends three halves: twice the tensor, as a ring nearly does, in 2 log2 N
    steps. (The two roots, which have one rank under them, send half of the tensor less.)

    Wins over a ring where (N - log2 N) delays count; a ring sends 1/N of the tensor less.
    """
    steps = Steps(call)
    size, me = call.size, call.me
    second = _renamed(binary_tree(size, size - 1 - me), lambda rank: size - 1 - rank)
    if size % 2:
        second = _renamed(binary_tree(size, (me - 1) % size), lambda rank: (rank + 1) % size)
    for tree, place in enumerate((binary_tree(size, me), second)):
        up_and_down(steps, place, part(call.count, 2, tree))
    return steps.schedule(call.count)


@algorithm(CollectiveKind.BROADCAST, "tree")
def broadcast(call: Call) -> Schedule:
    """Buffer: the tensor, input at the root, output everywhere. log2 N steps; a rank sends the tensor to each rank under it,
    twice at most (the root once). Between `chain` (least sent, most steps) and `binomial`.
    """
    steps = Steps(call)
    down(steps, _rooted(call), (0, call.count))
    return steps.schedule(call.count)


@algorithm(CollectiveKind.REDUCE, "tree")
def reduce(call: Call) -> Schedule:
    """Buffer: the tensor, input everywhere, output at the root. log2 N steps; every rank but the root sends the tensor once,
    and receives it twice at most.
    """
    steps = Steps(call)
    up(steps, _rooted(call), (0, call.count))
    return steps.schedule(call.count)


def binary_tree(size: int, rank: int) -> Place:
    """The rank's place in NCCL's tree (ncclGetBtree): rank 0 is the root; what a rank has as its lowest bit is how far the
    ranks under it are away, doubled.
    """
    bit = rank & -rank if rank else 1 << (size - 1).bit_length()
    children = [rank - bit // 2] if rank and bit > 1 else []
    reach = bit // 2
    while reach and rank + reach >= size:
        reach //= 2
    if reach:
        children.append(rank + reach)
    if not rank:
        return Place(None, tuple(children))
    parent = (rank ^ bit) | bit << 1
    return Place(parent if parent < size else rank ^ bit, tuple(children))


def up_and_down(steps: Steps, place: Place, span: Span) -> None:
    """An all-reduce of `span`: to the tree's root, and back from there."""
    up(steps, place, span)
    down(steps, place, span)


def up(steps: Steps, place: Place, span: Span) -> None:
    """A reduce of `span` to the tree's root."""
    for segment in segments(steps.call, *span):
        for child in place.children:
            steps.recv(child, segment, reduce=True)
        if place.parent is not None:
            steps.send(place.parent, segment)


def down(steps: Steps, place: Place, span: Span, *, in_turn: bool = False) -> None:
    """A broadcast of `span` from the tree's root; `in_turn`: to one child after the other."""
    for segment in segments(steps.call, *span):
        if place.parent is not None:
            steps.recv(place.parent, segment)
        for child in place.children:
            steps.send(child, segment, in_turn=in_turn)


def _rooted(call: Call) -> Place:
    """The tree with the call's root at its top."""
    place = binary_tree(call.size, (call.me - call.root) % call.size)
    return _renamed(place, lambda rank: (rank + call.root) % call.size)


def _renamed(place: Place, name: Callable[[int], int]) -> Place:
    parent = None if place.parent is None else name(place.parent)
    return Place(parent, tuple(map(name, place.children)))
