"""Two stars whose switches are joined by one link, the trunk."""

from __future__ import annotations

from emulator.marked import Node
from emulator.shape import Shape
from emulator.topologies.topology import Expanded, Topology, count, host_names


def dumbbell(left: int, right: int) -> Shape:
    """Hosts 0 to left - 1 are on the switch `left`, the others on `right`; a host's link is called as the host."""
    hosts = host_names(left + right)
    links = {name: (name, "left" if index < left else "right") for index, name in enumerate(hosts)}
    return Shape(hosts, ("left", "right"), {**links, "trunk": ("left", "right")})


def _expand(asked: Node, hosts: int, rate: Node | None) -> Expanded:
    left = count(asked, "left", default=max(1, -(-hosts // 2)))
    return Expanded(dumbbell(left, count(asked, "right", default=max(1, hosts - left))))


DUMBBELL = Topology(("left", "right"), _expand)
