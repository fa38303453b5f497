"""Recursive halving and doubling: all-reduce, reduce-scatter, all-gather.

In each round a rank exchanges with the one whose index differs in one bit, so there are log2 N rounds where a ring has N-1.
N that is no power of two is folded first: of the first 2(N - P) ranks, P the power of two below N, each even one leaves its
part to the odd one beside it, and gets the result from there at the end.

Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19(1),
2005, sections 4.1, 4.4 and 4.5.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from replay.collectives.registry import algorithm
from replay.collectives.schedule import Call, Schedule, part
from replay.collectives.steps import Span, Steps, joined, slots
from traces.program import CollectiveKind


@dataclass(frozen=True, slots=True)
class Fold:
    """N ranks as the power of two below: `power` players, of which the first `extra` stand for two ranks each."""

    power: int
    extra: int

    def player(self, rank: int) -> int | None:
        """Which player the rank is; None for one that leaves its part to the next rank."""
        if rank >= 2 * self.extra:
            return rank - self.extra
        return rank // 2 if rank % 2 else None

    def rank(self, player: int) -> int:
        return 2 * player + 1 if player < self.extra else player + self.extra

    def cut(self, count: int) -> list[int]:
        """Where each player's part of `count` elements starts, and the end."""
        return [*(part(count, self.power, player)[0] for player in range(self.power)), count]

    def spread(self, count: int) -> list[int]:
        """Where the slots of the ranks that each player stands for start, and the end; a slot is `count` elements."""
        return [count * (2 * at if at < self.extra else at + self.extra) for at in range(self.power + 1)]


def fold(size: int) -> Fold:
    """The power of two that is not more than `size`, and by how much more that is."""
    power = 1 << size.bit_length() - 1
    return Fold(power, size - power)


@algorithm(CollectiveKind.ALL_REDUCE, "recursive-doubling")
def doubling_all_reduce(call: Call) -> Schedule:
    """Buffer: the tensor, input and output; behind it as much again, from which it is sent while what comes is reduced.

    log2 P rounds, in each of which a rank sends the tensor: log2 P times the tensor. Where N is no power of two, two rounds
    more: each folded rank sends the tensor once, and the one beside it once more. Wins for tensors so small that only the
    rounds count.
    """
    steps, whole, folded = Steps(call), (0, call.count), fold(call.size)
    player = fold_in(steps, folded, whole)
    if player is not None:
        for round_ in range(folded.power.bit_length() - 1):
            peer = folded.rank(player ^ 1 << round_)
            steps.copy(whole, call.count)
            steps.send(peer, (call.count, call.count))
            steps.recv(peer, whole, reduce=True)
    _pairs(steps, folded, whole, inwards=False)
    return steps.schedule(2 * call.count)


@algorithm(CollectiveKind.ALL_REDUCE, "halving-doubling")
def halving_doubling(call: Call) -> Schedule:
    """Buffer: the tensor, input and output. log2 P rounds that exchange half, a quarter... and reduce, and as many that give
    it back: a rank sends 2(P-1)/P of the tensor in 2 log2 P rounds. Where N is no power of two, two rounds more, as in
    `recursive-doubling`.

    As little as a ring sends in fewer steps: wins for small and middle tensors. For large ones a ring's neighbours do better
    where links are shared, and where N is no power of two.
    """
    steps, whole, folded = Steps(call), (0, call.count), fold(call.size)
    player = fold_in(steps, folded, whole)
    if player is not None:
        starts = folded.cut(call.count)
        halve(steps, folded, player, starts, nearest_first=True)
        double(steps, folded, player, starts, nearest_first=True)
    _pairs(steps, folded, whole, inwards=False)
    return steps.schedule(call.count)


