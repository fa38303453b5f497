"""Which pattern the bytes of a phase make. Every match says how sure it is: a confidence from 0 to 1.

It is the share of the phase's bytes that lie on the pattern's pairs, times one less the mean deviation of those pairs' bytes
from what the pattern would have each carry, as a share of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from traces.wire.phases import Traffic

Pattern = Literal["ring", "all-to-all", "parameter server", "pipeline"]
SURE = 0.95
"""From this confidence on messages are replaced by a collective, or a pattern is named."""


@dataclass(frozen=True, slots=True)
class Match:
    """A pattern among `ranks` (of a ring and a pipeline in their order), of whom `servers` serve; mean bytes of a pair."""

    pattern: Pattern
    ranks: tuple[int, ...]
    confidence: float
    nbytes: float
    servers: tuple[int, ...] = ()


def rings(traffic: Traffic) -> list[Match]:
    """The rings in which everybody sends to one and receives from one; none unless they make up the whole phase."""
    best: dict[int, int] = {}
    for (source, target), nbytes in traffic.items():
        if source not in best or nbytes > traffic[source, best[source]]:
            best[source] = target
    if set(best) != set(best.values()):
        return []
    found, left = [], set(best)
    while left:
        ring = [min(left)]
        while best[ring[-1]] != ring[0]:
            ring.append(best[ring[-1]])
        left -= set(ring)
        found.append(tuple(ring))
    share = sum(traffic[pair] for pair in best.items()) / sum(traffic.values())
    return [_match("ring", ring, [(rank, best[rank]) for rank in ring], traffic, share) for ring in found]


def all_to_all(traffic: Traffic) -> Match | None:
    """Everybody to everybody else, at least three, about the same bytes."""
    ranks = _ranks(traffic)
    pairs = [(a, b) for a in ranks for b in ranks if a != b] if len(ranks) ** 2 <= 4 * len(traffic) else []
    if len(ranks) < 3 or any(pair not in traffic for pair in pairs) or not pairs:
        return None
    return _match("all-to-all", ranks, pairs, traffic, 1.0)


def parameter_server(traffic: Traffic) -> Match | None:
    """Few servers to whom all others, the workers, send and from whom all receive; workers don't talk among themselves."""
    ranks = _ranks(traffic)
    partners: dict[int, set[int]] = {rank: set() for rank in ranks}
    for source, target in _heavy(traffic):
        partners[source].add(target)
    workers = [rank for rank in ranks if partners[rank] == partners[ranks[-1]]]
    sides = sorted((workers, [rank for rank in ranks if rank not in workers]), key=len)
    servers, workers = sides
    if not servers or len(workers) <= len(servers):
        return None
    if any(partners[w] != set(servers) for w in workers) or any(partners[s] != set(workers) for s in servers):
        return None
    pairs = [(w, s) for w in workers for s in servers] + [(s, w) for w in workers for s in servers]
    share = sum(traffic[pair] for pair in pairs) / sum(traffic.values())
    return _match("parameter server", ranks, pairs, traffic, share, tuple(servers))


def pipeline(traffic: Traffic) -> Match | None:
    """A chain of at least three: each talks to the next and to the one before, forward, or forward and back."""
    heavy = _heavy(traffic)
    beside: dict[int, set[int]] = {}
    for source, target in heavy:
        beside.setdefault(source, set()).add(target)
        beside.setdefault(target, set()).add(source)
    ends = sorted(rank for rank, others in beside.items() if len(others) == 1)
    if len(beside) < 3 or len(ends) != 2 or any(len(others) > 2 for others in beside.values()):
        return None
    sources = {source for source, _ in heavy}
    chain = [ends[0] if ends[0] in sources else ends[1]]
    seen = set(chain)
    while onward := beside[chain[-1]] - seen:
        chain.append(min(onward))
        seen |= onward
    if len(chain) < len(beside):
        return None
    links = list(pairwise(chain))
    ways = [way for way in (links, [(b, a) for a, b in links]) if all(pair in traffic for pair in way)]
    if not ways:
        return None
    pairs = [pair for way in ways for pair in way]
    return _match("pipeline", tuple(chain), pairs, traffic, sum(traffic[p] for p in pairs) / sum(traffic.values()))


def _ranks(traffic: Traffic) -> tuple[int, ...]:
    return tuple(sorted({rank for pair in traffic for rank in pair}))


def _heavy(traffic: Traffic) -> list[tuple[int, int]]:
    """The pairs with at least a hundredth of the bytes of the heaviest."""
    most = max(traffic.values())
    return [pair for pair, nbytes in traffic.items() if nbytes * 100 >= most]


def _match(
    pattern: Pattern,
    ranks: tuple[int, ...],
    pairs: Sequence[tuple[int, int]],
    traffic: Traffic,
    share: float,
    servers: tuple[int, ...] = (),
) -> Match:
    mean = sum(traffic[pair] for pair in pairs) / len(pairs)
    apart = sum(abs(traffic[pair] - mean) for pair in pairs) / len(pairs) / mean
    return Match(pattern, ranks, max(0.0, share * (1 - apart)), mean, servers)
