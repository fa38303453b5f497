"""In the island, across the islands, in the island: for ranks that share fast links with some and slow ones with others.

Each island's first ranks, as many as the smallest island has (its lanes), stand for a part of the tensor each, and the
ranks of a lane speak with each other across the islands. So what crosses an island's card is what one ring over the
islands would send, and all links inside are used. Where nothing is known of islands all ranks are one, and it is a ring.

Source: the hierarchical all-reduce of Horovod (horovod/common/ops/nccl_operations.cc, NCCLHierarchicalAllreduce) with a
ring across; Cho et al., "BlueConnect: decomposing all-reduce for deep learning on heterogeneous network hierarchy",
MLSys 2019, for the decomposition.
"""

from __future__ import annotations

from dataclasses import dataclass

from replay.collectives.registry import Need, algorithm
from replay.collectives.ring import Chunk, ring_all_gather, ring_all_reduce, ring_reduce_scatter
from replay.collectives.schedule import Call, Schedule, part
from replay.collectives.steps import Steps, joined, slots
from traces.program import CollectiveKind


@dataclass(frozen=True, slots=True)
class Lanes:
    """Who is where: the members of each island, how many `lanes` there are, and this rank's island and position in it."""

    islands: tuple[tuple[int, ...], ...]
    lanes: int
    island: int
    position: int

    @property
    def mine(self) -> tuple[int, ...]:
        """The members of this rank's island."""
        return self.islands[self.island]

    @property
    def owner(self) -> int:
        """Who of this rank's island has the lane that this rank belongs to."""
        return self.mine[self.position % self.lanes]

    def across(self) -> list[int]:
        """The owners of this rank's lane, in all islands."""
        return [members[self.position] for members in self.islands]

    def of(self, island: int, lane: int) -> list[int]:
        """The members of an island that belong to a lane."""
        return list(self.islands[island][lane :: self.lanes])


@algorithm(CollectiveKind.ALL_REDUCE, "hierarchical", needs=Need.ISLANDS)
def all_reduce(call: Call) -> Schedule:
    """Buffer: the tensor, input and output. M islands of K ranks: a ring reduce-scatter in the island, a ring all-reduce across,
    a ring all-gather in the island: 2(K-1) + 2(M-1) steps. A rank sends 2(K-1)/K of the tensor inside and 2(M-1)/MK of it
    across, so over each island's card go 2(M-1)/M of it, where a flat ring sends 2(N-1)/N.

    Wins over a flat ring where few islands share slow links, and in steps. Islands of unequal size have as many lanes as the
    smallest; ranks beyond them only take part inside.
    """
    steps, lanes = Steps(call), lanes_of(call)
    parts = [part(call.count, lanes.lanes, lane) for lane in range(lanes.lanes)]
    chunks: list[Chunk] = [(span,) for span in parts] + [()] * (len(lanes.mine) - lanes.lanes)
    ring_reduce_scatter(steps, lanes.mine, chunks)
    if lanes.position < lanes.lanes:
        ring_all_reduce(steps, lanes.across(), parts[lanes.position])
    ring_all_gather(steps, lanes.mine, chunks)
    return steps.schedule(call.count)


@algorithm(CollectiveKind.ALL_GATHER, "hierarchical", needs=Need.ISLANDS)
def all_gather(call: Call) -> Schedule:
    """Buffer: N slots of `count`, input in slot `me`, output in all. A ring across each lane, then one in the island: M-1 + K-1
    steps. A rank sends M-1 slots across and (K-1)M inside. Ranks beyond the lanes first give their slot to a lane's owner.

    Wins over a flat ring in steps, and where cards are shared: N-K slots cross one, not N-1.
    """
    steps, lanes = Steps(call), lanes_of(call)
    own = slots(call)[call.me]
    if lanes.position >= lanes.lanes:
        steps.send(lanes.owner, own)
    else:
        for member in lanes.of(lanes.island, lanes.position)[1:]:
            steps.recv(member, slots(call)[member])
        ring_all_gather(steps, lanes.across(), _lane_chunks(call, lanes))
    ring_all_gather(steps, lanes.mine, _island_chunks(call, lanes))
    return steps.schedule(call.size * call.count)


@algorithm(CollectiveKind.REDUCE_SCATTER, "hierarchical", needs=Need.ISLANDS)
def reduce_scatter(call: Call) -> Schedule:
    """Buffer: N slots of `count`, input in all, output in slot `me`. `all_gather` the other way round: a ring in the island,
    then one across each lane: K-1 + M-1 steps. A rank sends (K-1)M slots inside and M-1 across. An owner last gives ranks
    beyond the lanes their slots.

    Wins as the all-gather does.
    """
    steps, lanes = Steps(call), lanes_of(call)
    ring_reduce_scatter(steps, lanes.mine, _island_chunks(call, lanes))
    if lanes.position >= lanes.lanes:
        steps.recv(lanes.owner, slots(call)[call.me])
    else:
        ring_reduce_scatter(steps, lanes.across(), _lane_chunks(call, lanes))
        for member in lanes.of(lanes.island, lanes.position)[1:]:
            steps.send(member, slots(call)[member])
    return steps.schedule(call.size * call.count)


def lanes_of(call: Call) -> Lanes:
    """The group's islands, one of all where the call says nothing."""
    where = call.islands or (0,) * call.size
    islands = tuple(
        tuple(index for index in range(call.size) if where[index] == island) for island in dict.fromkeys(where)
    )
    island = next(number for number, members in enumerate(islands) if call.me in members)
    return Lanes(islands, min(map(len, islands)), island, islands[island].index(call.me))


def _lane_chunks(call: Call, lanes: Lanes) -> list[Chunk]:
    """By island: the slots that belong to this rank's lane there."""
    return [_slots(call, lanes.of(island, lanes.position)) for island in range(len(lanes.islands))]


def _island_chunks(call: Call, lanes: Lanes) -> list[Chunk]:
    """By position in the island: the slots of that lane in all islands; none for the ranks beyond."""
    chunks: list[Chunk] = []
    for lane in range(len(lanes.mine)):
        members = [member for island in range(len(lanes.islands)) for member in lanes.of(island, lane)]
        chunks.append(_slots(call, members if lane < lanes.lanes else []))
    return chunks


def _slots(call: Call, members: list[int]) -> Chunk:
    return joined(slots(call)[member] for member in sorted(members))
