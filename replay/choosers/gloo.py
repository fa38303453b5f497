"""What gloo would choose: it has one algorithm a kind, whatever the size, unless its caller names another.

Source: gloo/{allreduce,allgather,alltoall,alltoallv,barrier,broadcast,gather,reduce,scatter}.cc. Its reduce-scatter is
that of gloo/reduce_scatter.h.
"""

from __future__ import annotations

from replay.choosers.asked import Asked, Choice
from replay.collectives.wires import Fabric
from traces.program import CollectiveKind

_WAYS = {
    CollectiveKind.ALL_REDUCE: (
        "ring",
        "AllreduceOptions::UNSPECIFIED is the ring; bcube runs where a caller names it",
    ),
    CollectiveKind.ALL_GATHER: ("ring", "gloo/allgather.cc"),
    CollectiveKind.ALL_TO_ALL: ("direct", "gloo/alltoall.cc sends all at once"),
    CollectiveKind.BARRIER: ("dissemination", "gloo/barrier.cc"),
    CollectiveKind.BROADCAST: ("binomial", "gloo/broadcast.cc"),
    CollectiveKind.GATHER: ("flat", "gloo/gather.cc"),
    CollectiveKind.REDUCE: ("ring", "gloo/reduce.cc"),
    CollectiveKind.REDUCE_SCATTER: ("recursive-halving", "gloo/reduce_scatter.h"),
    CollectiveKind.SCATTER: ("flat", "gloo/scatter.cc"),
}


def choose(asked: Asked, fabric: Fabric) -> Choice:
    """By kind alone."""
    name, source = _WAYS[CollectiveKind(asked.kind)]
    return Choice(name, f"gloo takes it for all sizes ({source})")
