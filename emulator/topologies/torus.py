"""Rings and tori, whose nodes pass on what isn't for them: each is a host and, on a cable, the switch of the node."""

from __future__ import annotations

from itertools import product
from math import prod

from emulator.marked import Node
from emulator.shape import Ends, Shape
from emulator.topologies.topology import CABLE, MOST, Expanded, Topology, count, host_names


def torus(sizes: tuple[int, ...]) -> Shape:
    """`sizes` nodes along each dimension, the last counting fastest; the ends of each row are joined.

    A node's switch is switchX-Y, a link SWITCH-SWITCH. Where a dimension has two nodes, one link joins them.
    """
    places = tuple(product(*(range(size) for size in sizes)))
    names = {place: "switch" + "-".join(map(str, place)) for place in places}
    hosts = host_names(len(places))
    links: dict[str, Ends] = {host: (host, names[place]) for host, place in zip(hosts, places, strict=True)}
    for place in places:
        for axis, size in enumerate(sizes):
            if size == 2 and place[axis] == 1:
                continue
            neighbour = names[*place[:axis], (place[axis] + 1) % size, *place[axis + 1 :]]
            links[f"{names[place]}-{neighbour}"] = (names[place], neighbour)
    return Shape(hosts, tuple(names.values()), links)


def _expand_torus(asked: Node, hosts: int, rate: Node | None) -> Expanded:
    settings = asked.mapping()
    if "sizes" not in settings:
        raise asked.error("expected 'sizes', the nodes along each dimension, as in [4, 4]")
    sizes = tuple(size.integer(2, MOST) for size in settings["sizes"].items())
    if len(sizes) not in (2, 3) or prod(sizes) > MOST:
        raise settings["sizes"].error(f"expected two or three sizes, of {MOST} nodes at most")
    return _nodes(sizes)


def _expand_ring(asked: Node, hosts: int, rate: Node | None) -> Expanded:
    return _nodes((count(asked, "hosts", 2, default=max(2, hosts)),))


def _nodes(sizes: tuple[int, ...]) -> Expanded:
    shape = torus(sizes)
    return Expanded(shape, dict.fromkeys(shape.hosts, CABLE))


TORUS = Topology(("sizes",), _expand_torus)
RING = Topology(("hosts",), _expand_ring)
