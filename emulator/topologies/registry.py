"""The topologies by name."""

from __future__ import annotations

from collections.abc import Mapping

from emulator.topologies import dumbbell, fat_tree, leaf_spine, star, torus, wan
from emulator.topologies.topology import Topology

TOPOLOGIES: Mapping[str, Topology] = {
    "star": star.STAR,
    "dumbbell": dumbbell.DUMBBELL,
    "leaf-spine": leaf_spine.LEAF_SPINE,
    "fat-tree": fat_tree.FAT_TREE,
    "ring": torus.RING,
    "torus": torus.TORUS,
    "wan": wan.WAN,
}
