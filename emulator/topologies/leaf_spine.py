"""Leaves with hosts, each joined to every spine: the folded Clos network of two levels (Clos 1953)."""

from __future__ import annotations

from emulator.links import UNLIMITED
from emulator.marked import Node
from emulator.shape import Shape
from emulator.topologies.topology import Expanded, Topology, count, host_names
from emulator.units import Rate


def leaf_spine(leaves: int, spines: int, hosts_per_leaf: int) -> Shape:
    """Hosts in blocks, leaf by leaf. A host's link is called as the host, an uplink LEAF-SPINE."""
    hosts = host_names(leaves * hosts_per_leaf)
    tops = tuple(f"spine{index}" for index in range(spines))
    edges = tuple(f"leaf{index}" for index in range(leaves))
    links = {name: (name, edges[index // hosts_per_leaf]) for index, name in enumerate(hosts)}
    links.update({f"{leaf}-{spine}": (leaf, spine) for leaf in edges for spine in tops})
    return Shape(hosts, (*edges, *tops), links)


def _expand(asked: Node, hosts: int, rate: Node | None) -> Expanded:
    """`oversubscription` is what a leaf's hosts can send over what its uplinks can carry; without it uplinks are as fast
    as hosts' links."""
    leaves, spines = count(asked, "leaves", 2), count(asked, "spines")
    per_leaf = count(asked, "hosts_per_leaf", default=max(1, -(-hosts // leaves)))
    shape = leaf_spine(leaves, spines, per_leaf)
    settings = asked.mapping()
    if "oversubscription" not in settings:
        return Expanded(shape)
    over = settings["oversubscription"].integer(1, 1000)
    if rate is None or rate.value == UNLIMITED:
        raise settings["oversubscription"].error("uplinks are so many times slower than link.rate, and there is none")
    uplink = per_leaf * rate.parse(Rate.parse) // (8 * spines * over) * 8  # whole bytes a second
    return Expanded(shape, {name: {"rate": f"{uplink} bit"} for name in shape.links if name not in shape.hosts})


LEAF_SPINE = Topology(("leaves", "spines", "hosts_per_leaf", "oversubscription"), _expand)
