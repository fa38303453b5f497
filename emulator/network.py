"""What a network is: hosts, switches, and links whose two directions each have their own properties.

A file is read as written, merged with its profile and the caller's overrides, and resolved into a `Network`. The
resolved form is a network file too: `to_dict` writes it, `from_dict` (or `load` of the same as YAML) reads it back
to an equal value.

    profile: ethernet-10g                 # what `link` and `tcp` start from
    topology: {star: {hosts: 4}}          # hosts host0 to host3 round one switch; another of emulator/topologies; or
                                          # lists of hosts, switches and links
    link: {delay: 5 us, queue: 512 KiB}   # every link; a host's link is called as the host
    links:
      host2: {rate: 1 gbit, up: {loss: 0.1%}}   # one link; `up` is from its first end (here the host), `down` to it
    tcp: {congestion: cubic, buffer: 16 MiB, ecn: true}
    seed: 1
    events: [{degrade: {link: host2, at: 1 s, for: 500 ms, rate: 100 mbit}}]   # emulator.event_kinds has them all
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

from emulator.errors import NetworkError
from emulator.event_kinds import events_to_plain, read_events
from emulator.events import Course
from emulator.links import LINK_KEYS, Link, Settings, link_to_plain, read_link
from emulator.marked import Node, from_plain, read_yaml
from emulator.shape import Shape, unreachable
from emulator.topologies.registry import TOPOLOGIES
from emulator.topologies.topology import Expanded
from emulator.units import Size

Congestion = Literal["cubic", "reno", "bbr", "dctcp"]
AUTO = "auto"
CONGESTION: tuple[Congestion, ...] = ("cubic", "reno", "bbr", "dctcp")


@dataclass(frozen=True, slots=True)
class Host:
    """A machine and the ranks it holds."""

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Switch:
    """Forwards packets between its links."""

    name: str


@dataclass(frozen=True, slots=True)
class Tcp:
    """TCP on every host. `buffer` is what a socket may hold each way; None lets the kernel tune it. `ecn`: connections ask
    for congestion to be marked (RFC 3168), as DCTCP always does."""

    congestion: Congestion
    buffer: Size | None
    ecn: bool


@dataclass(frozen=True, slots=True)
class Network:
    """A resolved network. Ranks 0 to n-1 are each on one host. `source` says where its numbers come from."""

    name: str
    source: str
    hosts: tuple[Host, ...]
    switches: tuple[Switch, ...]
    links: tuple[Link, ...]
    tcp: Tcp
    seed: int
    events: tuple[Course, ...]

    @property
    def shape(self) -> Shape:
        """Its names."""
        return Shape(
            hosts=tuple(host.name for host in self.hosts),
            switches=tuple(switch.name for switch in self.switches),
            links={link.name: (link.a, link.b) for link in self.links},
        )


_TOP = ("name", "source", "profile", "topology", "hosts", "switches", "link", "links", "tcp", "seed", "events")
_PROFILE = ("source", "link", "tcp")


def profiles() -> Mapping[str, Node]:
    """The profiles of profiles.yaml, as written, by name."""
    text = (resources.files("emulator") / "profiles.yaml").read_text(encoding="utf-8")
    return read_yaml(text, "profiles.yaml").mapping()


def load(network: str | Path, *, ranks: int | None = None, overrides: Mapping[str, str] | None = None) -> Network:
    """The network in a file, or a profile's by name: a star. A file called as a profile is `./NAME`.

    `ranks` is the job's size, where the caller knows it; `overrides` sets dotted keys, as in {"link.rate": "1 gbit"}.
    Raises NetworkError, with file, line and key, for whatever can't be used.
    """
    known = profiles()
    if str(network) in known:
        name, tree = str(network), from_plain({"profile": str(network)}, f"profile {network}")
    else:
        name, tree = Path(network).stem, read_yaml(_read(Path(network), known), str(network))
    for path, text in (overrides or {}).items():
        tree = tree.replaced(path, text, "override")
    return _resolve(tree, name, known, ranks)


def _read(path: Path, known: Mapping[str, Node]) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NetworkError(f"no such file, nor a profile: those are {', '.join(known)}", file=path) from None
    except UnicodeDecodeError:
        raise NetworkError("not a text file in UTF-8", file=path) from None


def _resolve(tree: Node, name: str, known: Mapping[str, Node], ranks: int | None) -> Network:
    top = tree.mapping(_TOP)
    layers, source = [top], ""
    if "profile" in top:
        profile = top["profile"].scalar()
        if profile not in known:
            raise top["profile"].error(f"no profile '{profile}': expected one of {', '.join(known)}")
        layers.insert(0, known[profile].mapping(_PROFILE))
        source = f"profile {profile}"
    links = top["links"].mapping() if "links" in top else {}
    listed = "hosts" in top and "topology" not in top
    shared = [layer["link"].mapping(LINK_KEYS) for layer in layers if "link" in layer]
    if listed:
        expanded, placed = _plain(top, links, ranks)
    else:
        expanded, placed = _expand(top, tree, ranks, {key: node for layer in shared for key, node in layer.items()})
    shape = expanded.shape
    pair = unreachable(shape)
    if pair:
        raise top.get("hosts", tree).error(f"host '{pair[1]}' is unreachable from '{pair[0]}': no links lead there")
    for link in links:
        if link not in shape.links:
            raise links[link].error(f"no link '{link}': expected one of {', '.join(shape.links)}")
    keys = (*LINK_KEYS, "ends") if listed else LINK_KEYS
    made = {link: from_plain(settings, tree.file).mapping() for link, settings in expanded.settings.items()}
    own = {link: node.mapping(keys) for link, node in links.items()}
    resolved = tuple(
        read_link(link, ends, [*shared, made.get(link, {}), own.get(link, {})], links.get(link, tree))
        for link, ends in shape.links.items()
    )
    seed = top["seed"].integer(0, 2**64 - 1) if "seed" in top else 1
    return Network(
        name=top["name"].scalar() if "name" in top else name,
        source=top["source"].scalar() if "source" in top else source,
        hosts=tuple(Host(host, placed[host]) for host in shape.hosts),
        switches=tuple(Switch(switch) for switch in shape.switches),
        links=resolved,
        tcp=_tcp([layer["tcp"].mapping(("congestion", "buffer", "ecn")) for layer in layers if "tcp" in layer]),
        seed=seed,
        events=read_events(top["events"], resolved, seed) if "events" in top else (),
    )


def _expand(
    top: Settings, place: Node, ranks: int | None, link: Settings
) -> tuple[Expanded, Mapping[str, tuple[int, ...]]]:
    """The topology that the file asks for, a star where it asks for none; as many hosts as the ranks need where it doesn't
    say, two where nobody does."""
    for key in ("hosts", "switches"):
        if key in top:
            raise top[key].error("a topology makes its own hosts and switches: leave this out, or leave out 'topology'")
    name, asked = "star", Node({}, place.file, place.line)
    if "topology" in top:
        kinds = top["topology"].mapping(TOPOLOGIES)
        if len(kinds) != 1:
            raise top["topology"].error(f"expected one topology of: {', '.join(TOPOLOGIES)}")
        name, asked = next(iter(kinds.items()))
    settings = asked.mapping((*TOPOLOGIES[name].keys, "ranks_per_host"))
    per_host = settings["ranks_per_host"].integer(1, 2**16) if "ranks_per_host" in settings else None
    needed = 2 if ranks is None else -(-ranks // (per_host or 1))
    expanded = TOPOLOGIES[name].expand(asked, needed, link.get("rate"))
    hosts = expanded.shape.hosts
    world = len(hosts) * (per_host or 1) if ranks is None else ranks
    if per_host and world > len(hosts) * per_host:
        where = settings.get("hosts", asked)
        raise where.error(f"{len(hosts)} hosts of {per_host} ranks can't hold {world} ranks")
    return expanded, _spread(hosts, world, per_host)


def _spread(hosts: tuple[str, ...], world: int, per_host: int | None) -> Mapping[str, tuple[int, ...]]:
    """Ranks in blocks, in host order: `per_host` to each until they run out, or as evenly as can be."""
    even, rest = divmod(world, len(hosts))
    placed, first = {}, 0
    for index, host in enumerate(hosts):
        end = min(world, first + (per_host or even + (index < rest)))
        placed[host] = tuple(range(first, end))
        first = end
    return placed


def _plain(top: Settings, links: Settings, ranks: int | None) -> tuple[Expanded, Mapping[str, tuple[int, ...]]]:
    """The hosts, switches and links as listed; ranks are spread evenly unless every host lists its own."""
    asked = top["hosts"]
    if isinstance(asked.value, tuple):
        hosts = {node.name(): node for node in asked.items()}
        listed = {}
    else:
        hosts = {node.name(name): node for name, node in asked.mapping().items()}
        listed = {name: node.mapping(("ranks",))["ranks"] for name, node in hosts.items() if node.mapping(("ranks",))}
    if not hosts:
        raise asked.error("expected at least one host")
    switches = tuple(node.name() for node in top["switches"].items()) if "switches" in top else ()
    nodes = [*hosts, *switches]
    if len(set(nodes)) < len(nodes) or len(hosts) < len(asked.value):
        raise asked.error("two hosts or switches have the same name")
    shape = Shape(tuple(hosts), switches, {node.name(name): _ends(node, nodes) for name, node in links.items()})
    if not listed:
        return Expanded(shape), _spread(shape.hosts, len(hosts) if ranks is None else ranks, None)
    placed = {
        name: tuple(rank.integer(0, 2**20) for rank in listed[name].items()) if name in listed else () for name in hosts
    }
    held = sorted(rank for block in placed.values() for rank in block)
    if held != list(range(len(held) if ranks is None else ranks)):
        expected = "each rank from 0 on once" if ranks is None else f"each of the {ranks} ranks of the job once"
        raise asked.error(f"the hosts' ranks are {held}: expected {expected}")
    return Expanded(shape), placed


def _ends(node: Node, nodes: list[str]) -> tuple[str, str]:
    settings = node.mapping()
    if "ends" not in settings:
        raise node.error("expected 'ends', the two nodes that the link joins")
    names = [child.scalar() for child in settings["ends"].items()]
    if len(names) != 2 or names[0] == names[1] or not set(names) <= set(nodes):
        raise settings["ends"].error(f"expected two different nodes of: {', '.join(nodes)}")
    return names[0], names[1]


def _tcp(layers: list[Settings]) -> Tcp:
    settings: dict[str, Node] = {}
    for layer in layers:
        settings.update(layer)
    buffer = settings.get("buffer")
    congestion: Congestion = settings["congestion"].choice(CONGESTION) if "congestion" in settings else "cubic"
    ecn = settings["ecn"].boolean() if "ecn" in settings else congestion == "dctcp"
    if congestion == "dctcp" and not ecn:
        raise settings["ecn"].error("dctcp is told of congestion by ECN alone: leave this out, or set it to true")
    return Tcp(
        congestion=congestion,
        buffer=None if buffer is None or buffer.value == AUTO else buffer.parse(Size.parse),
        ecn=ecn,
    )


def to_dict(network: Network) -> dict[str, object]:
    """The resolved form: a network file as plain data (strings, integers, lists, mappings), every value in full."""
    return {
        "name": network.name,
        "source": network.source,
        "hosts": {host.name: {"ranks": list(host.ranks)} for host in network.hosts},
        "switches": [switch.name for switch in network.switches],
        "links": {link.name: link_to_plain(link) for link in network.links},
        "tcp": {
            "congestion": network.tcp.congestion,
            "buffer": AUTO if network.tcp.buffer is None else str(network.tcp.buffer),
            "ecn": str(network.tcp.ecn).lower(),
        },
        "seed": network.seed,
        "events": events_to_plain(network.events),
    }


def from_dict(data: Mapping[str, object], file: str = "resolved network") -> Network:
    """The network that `to_dict` wrote, from plain data that may have been JSON. Raises NetworkError as `load` does."""
    return _resolve(from_plain(data, file), "network", {}, None)
