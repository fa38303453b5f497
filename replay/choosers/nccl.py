"""What NCCL would choose: a ring or a double tree for all-reduces, as its tuner's model has it, a ring or chain for all else.

NCCL times each of (tree, ring) x (LL, LL128, Simple) as latency + bytes / bandwidth and takes the least. The latencies and
factors are those of src/graph/tuning.cc, NCCL 2.8 (commit 01afd20); bandwidth is the network's own where NCCL looks into a
table of cards. LL128 is left out, which NCCL has only on certain GPUs with NVLink. What its protocols cost is not replayed.
"""

from __future__ import annotations

from replay.choosers.asked import Asked, Choice
from replay.collectives.registry import choose as default
from replay.collectives.wires import Fabric
from traces.program import CollectiveKind

_BASE = {("tree", "LL"): 4.4, ("tree", "Simple"): 0.0, ("ring", "LL"): 3.6, ("ring", "Simple"): 8.4}
_INTRA = {("tree", "LL"): 0.52, ("tree", "Simple"): 28.0, ("ring", "LL"): 0.47, ("ring", "Simple"): 3.4}
_INTER = {("tree", "LL"): 5.0, ("tree", "Simple"): 50.0, ("ring", "LL"): 2.7, ("ring", "Simple"): 9.6}
"""us: of the call, of a step inside a node (NVLink), of a step across the network."""
_SHARE = {("tree", "LL"): 0.9 / 3.8, ("tree", "Simple"): 0.9, ("ring", "LL"): 1 / 4, ("ring", "Simple"): 1.0}
"""What is left of the bandwidth."""
_CORRECTION = {
    "LL": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1),
    "Simple": (0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.6, 0.6, 0.7, 0.8, 0.9),
}  # fmt: skip
"""treeCorrectionFactor, by the power of two above 64 bytes."""


def choose(asked: Asked, fabric: Fabric) -> Choice:
    """By kind, size, ranks and nodes; a node is a host of the network, or a machine with an island."""
    if asked.kind != CollectiveKind.ALL_REDUCE:
        many = asked.kind in (CollectiveKind.ALL_TO_ALL, CollectiveKind.GATHER, CollectiveKind.SCATTER)
        how = "NCCL's users write it as grouped sends and receives" if many else "NCCL has only rings for it"
        return Choice("direct" if asked.kind == CollectiveKind.ALL_TO_ALL else default(asked.kind, None), how)
    ranks, nodes = len(asked.ranks), fabric.nodes(asked.ranks)
    slowest = fabric.slowest_ns_per_byte(asked.ranks)
    times = {way: _us(*way, asked.nbytes, ranks, nodes, slowest) for way in _BASE}
    kind, protocol = min(times, key=lambda way: times[way])
    because = f"NCCL's tuner has least for a {kind} with {protocol}, for {ranks} ranks on {nodes} nodes"
    return Choice("double-tree" if kind == "tree" else "ring", because)


def _us(kind: str, protocol: str, nbytes: int, ranks: int, nodes: int, ns_per_byte: float) -> float:
    """ncclTopoGetAlgoTime."""
    way = kind, protocol
    intra = _INTRA[way] * (1.8 if nodes > 1 and protocol == "LL" else 1)
    if kind == "ring":
        across = 2 * (nodes - 1)
        latency = _BASE[way] + (2 * (ranks - 1) - across) * intra + across * _INTER[way]
        if protocol == "Simple" and nodes > 1 and nbytes >= ranks / 16 * 65536:
            latency *= 1.9  # "plateau effect of ring"
        crossings = 2 * (ranks - 1) / ranks
    else:
        latency = _BASE[way] + 2 * ((ranks // nodes - 1) * intra + (nodes.bit_length() - 1) * _INTER[way])
        crossings = 2.0
    share = _SHARE[way]
    step = max(0, (nbytes >> 6).bit_length() - 1)
    if kind == "tree" and step < len(_CORRECTION[protocol]):
        share *= _CORRECTION[protocol][step]
    return latency + nbytes * crossings * ns_per_byte / share / 1000