@algorithm(CollectiveKind.REDUCE_SCATTER, "recursive-halving")
def reduce_scatter(call: Call) -> Schedule:
    """Buffer: N slots of `count`, input in all, output in slot `me`. log2 P rounds; a rank sends P-1 slots where N = P. Else a
    folded rank sends N slots, and a player N less what it stands for, and one slot where it stands for two.

    Wins over a ring for small slots.
    """
    steps, folded = Steps(call), fold(call.size)
    player = fold_in(steps, folded, (0, call.size * call.count))
    if player is not None:
        starts = folded.spread(call.count)
        halve(steps, folded, player, starts, nearest_first=False)
    _pairs(steps, folded, slots(call)[call.me & ~1], inwards=False)
    return steps.schedule(call.size * call.count)


@algorithm(CollectiveKind.ALL_GATHER, "recursive-doubling")
def all_gather(call: Call) -> Schedule:
    """Buffer: N slots of `count`, input in slot `me`, output in all. log2 P rounds; a rank sends P-1 slots where N = P. Else a
    folded rank sends one slot, and the one beside it gives it all but that one at the end.

    Wins over a ring for small slots; where N is no power of two `bruck` needs a round or two fewer.
    """
    steps, folded = Steps(call), fold(call.size)
    folded_slot = call.me & ~1
    _pairs(steps, folded, slots(call)[folded_slot], inwards=True)
    player = folded.player(call.me)
    if player is not None:
        starts = folded.spread(call.count)
        double(steps, folded, player, starts, nearest_first=False)
    others = [slot for index, slot in enumerate(slots(call)) if index != folded_slot]
    _pairs(steps, folded, *joined(others), inwards=False)
    return steps.schedule(call.size * call.count)


def halve(steps: Steps, folded: Fold, player: int, starts: Sequence[int], *, nearest_first: bool) -> None:
    """Reduce-scatter among the players: of the elements from `starts[0]` to `starts[P]` each keeps a part, reduced: its own,
    from `starts[player]`, unless the nearest exchange first (which sends most of it over the shortest ways).
    """
    for peer, keep, give in _rounds(player, folded.power, nearest_first):
        steps.send(folded.rank(peer), _between(starts, give))
        steps.recv(folded.rank(peer), _between(starts, keep), reduce=True)


def double(steps: Steps, folded: Fold, player: int, starts: Sequence[int], *, nearest_first: bool) -> None:
    """All-gather among the players: from what `halve` has left each to everything at all."""
    for peer, keep, give in reversed(list(_rounds(player, folded.power, nearest_first))):
        steps.send(folded.rank(peer), _between(starts, keep))
        steps.recv(folded.rank(peer), _between(starts, give))


def _rounds(player: int, power: int, nearest_first: bool) -> Iterator[tuple[int, range, range]]:
    """Of each round of halving: the peer, and which parts this player keeps and gives."""
    bits = [1 << number for number in range(power.bit_length() - 1)]
    parts = range(power)
    for bit in bits if nearest_first else reversed(bits):
        halves = parts[: len(parts) // 2], parts[len(parts) // 2 :]
        keep, give = halves if not player & bit else halves[::-1]
        yield player ^ bit, keep, give
        parts = keep


def _between(starts: Sequence[int], parts: range) -> Span:
    return starts[parts[0]], starts[parts[-1] + 1] - starts[parts[0]]


def fold_in(steps: Steps, folded: Fold, whole: Span) -> int | None:
    """Folded ranks give `whole` to the next; which player this one is."""
    _pairs(steps, folded, whole, inwards=True, reduce=True)
    return folded.player(steps.call.me)


def _pairs(steps: Steps, folded: Fold, *spans: Span, inwards: bool, reduce: bool = False) -> None:
    """The folded rank of this one's pair sends `spans` to the player (`inwards`), or gets them; nothing for others."""
    me = steps.call.me
    if me >= 2 * folded.extra:
        return
    if (me % 2 == 0) == inwards:
        steps.send(me ^ 1, *spans)
    else:
        steps.recv(me ^ 1, *spans, reduce=reduce)
