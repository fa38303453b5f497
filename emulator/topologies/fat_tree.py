"""The fat-tree of k-port switches with three levels (Al-Fares, Loukissas, Vahdat: SIGCOMM 2008)."""

from __future__ import annotations

from emulator.marked import Node
from emulator.shape import Ends, Shape
from emulator.topologies.topology import Expanded, Topology, count, host_names


def fat_tree(k: int) -> Shape:
    """k pods of k/2 edge and k/2 aggregation switches, (k/2)^2 core switches and k^3/4 hosts; k is even.

    Aggregation switch i of each pod is joined to the cores i k/2 to (i + 1) k/2 - 1. A host's link is called as the host.
    """
    half = k // 2
    hosts = host_names(k * half * half)
    cores = tuple(f"core{index}" for index in range(half * half))
    edges = [[f"pod{pod}-edge{index}" for index in range(half)] for pod in range(k)]
    middles = [[f"pod{pod}-agg{index}" for index in range(half)] for pod in range(k)]
    links: dict[str, Ends] = {
        name: (name, edges[index // (half * half)][index // half % half]) for index, name in enumerate(hosts)
    }
    for pod in range(k):
        for index, middle in enumerate(middles[pod]):
            links.update({f"{edge}-agg{index}": (edge, middle) for edge in edges[pod]})
            links.update({f"{middle}-{core}": (middle, core) for core in cores[index * half : (index + 1) * half]})
    switches = (*(name for pod in edges for name in pod), *(name for pod in middles for name in pod), *cores)
    return Shape(hosts, switches, links)


def _expand(asked: Node, hosts: int, rate: Node | None) -> Expanded:
    k = count(asked, "k", 2)
    if k % 2 or k > 32:
        raise asked.mapping()["k"].error(f"{k} is no number of ports: expected an even number from 2 to 32")
    return Expanded(fat_tree(k))


FAT_TREE = Topology(("k",), _expand)
