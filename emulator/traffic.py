"""Background traffic as a network file says it: a list, each entry one kind between named hosts.

    traffic:
      - constant: {from: host0, to: host1, rate: 1 gbit}
      - on_off: {from: host0, to: host1, rate: 1 gbit, on: 10 ms, off: 90 ms, times: exponential}   # or fixed
      - heavy_tailed: {from: [host0, host1], to: [host2, host3], rate: 3 gbit, sizes: {pareto: {shape: 1.2, mean: 100 kB}}}
      - heavy_tailed: {from: host0, to: host1, rate: 3 gbit, sizes: {lognormal: {sigma: 1.5, mean: 100 kB}}}
      - incast: {from: [host1, host2, host3], to: host0, every: 10 ms, size: 64 KiB}

`from` and `to` are a host or a list of hosts. `at`: when it begins, after Go; `for`: how long it lasts, to the end of the
run where it isn't said. `transport: udp` is sent packet by packet, each of the link's MTU, at a pace that nothing changes;
with `tcp` the kernel's TCP decides. `rate` counts what a link's rate counts: full packets with all their headers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from emulator.marked import Node
from emulator.settings import Settings, length_of, required, start_of
from emulator.units import Duration, Rate, Size

Transport = Literal["udp", "tcp"]
TRANSPORTS: tuple[Transport, ...] = ("udp", "tcp")
Times = Literal["fixed", "exponential"]
TIMES: tuple[Times, ...] = ("fixed", "exponential")
MAX_ENTRIES = 1000
"""Each has a port of its own."""
_COMMON = ("from", "to", "transport", "at", "for")
_DECIMAL = re.compile(r"[0-9]{1,3}(\.[0-9]{1,17})?")


@dataclass(frozen=True, slots=True)
class Constant:
    """From each source to each target, `rate` all the time."""

    rate: Rate


@dataclass(frozen=True, slots=True)
class OnOff:
    """From each source to each target, `rate` while it is on; `on` and `off` are means where `times` are exponential."""

    rate: Rate
    on: Duration
    off: Duration
    times: Times


@dataclass(frozen=True, slots=True)
class Pareto:
    """Sizes with P(X > x) = (least / x) ** shape; `shape` is more than 1, for else there is no mean."""

    shape: float
    mean: Size


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Sizes whose logarithm is normally distributed with the standard deviation `sigma`."""

    sigma: float
    mean: Size


@dataclass(frozen=True, slots=True)
class HeavyTailed:
    """Each source begins flows at random (Poisson arrivals), each to one of the targets; together they come to `rate`.

    A few large flows carry most of the bytes, as measured in data centres (Benson et al., IMC 2010).
    """

    rate: Rate
    sizes: Pareto | Lognormal


@dataclass(frozen=True, slots=True)
class Incast:
    """Each source sends `size` bytes to each target at the same moment, and again `every` so long (Phanishayee et al., FAST
    2008)."""

    every: Duration
    size: Size


Pattern = Constant | OnOff | HeavyTailed | Incast


@dataclass(frozen=True, slots=True)
class Traffic:
    """One entry of the list. `at` counts from Go; `length` None lasts to the end of the run."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    transport: Transport
    at: Duration
    length: Duration | None
    pattern: Pattern

    @property
    def kind(self) -> str:
        """How a network file calls the pattern."""
        return next(name for name, (kind, *_) in _KINDS.items() if isinstance(self.pattern, kind))

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Each source with each target but itself."""
        return tuple((source, target) for source in self.sources for target in self.targets if source != target)


def read_traffic(node: Node, hosts: Collection[str]) -> tuple[Traffic, ...]:
    """The entries of a file's list of traffic. Raises NetworkError with the place of what can't be used."""
    entries = node.items()
    if len(entries) > MAX_ENTRIES:
        raise node.error(f"{len(entries)} entries are more than {MAX_ENTRIES}")
    return tuple(_entry(entry, list(hosts)) for entry in entries)


