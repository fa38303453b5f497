"""Links: two directions, each with its own rate, delay, queue and faults; how a file says them, and how they are
written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal, TypeVar

from emulator.errors import NetworkError
from emulator.impairments import Event, FourState, GilbertElliott, Loss
from emulator.marked import Node
from emulator.queues import Queue, queue_to_plain, read_queue
from emulator.units import Duration, Probability, Rate

Distribution = Literal["uniform", "normal", "pareto", "paretonormal"]
DISTRIBUTIONS: tuple[Distribution, ...] = ("uniform", "normal", "pareto", "paretonormal")
ETHERNET_OVERHEAD = 24  # IEEE 802.3: preamble and start 8, frame check sequence 4, gap between packets 12
ETHERNET_HEADER = 14  # two addresses and a type: what the kernel counts besides the packet
UNLIMITED = "unlimited"
NONE = "none"
Settings = Mapping[str, Node]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Direction:
    """One direction of a link, as a packet meets it: the queue, the wire at `rate`, then `delay` and what can go wrong.

    `rate` counts every byte on the wire: the packet, its 14-byte Ethernet header and `overhead` bytes more. `delay` is
    one-way. `jitter` spreads it by `distribution` (uniform: half its width; otherwise: standard deviation) and keeps
    packets in order: only `reorder` reorders, by letting a packet skip the delay. A `jitter_correlation` of less than 100 %
    is without effect: the kernel draws by the low bits, in which nothing of the last draw is left (tabledist() in
    net/sched/sch_netem.c, Linux 6.12). `queue` None is unlimited, `rate` None too.
    """

    rate: Rate | None
    delay: Duration
    jitter: Duration
    jitter_correlation: Probability
    distribution: Distribution
    loss: Loss | None
    reorder: Event | None
    duplicate: Event | None
    corrupt: Event | None
    queue: Queue | None
    overhead: int


@dataclass(frozen=True, slots=True)
class Link:
    """A full-duplex link between nodes `a` and `b`; `mtu` is the IP packet's size in bytes."""

    name: str
    a: str
    b: str
    mtu: int
    a_to_b: Direction
    b_to_a: Direction


DIRECTION_KEYS = tuple(field.name for field in fields(Direction))
LINK_KEYS = (*DIRECTION_KEYS, "mtu", "up", "down")
MODELS: Mapping[str, type[GilbertElliott] | type[FourState]] = {
    "gilbert_elliott": GilbertElliott,
    "four_state": FourState,
}


def read_link(name: str, ends: tuple[str, str], layers: Sequence[Settings], place: Node) -> Link:
    """The link that `layers` of settings make: later ones win; in each, `up` (a to b) or `down` over what both share.

    `place` is where an error about the link as a whole points. Raises NetworkError.
    """
    mtus = [layer["mtu"].integer(68, 65535) for layer in layers if "mtu" in layer]
    mtu = mtus[-1] if mtus else 1500
    directions = []
    for way in ("up", "down"):
        merged: dict[str, Node] = {}
        for layer in layers:
            merged.update({key: node for key, node in layer.items() if key in DIRECTION_KEYS})
            merged.update(layer[way].mapping(DIRECTION_KEYS) if way in layer else {})
        if "rate" not in merged:
            raise place.error(f"link '{name}' has no rate: set link.rate, or a profile ('{UNLIMITED}' is a rate too)")
        directions.append(_direction(merged, mtu + ETHERNET_HEADER))
    return Link(name, *ends, mtu, *directions)


