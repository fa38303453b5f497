"""What can happen to a packet besides waiting: independent or correlated events, and two Markov models of loss."""

from __future__ import annotations

from dataclasses import dataclass

from emulator.errors import NetworkError
from emulator.units import Probability

NEVER = Probability(0)
ALWAYS = Probability(Probability.ALWAYS)


@dataclass(frozen=True, slots=True)
class Event:
    """Happens to a packet with `probability`; `correlation` is how much of the last draw is in the next one.

    Source: get_crandom() in net/sched/sch_netem.c. Correlated draws crowd round the middle, so an event is less likely than
    asked (30 % with a correlation of 60 % is 9 %). They start from a number that no seed controls; after n packets,
    correlation^n of it is left. In the lab kernel that number repeats as well.
    """

    probability: Probability
    correlation: Probability = NEVER


@dataclass(frozen=True, slots=True)
class GilbertElliott:
    """Loss with a good and a bad state: two ways to change state, drawn for each packet, and a loss probability in
    each.

    Sources: Gilbert 1960, Elliott 1963; tc-netem(8) calls these p, r, 1-k and 1-h.
    """

    good_to_bad: Probability
    bad_to_good: Probability
    loss_good: Probability = NEVER
    loss_bad: Probability = ALWAYS


@dataclass(frozen=True, slots=True)
class FourState:
    """Loss with four states: 1 received in a gap, 2 received in a burst, 3 lost in a burst, 4 lost alone. `pXY`: X to
    Y.

    Source: Salsano et al., "Definition of a general and intuitive loss model for packet networks"; tc-netem(8),
    "state". Raises NetworkError where the ways out of one state add up to more than 100 %.
    """

    p13: Probability
    p31: Probability
    p32: Probability = NEVER
    p23: Probability = ALWAYS
    p14: Probability = NEVER

    def __post_init__(self) -> None:
        if self.p13 + self.p14 > ALWAYS or self.p31 + self.p32 > ALWAYS:
            raise NetworkError("p13 + p14 and p31 + p32 can't be more than 100%: they leave one state")


Loss = Event | GilbertElliott | FourState
