"""What a network is: hosts, switches, and links whose two directions each have their own properties.

A file is read as written, merged with its profile and the caller's overrides, and resolved into a `Network`. The
resolved form is a network file too: `to_dict` writes it, `from_dict` (or `load` of the same as YAML) reads it back
to an equal value.

    profile: ethernet-10g                 # what `link` and `tcp` start from
    topology: {star: {hosts: 4}}          # hosts host0 to host3 round one switch; another of emulator/topologies, all
                                          # with ranks_per_host: 8 and island: nvlink-h100 (emulator.hosts); or lists of
                                          # hosts, each with its ranks and island, switches and links
    link: {delay: 5 us, queue: 512 KiB}   # every link; a host's link is called as the host
    links:
      host2: {rate: 1 gbit, up: {loss: 0.1%}}   # one link; `up` is from its first end (here the host), `down` to it
    tcp: {congestion: cubic, buffer: 16 MiB, ecn: true}   # emulator.transport has the rest: transport, rdma, costs
    seed: 1
    events: [{degrade: {link: host2, at: 1 s, for: 500 ms, rate: 100 mbit}}]   # emulator.event_kinds has them all
    traffic: [{constant: {from: host0, to: host1, rate: 1 gbit}}]              # emulator.traffic has them all
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from emulator.errors import NetworkError
from emulator.event_kinds import events_to_plain, read_events
from emulator.events import Course
from emulator.hosts import HOST_KEYS, Host, Placed, Switch, listed, parts, split, spread
from emulator.links import LINK_KEYS, Link, Settings, link_to_plain, read_link
from emulator.marked import Node, from_plain, read_yaml
from emulator.shape import Shape, unreachable
from emulator.topologies.registry import TOPOLOGIES
from emulator.topologies.topology import Expanded
from emulator.traffic import Traffic, read_traffic, traffic_to_plain
from emulator.transport import (
    KEYS,
    Costs,
    Kind,
    Rdma,
    Tcp,
    read_costs,
    read_kind,
    read_rdma,
    read_tcp,
    transport_to_plain,
)


@dataclass(frozen=True, slots=True)
class Network:
    """A resolved network. Ranks 0 to n-1 are each on one host. `source` says where its numbers come from; `transport`
    what ranks send with, `rdma` where it is that."""

    name: str
    source: str
    hosts: tuple[Host, ...]
    switches: tuple[Switch, ...]
    links: tuple[Link, ...]
    tcp: Tcp
    transport: Kind
    rdma: Rdma
    costs: Costs
    seed: int
    events: tuple[Course, ...]
    traffic: tuple[Traffic, ...]

    @property
    def shape(self) -> Shape:
        """Its names."""
        return Shape(
            hosts=tuple(host.name for host in self.hosts),
            switches=tuple(switch.name for switch in self.switches),
            links={link.name: (link.a, link.b) for link in self.links},
        )

    @property
    def cards(self) -> frozenset[tuple[str, str]]:
        """The ends of links, as (link, node), that are network cards: a host's, and an island's towards all but hosts."""
        hosts = {host.name for host in self.hosts}
        islands = {switch.name for switch in self.switches if switch.island}
        ends = [(link.name, *ends) for link in self.links for ends in ((link.a, link.b), (link.b, link.a))]
        return frozenset(
            (link, node) for link, node, other in ends if node in hosts or (node in islands and other not in hosts)
        )


_PLAIN = ("hosts", "switches", "islands")
_TOP = ("name", "source", "profile", "topology", *_PLAIN, "link", "links", *KEYS, "seed", "events", "traffic")
_PROFILE = ("source", "profile", "link", *KEYS)


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
        layers = [*_started(top["profile"], known), top]
        source = f"profile {top['profile'].scalar()}"
    links = top["links"].mapping() if "links" in top else {}
    in_full = "hosts" in top and "topology" not in top
    shared = _links_of(layers)
    if in_full:
        expanded, placed, islands = _plain(top, links, ranks)
    else:
        rate = next((layer["rate"] for layer in reversed(shared) if "rate" in layer), None)
        expanded, placed, islands = _expand(top, tree, ranks, rate)
    shape, placed, inside = split(expanded.shape, placed, islands)
    pair = unreachable(shape)
    if pair:
        raise top.get("hosts", tree).error(f"host '{pair[1]}' is unreachable from '{pair[0]}': no links lead there")
    for link in links:
        if link not in shape.links:
            raise links[link].error(f"no link '{link}': expected one of {', '.join(shape.links)}")
    base = dict.fromkeys(shape.links, shared)
    for link, settings in expanded.settings.items():
        base[link] = [*shared, from_plain(settings, tree.file).mapping()]
    for link, machine in inside.items():
        base[link] = _links_of(_started(islands[machine], known))
    keys = {link: (*LINK_KEYS, "ends") if in_full and link not in inside else LINK_KEYS for link in links}
    own = {link: node.mapping(keys[link]) for link, node in links.items()}
    resolved = tuple(
        read_link(link, ends, [*base[link], own.get(link, {})], links.get(link, tree))
        for link, ends in shape.links.items()
    )
    seed = top["seed"].integer(0, 2**64 - 1) if "seed" in top else 1
    marked = {*inside.values(), *_named(top, "islands")}
    return Network(
        name=top["name"].scalar() if "name" in top else name,
        source=top["source"].scalar() if "source" in top else source,
        hosts=tuple(Host(host, placed[host]) for host in shape.hosts),
        switches=tuple(Switch(switch, switch in marked) for switch in shape.switches),
        links=resolved,
        tcp=read_tcp(layers),
        transport=read_kind(layers),
        rdma=read_rdma(layers),
        costs=read_costs(layers),
        seed=seed,
        events=read_events(top["events"], resolved, seed) if "events" in top else (),
        traffic=read_traffic(top["traffic"], shape.hosts) if "traffic" in top else (),
    )


def _started(name: Node, known: Mapping[str, Node]) -> list[Settings]:
    """The settings of a profile, after those of the profile that it starts from."""
    if name.scalar() not in known:
        raise name.error(f"no profile '{name.scalar()}': expected one of {', '.join(known)}")
    own = known[name.scalar()].mapping(_PROFILE)
    return [*(_started(own["profile"], known) if "profile" in own else ()), own]


def _links_of(layers: Sequence[Settings]) -> list[Settings]:
    return [layer["link"].mapping(LINK_KEYS) for layer in layers if "link" in layer]


def _named(top: Settings, key: str) -> tuple[str, ...]:
    return tuple(node.name() for node in top[key].items()) if key in top else ()


def _expand(
    top: Settings, place: Node, ranks: int | None, rate: Node | None
) -> tuple[Expanded, Placed, Mapping[str, Node]]:
    """The topology that the file asks for, a star where it asks for none, and what is in its machines; as many hosts as the
    ranks need where it doesn't say, two where nobody does."""
    for key in _PLAIN:
        if key in top:
            raise top[key].error("a topology makes its own hosts and switches: leave this out, or leave out 'topology'")
    name, asked = "star", Node({}, place.file, place.line)
    if "topology" in top:
        kinds = top["topology"].mapping(TOPOLOGIES)
        if len(kinds) != 1:
            raise top["topology"].error(f"expected one topology of: {', '.join(TOPOLOGIES)}")
        name, asked = next(iter(kinds.items()))
    settings = asked.mapping((*TOPOLOGIES[name].keys, "ranks_per_host", "island"))
    per_host = settings["ranks_per_host"].integer(1, 2**16) if "ranks_per_host" in settings else None
    needed = 2 if ranks is None else -(-ranks // (per_host or 1))
    expanded = TOPOLOGIES[name].expand(asked, needed, rate)
    hosts = expanded.shape.hosts
    world = len(hosts) * (per_host or 1) if ranks is None else ranks
    if per_host and world > len(hosts) * per_host:
        where = settings.get("hosts", asked)
        raise where.error(f"{len(hosts)} hosts of {per_host} ranks can't hold {world} ranks")
    islands = dict.fromkeys(hosts, settings["island"]) if "island" in settings else {}
    return expanded, spread(hosts, world, per_host), islands


def _plain(top: Settings, links: Settings, ranks: int | None) -> tuple[Expanded, Placed, Mapping[str, Node]]:
    """The hosts, switches and links as listed, and what is in the machines."""
    asked = top["hosts"]
    if isinstance(asked.value, tuple):
        hosts: dict[str, Settings] = {node.name(): {} for node in asked.items()}
    else:
        hosts = {node.name(name): node.mapping(HOST_KEYS) for name, node in asked.mapping().items()}
    if not hosts:
        raise asked.error("expected at least one host")
    switches = (*_named(top, "switches"), *_named(top, "islands"))
    nodes = [*hosts, *switches]
    if len(set(nodes)) < len(nodes) or len(hosts) < len(asked.value):
        raise asked.error("two hosts or switches have the same name")
    placed = listed(hosts, ranks, asked)
    islands = {name: settings["island"] for name, settings in hosts.items() if "island" in settings}
    inside = {part for name in islands for part in parts(name, placed[name])}
    ends = {node.name(name): _ends(node, nodes) for name, node in links.items() if name not in inside}
    return Expanded(Shape(tuple(hosts), switches, ends)), placed, islands


def _ends(node: Node, nodes: list[str]) -> tuple[str, str]:
    settings = node.mapping()
    if "ends" not in settings:
        raise node.error("expected 'ends', the two nodes that the link joins")
    names = [child.scalar() for child in settings["ends"].items()]
    if len(names) != 2 or names[0] == names[1] or not set(names) <= set(nodes):
        raise settings["ends"].error(f"expected two different nodes of: {', '.join(nodes)}")
    return names[0], names[1]


def to_dict(network: Network) -> dict[str, object]:
    """The resolved form: a network file as plain data (strings, integers, lists, mappings), every value in full."""
    return {
        "name": network.name,
        "source": network.source,
        "hosts": {host.name: {"ranks": list(host.ranks)} for host in network.hosts},
        "switches": [switch.name for switch in network.switches if not switch.island],
        "islands": [switch.name for switch in network.switches if switch.island],
        "links": {link.name: link_to_plain(link) for link in network.links},
        **transport_to_plain(network.tcp, network.transport, network.rdma, network.costs),
        "seed": network.seed,
        "events": events_to_plain(network.events),
        "traffic": [traffic_to_plain(entry) for entry in network.traffic],
    }


def from_dict(data: Mapping[str, object], file: str = "resolved network") -> Network:
    """The network that `to_dict` wrote, from plain data that may have been JSON. Raises NetworkError as `load` does."""
    return _resolve(from_plain(data, file), "network", {}, None)
