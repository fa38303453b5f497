"""What MPICH would choose, by the thresholds of Thakur, Rabenseifner and Gropp, "Optimization of collective communication
operations in MPICH", IJHPCA 19(1), 2005, which MPICH still has as defaults (MPIR_CVAR_*_MSG_SIZE in src/mpi/coll)."""

from __future__ import annotations

from replay.choosers.asked import Asked, Choice
from replay.collectives.halving import fold
from replay.collectives.registry import choose as default
from replay.collectives.wires import Fabric
from traces.program import CollectiveKind

ALL_REDUCE_SHORT = REDUCE_SHORT = 2 << 10
BROADCAST_SHORT, BROADCAST_RANKS = 12 << 10, 8
ALL_GATHER_SHORT, ALL_GATHER_LONG = 80 << 10, 512 << 10
REDUCE_SCATTER_LONG = 512 << 10
ALL_TO_ALL_SHORT, ALL_TO_ALL_MEDIUM = 256, 32 << 10


def choose(asked: Asked, fabric: Fabric) -> Choice:
    """By kind, size, and whether the number of ranks is a power of two. MPICH's all-reduce inside nodes first, and its
    broadcast by a recursive doubling all-gather, are left out.
    """
    nbytes, size = asked.nbytes, len(asked.ranks)
    name, rule = default(asked.kind, None), "MPICH has one way"
    match asked.kind:
        case CollectiveKind.ALL_REDUCE:
            few = asked.call.count < fold(size).power
            short = nbytes <= ALL_REDUCE_SHORT or few
            name = "recursive-doubling" if short else "halving-doubling"
            rule = "fewer elements than ranks" if few else _side(short, "2 KiB")
        case CollectiveKind.REDUCE:
            few = asked.call.count < fold(size).power
            short = nbytes <= REDUCE_SHORT or few
            name = "binomial" if short else "rabenseifner"
            rule = "fewer elements than ranks" if few else _side(short, "2 KiB")
        case CollectiveKind.BROADCAST:
            short = nbytes < BROADCAST_SHORT or size < BROADCAST_RANKS
            name = "binomial" if short else "scatter-allgather"
            rule = "under 8 ranks" if size < BROADCAST_RANKS else _side(short, "12 KiB")
        case CollectiveKind.ALL_GATHER:
            even = not fold(size).extra
            short = nbytes < (ALL_GATHER_LONG if even else ALL_GATHER_SHORT)
            name = ("recursive-doubling" if even else "bruck") if short else "ring"
            power = "a power of two of ranks" if even else "no power of two of ranks"
            rule = f"{_side(short, '512 KiB' if even else '80 KiB')}, {power}"
        case CollectiveKind.REDUCE_SCATTER:
            short = nbytes < REDUCE_SCATTER_LONG
            name, rule = "recursive-halving" if short else "pairwise", _side(short, "512 KiB")
        case CollectiveKind.ALL_TO_ALL:
            block = nbytes // size
            if not asked.even:
                name, rule = "direct", "blocks differ"
            elif block <= ALL_TO_ALL_SHORT and size >= BROADCAST_RANKS:
                name, rule = "bruck", "blocks of up to 256 B on 8 ranks or more"
            elif block <= ALL_TO_ALL_MEDIUM:
                name, rule = "direct", "blocks of up to 32 KiB"
            else:
                name, rule = "pairwise", "blocks over 32 KiB"
        case CollectiveKind.GATHER | CollectiveKind.SCATTER:
            name, rule = "binomial", "MPICH has one way"
    return Choice(name, f"MPICH takes it: {rule}")


def _side(short: bool, limit: str) -> str:
    return f"short, its limit is {limit}" if short else f"long, from {limit} on"