def _direction(settings: Settings, packet: int) -> Direction:
    delay = settings["delay"].parse(Duration.parse) if "delay" in settings else Duration(0)
    jitter = settings["jitter"].parse(Duration.parse) if "jitter" in settings else Duration(0)
    if jitter > delay:
        raise settings["jitter"].error(f"jitter {jitter} is more than the delay {delay}: packets can't arrive early")
    if jitter >= 2**31:
        raise settings["jitter"].error(f"jitter {jitter} is more than the kernel takes, {Duration(2**31 - 1)}")
    reorder = _event(settings.get("reorder"))
    if reorder and not delay:
        raise settings["reorder"].error("a packet is reordered by skipping the delay, and there is none")
    rate, queue = read_rate(settings["rate"]), _queue(settings.get("queue"), packet)
    if queue and rate is None:
        raise settings["queue"].error(f"a queue fills behind a rate, and the rate is '{UNLIMITED}'")
    correlation = settings.get("jitter_correlation")
    return Direction(
        rate=rate,
        delay=delay,
        jitter=jitter,
        jitter_correlation=correlation.parse(Probability.parse) if correlation else Probability(0),
        distribution=settings["distribution"].choice(DISTRIBUTIONS) if "distribution" in settings else "uniform",
        loss=read_loss(settings.get("loss")),
        reorder=reorder,
        duplicate=_event(settings.get("duplicate")),
        corrupt=_event(settings.get("corrupt")),
        queue=queue,
        overhead=settings["overhead"].integer(0, 1000) if "overhead" in settings else ETHERNET_OVERHEAD,
    )


def read_rate(node: Node) -> Rate | None:
    """Whole bytes a second; None is unlimited. Raises NetworkError."""
    if node.value == UNLIMITED:
        return None
    rate = node.parse(Rate.parse)
    if rate == 0 or rate % 8:
        raise node.error(f"rate {rate}: expected a whole number of bytes a second, more than 0, or '{UNLIMITED}'")
    return rate


def _queue(node: Node | None, packet: int) -> Queue | None:
    return None if node is None or node.value == UNLIMITED else read_queue(node, packet)


def _event(node: Node | None) -> Event | None:
    """A percentage, or a mapping of `probability` and `correlation`."""
    if node is None or node.value == NONE:
        return None
    event = Event(node.parse(Probability.parse)) if isinstance(node.value, str) else _probabilities(node, Event)
    return event if event.probability else None


def read_loss(node: Node | None) -> Loss | None:
    """An event, or a mapping with the name of a Markov model and its probabilities."""
    if node is not None and isinstance(node.value, Mapping):
        for name, model in MODELS.items():
            if name in node.value:
                return _probabilities(node.mapping((name,))[name], model)
        node.mapping(("probability", "correlation", *MODELS))
    return _event(node)


def _probabilities(node: Node, make: type[T]) -> T:
    """`make` of the mapping's probabilities, whose keys are its fields; those without a default must be there."""
    names = tuple(field.name for field in fields(make))  # type: ignore[arg-type]
    values = {name: child.parse(Probability.parse) for name, child in node.mapping(names).items()}
    try:
        return make(**values)
    except TypeError:
        raise node.error(f"expected {', '.join(names)}") from None
    except NetworkError as error:
        raise node.error(str(error)) from None


def link_to_plain(link: Link) -> dict[str, object]:
    """The link as a file says it, every value in full: `read_link` of it gives it back."""
    return {
        "ends": [link.a, link.b],
        "mtu": link.mtu,
        "up": _direction_to_plain(link.a_to_b),
        "down": _direction_to_plain(link.b_to_a),
    }


def _direction_to_plain(direction: Direction) -> dict[str, object]:
    return {name: property_to_plain(name, getattr(direction, name)) for name in DIRECTION_KEYS}


def property_to_plain(name: str, value: object) -> object:
    """One property of a direction as a file says it."""
    if value is None:
        return UNLIMITED if name in ("rate", "queue") else NONE
    if isinstance(value, Queue):
        return queue_to_plain(value)
    if isinstance(value, Event) and not value.correlation:
        return str(value.probability)
    if isinstance(value, Event | GilbertElliott | FourState):
        plain: dict[str, object] = {field.name: str(getattr(value, field.name)) for field in fields(value)}
        models = [model for model, made in MODELS.items() if isinstance(value, made)]
        return {models[0]: plain} if models else plain
    return value if name == "overhead" else str(value)
