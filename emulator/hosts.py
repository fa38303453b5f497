"""Where the ranks are: hosts, and machines that hold several behind one network card.

A machine with an island is made of plain parts: a switch called as the machine, a host MACHINE-N for its Nth rank, and a link of
that name between the two, with the settings of the island's profile. The machine's own link then leads from the island, and
what leaves there passes the machine's card.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from emulator.links import Settings
from emulator.marked import Node
from emulator.shape import Ends, Shape

Placed = Mapping[str, tuple[int, ...]]
HOST_KEYS = ("ranks", "island")


@dataclass(frozen=True, slots=True)
class Host:
    """What has one address: a machine, or the part of one that is a rank's. It holds these ranks."""

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Switch:
    """Forwards packets between its links. An `island` is one inside a machine, between its ranks and its network card."""

    name: str
    island: bool = False


def spread(hosts: Sequence[str], world: int, per_host: int | None = None) -> Placed:
    """Ranks in blocks, in host order: `per_host` to each until they run out, or as evenly as can be."""
    even, rest = divmod(world, len(hosts))
    placed, first = {}, 0
    for index, host in enumerate(hosts):
        end = min(world, first + (per_host or even + (index < rest)))
        placed[host] = tuple(range(first, end))
        first = end
    return placed


def listed(hosts: Mapping[str, Settings], ranks: int | None, place: Node) -> Placed:
    """The ranks that a file's hosts list, or, where none does, `ranks` of them spread evenly, one each where nobody knows.

    Raises NetworkError, at `place`, where it isn't each rank once.
    """
    lists = {name: settings["ranks"] for name, settings in hosts.items() if "ranks" in settings}
    if not lists:
        return spread(tuple(hosts), len(hosts) if ranks is None else ranks)
    placed = {
        name: tuple(rank.integer(0, 2**20) for rank in lists[name].items()) if name in lists else () for name in hosts
    }
    held = sorted(rank for block in placed.values() for rank in block)
    if held != list(range(len(held) if ranks is None else ranks)):
        expected = "each rank from 0 on once" if ranks is None else f"each of the {ranks} ranks of the job once"
        raise place.error(f"the hosts' ranks are {held}: expected {expected}")
    return placed


def parts(machine: str, ranks: Sequence[int]) -> tuple[str, ...]:
    """The names of a machine's hosts, and of their links to its island."""
    return tuple(f"{machine}-{number}" for number in range(len(ranks)))


def split(shape: Shape, placed: Placed, islands: Mapping[str, Node]) -> tuple[Shape, Placed, Mapping[str, str]]:
    """Each host with an island in parts, the island being the switch of its name; one that holds no ranks stays whole.

    The third is the machine of each link inside one. Raises NetworkError where two things would have one name.
    """
    links: dict[str, Ends] = dict(shape.links)
    taken = {*shape.hosts, *shape.switches, *links}
    held: dict[str, tuple[int, ...]] = {}
    inside: dict[str, str] = {}
    for host in shape.hosts:
        names = parts(host, placed[host]) if host in islands else ()
        if not names:
            held[host] = placed[host]
        for name, rank in zip(names, placed[host], strict=False):
            if name in taken:
                raise islands[host].error(f"'{name}' would be a part of machine '{host}', and another has that name")
            held[name], links[name], inside[name] = (rank,), (name, host), host
    machines = tuple(dict.fromkeys(inside.values()))
    return Shape(tuple(held), (*shape.switches, *machines), links), held, inside
