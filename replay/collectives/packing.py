"""Spanning trees over a network that together use its links well, for `replay.collectives.blink`.

Blink packs directed trees by multiplicative weights and then takes few of them by integer programming, to within a few per
cent of the best. Here all trees carry an equal share, and there are two ways to find them, of which the one that keeps the
busiest link busy for less time is taken: up to eight trees that grow one after the other, each by the edge that adds least
to how busy links are, short ways and idle links first (greedy, so there is no bound on how far it is from the best; 7 %
was seen on tori); and a tree of two levels round each member, which is what Blink uses on a switch. On a member's way to
another a packet passes all links of the bed's route, also where other members are on it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import permutations

from replay.collectives.trees import Place
from replay.collectives.wires import Wires

_POWER = 4
_COUNTS = (1, 2, 3, 4, 6, 8)
ANYWHERE = -1
"""In place of a root: each tree grows from where it likes."""

Parents = tuple[int, ...]
"""A tree: of each member, whom it is under; the root is under itself."""


@dataclass(frozen=True, slots=True)
class Packing:
    """`trees` that each carry an equal share of the tensor. `busy_ns` is how long the busiest link is busy for each byte of it.
    `meet_once`: two members are neighbours in one tree each way, no more, so each may take the trees in an order of its own.
    """

    trees: tuple[Parents, ...]
    busy_ns: float
    meet_once: bool = False


def place_in(tree: Parents, member: int) -> Place:
    """The member's place in a tree, those under it beginning behind it, so that not all send to the first at once."""
    after = [(member + distance) % len(tree) for distance in range(1, len(tree))]
    children = tuple(child for child in after if tree[child] == member)
    return Place(None if tree[member] == member else tree[member], children)


@lru_cache(maxsize=256)
def pack(wires: Wires, root: int, *, up: bool, down: bool) -> Packing:
    """Trees over the members of `wires`, from `root` (ANYWHERE: each from where it likes), that carry a tensor `up` to the root,
    `down` from it, or both. Cost: some 4 N^3 looks at an edge, seconds from 100 members on.
    """
    size = len(wires.ways)
    users = _users(wires, up, down)
    loads = [_Loads(wires, up, down, 1 / count, users) for count in _COUNTS]
    found = [Packing(tuple(load.grow((tree if root == ANYWHERE else root) % size) for tree in range(count)), load.busiest)
             for count, load in zip(_COUNTS, loads, strict=True)]  # fmt: skip
    stars = _stars(size, root)
    load = _Loads(wires, up, down, 1 / len(stars), users)
    for tree in stars:
        load.add(tree)
    found.append(Packing(stars, load.busiest, meet_once=root == ANYWHERE))
    return min(found, key=lambda packing: (round(packing.busy_ns, 9), _depth(packing.trees)))


@cache
def on_a_switch(size: int) -> Wires:
    """Members round one switch, with links of one rate: what trees are packed on where nothing is known."""
    ways = tuple(tuple((2 * a, 2 * b + 1) if a != b else () for b in range(size)) for a in range(size))
    return Wires(ways, (1.0,) * 2 * size, (0,) * 2 * size)


def _stars(size: int, root: int) -> tuple[Parents, ...]:
    """A tree round each member; with a root, that is over the member in the middle."""
    if root == ANYWHERE:
        return tuple((middle,) * size for middle in range(size))
    middles = [middle for middle in range(size) if middle != root] or [root]
    return tuple(tuple(root if member in (root, middle) else middle for member in range(size)) for middle in middles)


def _depth(trees: Sequence[Parents]) -> int:
    def depth(tree: Parents, member: int) -> int:
        return 0 if tree[member] == member else 1 + depth(tree, tree[member])

    return max(depth(tree, member) for tree in trees for member in range(len(tree)))


Edge = tuple[int, int]
"""A parent and a member under it."""


def _ways(wires: Wires, up: bool, down: bool, edge: Edge) -> tuple[int, ...]:
    """The directions of links that an edge of a tree uses."""
    parent, child = edge
    return (wires.ways[parent][child] if down else ()) + (wires.ways[child][parent] if up else ())


def _users(wires: Wires, up: bool, down: bool) -> Mapping[int, list[Edge]]:
    """The edges that use a direction of a link."""
    found: dict[int, list[Edge]] = defaultdict(list)
    for edge in permutations(range(len(wires.ways)), 2):
        for way in _ways(wires, up, down, edge):
            found[way].append(edge)
    return found


class _Loads:
    """How long each direction of a link is busy for a byte of the tensor, with what the trees so far carry."""

    def __init__(self, wires: Wires, up: bool, down: bool, share: float, users: Mapping[int, list[Edge]]) -> None:
        self._wires, self._up, self._down = wires, up, down
        self._added = [share * rate for rate in wires.ns_per_byte]
        self._users = users
        self._busy = [0.0] * len(wires.ns_per_byte)
        self._costs: dict[Edge, float] = {}

    @property
    def busiest(self) -> float:
        return max(self._busy)

    def add(self, tree: Parents) -> None:
        for child, parent in enumerate(tree):
            self._use((parent, child))

    def grow(self, root: int) -> Parents:
        """One more tree, edge by edge."""
        parents, depths = {root: root}, {root: 0}
        size = len(self._wires.ways)
        outside = set(range(size)) - {root}
        while outside:
            edges = (
                (self._cost((parent, child)), depths[parent], parent, child) for parent in parents for child in outside
            )
            *_, parent, child = min(edges)
            parents[child], depths[child] = parent, depths[parent] + 1
            outside.remove(child)
            self._use((parent, child))
        return tuple(parents[member] for member in range(size))

    def _cost(self, edge: Edge) -> float:
        """What an edge adds to the sum, over all links, of how busy they are to a high power: a long way costs much, one past
        busy links more."""
        cost = self._costs.get(edge)
        if cost is None:
            busy, added = self._busy, self._added
            ways = _ways(self._wires, self._up, self._down, edge)
            cost = self._costs[edge] = sum((busy[way] + added[way]) ** _POWER - busy[way] ** _POWER for way in ways)
        return cost

    def _use(self, edge: Edge) -> None:
        for way in _ways(self._wires, self._up, self._down, edge):
            self._busy[way] += self._added[way]
            for user in self._users[way]:
                self._costs.pop(user, None)
