"""A network slowed down, for a machine that can't carry its rates: after K s it is where the network is after 1 s.

"To infinity and beyond: time-warped network emulation" (Gupta et al., NSDI 2006) has the clock of a guest run slower. Here the
network and the job are slowed down instead and what is measured is divided again, which needs no kernel of its own, but
leaves the kernel's own times as they are: UNSCALED names them.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from emulator.errors import NetworkError
from emulator.event_kinds import MIN_RATE
from emulator.events import Course, Effect, Step
from emulator.links import Direction, Link
from emulator.network import Network
from emulator.traffic import Incast, OnOff, Pattern, Traffic
from emulator.transport import Costs, Tcp
from emulator.units import Duration, Rate

UNSCALED = (
    "TCP's shortest retransmission timeout (200 ms), its delayed acknowledgements (40 ms), the 8 us in which a card merges "
    "packets, and the machine's CPU time"
)


def dilate(network: Network, factor: Fraction) -> Network:
    """The network with rates divided by `factor`, and delays, jitter, host costs and the times of events and traffic
    multiplied.

    Queues and sizes stay, for what is under way between two nodes is the same number of bytes. Links' rates are rounded
    to whole bytes a second, traffic's to whole bits, times to whole ns.

    Raises:
        NetworkError: a rate or a time comes to something that no network can have.
    """
    try:
        return replace(
            network,
            tcp=_tcp(network.tcp, factor),
            costs=_costs(network.costs, factor),
            links=tuple(_link(link, factor) for link in network.links),
            events=tuple(_course(course, factor) for course in network.events),
            traffic=tuple(_traffic(entry, factor) for entry in network.traffic),
        )
    except NetworkError as error:
        raise NetworkError(f"network {network.name} can't be dilated by {float(factor):g}: {error}") from None


def _link(link: Link, factor: Fraction) -> Link:
    return replace(link, a_to_b=_direction(link.a_to_b, factor), b_to_a=_direction(link.b_to_a, factor))


def _direction(way: Direction, factor: Fraction) -> Direction:
    jitter = _longer(way.jitter, factor)
    if jitter >= 2**31:
        raise NetworkError(f"jitter {jitter} is more than the kernel takes, {Duration(2**31 - 1)}")
    return replace(
        way,
        rate=None if way.rate is None else _slower(way.rate, factor),
        delay=_longer(way.delay, factor),
        jitter=jitter,
    )


def _tcp(tcp: Tcp, factor: Fraction) -> Tcp:
    return tcp if tcp.pacing is None else replace(tcp, pacing=_slower(tcp.pacing, factor))


def _costs(costs: Costs, factor: Fraction) -> Costs:
    rates = costs.copy, costs.reduce, costs.stream
    copy, reduce, stream = (None if rate is None else _slower(rate, factor) for rate in rates)
    return Costs(_longer(costs.message, factor), copy, reduce, stream)


def _course(course: Course, factor: Fraction) -> Course:
    period = None if course.period is None else _longer(course.period, factor)
    steps = tuple(Step(_longer(step.at, factor), _effect(step.effect, factor)) for step in course.steps)
    return replace(course, steps=steps, period=period)


def _effect(effect: Effect, factor: Fraction) -> Effect:
    rate = None if effect.rate is None else _slower(effect.rate, factor)
    if rate is not None and rate < MIN_RATE:
        raise NetworkError(f"rate {rate} is less than {MIN_RATE}, the least that an event can set")
    return replace(
        effect,
        rate=rate,
        delay=None if effect.delay is None else _longer(effect.delay, factor),
    )


def _traffic(entry: Traffic, factor: Fraction) -> Traffic:
    length = None if entry.length is None else _longer(entry.length, factor)
    return replace(entry, at=_longer(entry.at, factor), length=length, pattern=_pattern(entry.pattern, factor))


def _pattern(pattern: Pattern, factor: Fraction) -> Pattern:
    if isinstance(pattern, Incast):
        return replace(pattern, every=_longer(pattern.every, factor))
    rate = _slower(pattern.rate, factor, 1)
    if isinstance(pattern, OnOff):
        return replace(pattern, rate=rate, on=_longer(pattern.on, factor), off=_longer(pattern.off, factor))
    return replace(pattern, rate=rate)


def _slower(rate: Rate, factor: Fraction, unit: int = 8) -> Rate:
    """To a multiple of `unit` bit/s."""
    slow = Rate(round(rate / factor / unit) * unit)
    if slow == 0:
        raise NetworkError(f"rate {rate} would be less than {unit} bit a second")
    return slow


def _longer(time: Duration, factor: Fraction) -> Duration:
    return Duration(round(time * factor))
