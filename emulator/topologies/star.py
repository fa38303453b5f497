"""Hosts round one switch."""

from __future__ import annotations

from emulator.marked import Node
from emulator.shape import Shape
from emulator.topologies.topology import Expanded, Topology, count, host_names


def star(hosts: int) -> Shape:
    """`hosts` hosts round one switch. Each link is called as its host, which is its first end."""
    names = host_names(hosts)
    return Shape(names, ("switch",), {name: (name, "switch") for name in names})


def _expand(asked: Node, hosts: int, rate: Node | None) -> Expanded:
    return Expanded(star(count(asked, "hosts", default=hosts)))


STAR = Topology(("hosts",), _expand)