def traffic_to_plain(traffic: Traffic) -> dict[str, object]:
    """The entry as a file says it, every value in full: `read_traffic` gives it back."""
    pattern = traffic.pattern
    if isinstance(pattern, HeavyTailed):
        sizes = pattern.sizes
        drawn = {name: str(getattr(sizes, name)) for name in sizes.__slots__}
        own: dict[str, object] = {"rate": str(pattern.rate), "sizes": {type(sizes).__name__.lower(): drawn}}
    else:
        own = {name: str(getattr(pattern, name)) for name in pattern.__slots__}
    return {
        traffic.kind: {
            "from": list(traffic.sources),
            "to": list(traffic.targets),
            "transport": traffic.transport,
            "at": str(traffic.at),
            **({} if traffic.length is None else {"for": str(traffic.length)}),
            **own,
        }
    }


def _entry(entry: Node, hosts: list[str]) -> Traffic:
    kinds = entry.mapping(_KINDS)
    if len(kinds) != 1:
        raise entry.error(f"expected one kind of traffic: {', '.join(_KINDS)}")
    ((name, node),) = kinds.items()
    _, keys, transport, read = _KINDS[name]
    settings = node.mapping((*_COMMON, *keys))
    traffic = Traffic(
        sources=_hosts(required(node, settings, "from"), hosts),
        targets=_hosts(required(node, settings, "to"), hosts),
        transport=settings["transport"].choice(TRANSPORTS) if "transport" in settings else transport,
        at=start_of(settings),
        length=length_of(settings["for"]) if "for" in settings else None,
        pattern=read(node, settings),
    )
    for source in traffic.sources:
        if traffic.targets == (source,):
            raise node.error(f"host '{source}' would send to itself only")
    return traffic


def _hosts(node: Node, known: list[str]) -> tuple[str, ...]:
    names = tuple(child.choice(known) for child in (node.items() if isinstance(node.value, tuple) else (node,)))
    if not names or len(set(names)) < len(names):
        raise node.error("expected a host, or a list of different hosts")
    return names


def _constant(node: Node, settings: Settings) -> Constant:
    return Constant(_rate(required(node, settings, "rate")))


def _on_off(node: Node, settings: Settings) -> OnOff:
    return OnOff(
        rate=_rate(required(node, settings, "rate")),
        on=length_of(required(node, settings, "on")),
        off=length_of(required(node, settings, "off")),
        times=settings["times"].choice(TIMES) if "times" in settings else "fixed",
    )


def _heavy_tailed(node: Node, settings: Settings) -> HeavyTailed:
    return HeavyTailed(_rate(required(node, settings, "rate")), _sizes(required(node, settings, "sizes")))


def _incast(node: Node, settings: Settings) -> Incast:
    return Incast(length_of(required(node, settings, "every")), _size(required(node, settings, "size")))


_KINDS: Mapping[str, tuple[type[Pattern], tuple[str, ...], Transport, Callable[[Node, Settings], Pattern]]] = {
    "constant": (Constant, ("rate",), "udp", _constant),
    "on_off": (OnOff, ("rate", "on", "off", "times"), "udp", _on_off),
    "heavy_tailed": (HeavyTailed, ("rate", "sizes"), "tcp", _heavy_tailed),
    "incast": (Incast, ("every", "size"), "tcp", _incast),
}


def _sizes(node: Node) -> Pareto | Lognormal:
    kinds = node.mapping(("pareto", "lognormal"))
    if len(kinds) != 1:
        raise node.error("expected one of pareto, lognormal")
    ((name, drawn),) = kinds.items()
    spread = "shape" if name == "pareto" else "sigma"
    settings = drawn.mapping((spread, "mean"))
    value, mean = _decimal(required(drawn, settings, spread)), _size(required(drawn, settings, "mean"))
    if name == "lognormal":
        return Lognormal(value, mean)
    if value <= 1:
        raise settings["shape"].error(f"sizes of shape {value} have no mean: expected more than 1")
    return Pareto(value, mean)


def _rate(node: Node) -> Rate:
    rate = node.parse(Rate.parse)
    if rate == 0:
        raise node.error("expected more than 0")
    return rate


def _size(node: Node) -> Size:
    size = node.parse(Size.parse)
    if size == 0:
        raise node.error("expected more than 0")
    return size


def _decimal(node: Node) -> float:
    text = node.scalar()
    if not _DECIMAL.fullmatch(text) or float(text) == 0:
        raise node.error(f"'{text}' is not a number of more than 0, as 1.2")
    return float(text)
