"""What is asked of the paths between hosts, and whether what was measured there is that. Pure: `measure.py` measures.

A path is judged as a whole, since no host sits inside it. Everything is asked of full packets, which take the same time
on the wire in both fidelities.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from emulator.errors import NetworkError
from emulator.impairments import Event, GilbertElliott, Loss
from emulator.links import ETHERNET_HEADER, Direction, Link
from emulator.network import Network
from emulator.routes import Hops, path_mtus, routes
from emulator.units import Probability

IP_UDP_HEADERS = 28
TRIPS = 11
_TRAIN = 500
_TRAIN_LIMIT_NS = 10**8
_LOSSY_ROUNDS = 20
_FEWEST = 10  # packets from which a rate can be told
_DEVIATIONS = 3.291  # 99.9 % of a normal distribution lies within so many standard deviations
_SECOND = 10**9

Verdict = Literal["yes", "no", "not checked"]
What = Literal["round trip, ns", "rate, bit/s", "loss", "reordering"]
Arrival = tuple[int, int]  # when (ns) which packet of a train came


@dataclass(frozen=True, slots=True)
class Path:
    """From one host to another: the directions that a packet crosses there, and those that its answer crosses. `mtu`: the
    largest packet that fits through all, in bytes.

    Not `settled`: a packet may take another path, as short but otherwise set, so nothing can be asked.
    """

    source: str
    target: str
    mtu: int
    there: tuple[Direction, ...]
    back: tuple[Direction, ...]
    settled: bool = True


@dataclass(frozen=True, slots=True)
class Train:
    """Full packets sent at once, `rounds` times; few enough that no queue on the path drops any."""

    packets: int
    rounds: int


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of a probe: the round trips that were answered, and what arrived of each round of the train."""

    round_trips_ns: tuple[int, ...]
    rounds: tuple[tuple[Arrival, ...], ...]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far a right setting may be off: a round trip in ns, a rate as a fraction of what was asked. `tries`: how often a
    path is measured at most, until nothing is found to be otherwise."""

    round_trip_ns: int
    rate: float
    tries: int


@dataclass(frozen=True, slots=True)
class Finding:
    """One quantity of a path: `verdict` is yes where `got` is within `band` of `asked`.

    None: nothing is asked, or the model has no simple answer (not checked); nothing arrived to be measured (no).
    """

    what: What
    asked: float | None
    got: float | None
    band: float | None
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Report:
    """What a probe found on the path from one host to another."""

    source: str
    target: str
    findings: tuple[Finding, ...]

    def holds(self) -> bool:
        """Whether nothing was found to be otherwise than asked."""
        return all(finding.verdict != "no" for finding in self.findings)


VIRTUAL = Tolerance(round_trip_ns=1_000, rate=0.005, tries=1)
HOST = Tolerance(round_trip_ns=1_000_000, rate=0.05, tries=3)
"""Real time: what scheduling adds on a machine that is not idle is assumed to be below this, at one of three times. What is
wrongly set is so each time."""


def paths(network: Network) -> tuple[Path, ...]:
    """From each host to the next, and from the last to the first: in a star they cross every link both ways.

    Raises NetworkError where there is but one host.
    """
    names = [host.name for host in network.hosts]
    if len(names) < 2:
        raise NetworkError("there is one host, so there is no path to probe", key="hosts")
    towards = routes(network.shape)
    mtu = {link.name: link.mtu for link in network.links}
    fits = path_mtus(network.shape, mtu.__getitem__)
    made = []
    for source, target in zip(names, [*names[1:], names[0]], strict=True):
        there, back = (
            _between(network, towards[end], start, end) for start, end in ((source, target), (target, source))
        )
        most = min(fits[source][target], fits[target][source])
        made.append(Path(source, target, most, there[0], back[0], len(there) == len(back) == 1))
    return tuple(made)


def _between(network: Network, hops: Hops, source: str, target: str) -> list[tuple[Direction, ...]]:
    """What packets may cross from `source` to `target`: more than one where equally long paths are not alike."""
    leaving: dict[str, list[Link]] = {}
    links = {link.name: link for link in network.links}
    for link in network.links:
        if source in (link.a, link.b):
            leaving.setdefault(source, []).append(link)
    for node, names in hops.items():
        leaving[node] = [links[name] for name in names]
    crossed: dict[str, list[tuple[Direction, ...]]] = {target: [()]}
    # Switches come after those that their paths lead through; the source, a host, is last.
    for node in (*(node for node in hops if node != source), source):
        found: dict[tuple[Direction, ...], None] = {}
        for link in leaving[node]:
            way, after = (link.a_to_b, link.b) if node == link.a else (link.b_to_a, link.a)
            found.update({(way, *rest): None for rest in crossed.get(after, ())})
        crossed[node] = list(found)
    return crossed[source]


def train(path: Path) -> Train:
    """As many packets as the smallest queue holds and 0.1 s carries; more rounds where chance is to be measured."""
    held = [
        way.queue.spared // (path.mtu + ETHERNET_HEADER if way.queue.unit == "bytes" else 1)
        for way in path.there
        if way.queue is not None
    ]
    carried = max(_FEWEST, int(_TRAIN_LIMIT_NS / pace)) if (pace := _pace_ns(path)) else _TRAIN
    chance = any(way.loss or way.reorder for way in path.there)
    return Train(min(_TRAIN, carried, *held), _LOSSY_ROUNDS if chance else 1)


def patience_ns(path: Path) -> int:
    """After so long without a packet, none of this train is on its way any more."""
    jitter = 10 * sum(way.jitter for way in (*path.there, *path.back))
    return 2 * _round_trip_ns(path) + jitter + int(_pace_ns(path) * _TRAIN) + _TRAIN_LIMIT_NS


def judge(path: Path, measured: Measured, tolerance: Tolerance) -> tuple[Finding, ...]:
    """Round trip, rate, loss and reordering of a path: asked, got, the band, the verdict.

    Round trip: the median; the band is the tolerance and the jitter of all links. Rate: that of the slowest link, all bytes
    on the wire counted, by the pace at which packets of a train arrive. Loss and reordering: the band holds 99.9 % of what a
    right setting gives; nothing asked allows nothing.
    """
    sent = train(path)
    findings = (
        _judge_round_trip(path, measured, tolerance),
        _judge_rate(path, sent, measured, tolerance),
        _judge_loss(path, sent, measured),
        _judge_reordering(path, measured),
    )
    return (
        findings
        if path.settled
        else tuple(replace(each, asked=None, band=None, verdict="not checked") for each in findings)
    )


def _finding(what: What, asked: float | None, got: float | None, band: float | None) -> Finding:
    if asked is None or band is None:
        return Finding(what, asked, got, None, "not checked")
    return Finding(what, asked, got, band, "yes" if got is not None and abs(got - asked) <= band else "no")


def _judge_round_trip(path: Path, measured: Measured, tolerance: Tolerance) -> Finding:
    trips = measured.round_trips_ns
    band = tolerance.round_trip_ns + sum(way.jitter for way in (*path.there, *path.back))
    return _finding("round trip, ns", _round_trip_ns(path), median(trips) if trips else None, band)


def _judge_rate(path: Path, sent: Train, measured: Measured, tolerance: Tolerance) -> Finding:
    slowest = _slowest(path)
    bits = 8 * _on_wire(slowest or path.there[0], path.mtu)
    paces = [pace for pace in map(_arrival_pace_ns, measured.rounds) if pace]
    got = bits / median(paces) * _SECOND if paces else None
    if slowest is None or sent.packets < _FEWEST:
        return _finding("rate, bit/s", None, got, None)
    blur = 2 * sum(way.jitter for way in path.there) / (_pace_ns(path) * sent.packets * 3 / 4)
    asked = float(slowest.rate or 0)
    return _finding("rate, bit/s", asked, got, asked * (tolerance.rate + blur) if blur < 1 else None)


def _judge_loss(path: Path, sent: Train, measured: Measured) -> Finding:
    packets = sent.packets * sent.rounds
    got = 1 - sum(len({number for _, number in arrivals}) for arrivals in measured.rounds) / packets
    rates = [_loss_rate(way.loss) for way in path.there]
    if any(way.corrupt or way.duplicate for way in path.there) or any(rate is None for rate in rates):
        return _finding("loss", None, got, None)
    asked = _any_of(rate for rate in rates if rate is not None)
    bursts = max(_burstiness(way.loss) for way in path.there)
    return _finding("loss", asked, got, bursts * _binomial_band(asked, packets))


def _judge_reordering(path: Path, measured: Measured) -> Finding:
    arrived = sum(map(len, measured.rounds))
    got = sum(len(arrivals) - len(_in_order(arrivals)) for arrivals in measured.rounds) / max(arrived, 1)
    reordering = [way for way in path.there if way.reorder]
    # A packet that skips its delay overtakes others only where more than a few are on their way.
    visible = all(way.delay > 10 * _pace_ns(path) for way in reordering)
    if not visible or any(way.duplicate or (way.reorder and way.reorder.correlation) for way in path.there):
        return _finding("reordering", None, got, None)
    asked = _any_of(_fraction(way.reorder.probability) for way in reordering if way.reorder)
    return _finding("reordering", asked, got, _binomial_band(asked, max(arrived, 1)))


def _round_trip_ns(path: Path) -> int:
    ways = (*path.there, *path.back)
    return sum(way.delay for way in ways) + round(sum(_wire_ns(way, path.mtu) for way in ways))


def _wire_ns(way: Direction, mtu: int) -> float:
    return 8 * _on_wire(way, mtu) * _SECOND / way.rate if way.rate else 0.0


def _on_wire(way: Direction, mtu: int) -> int:
    return mtu + ETHERNET_HEADER + way.overhead


def _slowest(path: Path) -> Direction | None:
    """The direction whose rate the path has; None where all are unlimited."""
    return max((way for way in path.there if way.rate), key=lambda way: _wire_ns(way, path.mtu), default=None)


def _pace_ns(path: Path) -> float:
    """Nanoseconds from one packet of a train to the next, as asked; 0 where nothing limits the rate."""
    slowest = _slowest(path)
    return _wire_ns(slowest, path.mtu) if slowest else 0.0


def _in_order(arrivals: tuple[Arrival, ...]) -> list[Arrival]:
    """Those that came after all that were sent before them."""
    kept: list[Arrival] = []
    for arrival in reversed(arrivals):
        if not kept or arrival[1] < kept[-1][1]:
            kept.append(arrival)
    return kept[::-1]


def _arrival_pace_ns(arrivals: tuple[Arrival, ...]) -> float | None:
    """Nanoseconds a packet, lost ones counted, without the first quarter: a bucket on the way may have let that pass."""
    kept = _in_order(arrivals)
    kept = kept[len(kept) // 4 :]
    if len(kept) < 2 or kept[-1][0] == kept[0][0]:
        return None
    return (kept[-1][0] - kept[0][0]) / (kept[-1][1] - kept[0][1])


def _loss_rate(loss: Loss | None) -> float | None:
    """How much a model loses in the long run; None where that has no simple answer."""
    if loss is None:
        return 0.0
    if isinstance(loss, Event):
        return None if loss.correlation else _fraction(loss.probability)
    if isinstance(loss, GilbertElliott) and loss.good_to_bad + loss.bad_to_good:
        bad = loss.good_to_bad / (loss.good_to_bad + loss.bad_to_good)
        return (1 - bad) * _fraction(loss.loss_good) + bad * _fraction(loss.loss_bad)
    return None


def _burstiness(loss: Loss | None) -> float:
    """How much wider than a binomial the losses spread: a two-state chain's correlation is 1 - p - r from draw to draw."""
    if not isinstance(loss, GilbertElliott):
        return 1.0
    correlation = 1 - _fraction(loss.good_to_bad) - _fraction(loss.bad_to_good)
    return math.sqrt((1 + correlation) / (1 - correlation)) if 0 < correlation < 1 else 1.0


def _binomial_band(probability: float, packets: int) -> float:
    """As a fraction of the packets, and one packet for what is not a whole number; nothing where chance has no part."""
    if probability in (0, 1):
        return 0.0
    return (_DEVIATIONS * math.sqrt(packets * probability * (1 - probability)) + 1) / packets


def _any_of(probabilities: Iterable[float]) -> float:
    return 1 - math.prod(1 - probability for probability in probabilities)


def _fraction(probability: Probability) -> float:
    return int(probability) / Probability.ALWAYS
