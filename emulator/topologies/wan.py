"""Sites that are all joined to each other, with the round-trip times of a matrix."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from importlib import resources
from itertools import combinations
from math import comb
from pathlib import Path

from emulator.errors import NetworkError
from emulator.marked import Node
from emulator.shape import Shape
from emulator.topologies.topology import CABLE, Expanded, Topology, count
from emulator.units import Duration

AWS = "aws"
Pair = frozenset[str]


def wan(sites: tuple[str, ...], hosts_per_site: int) -> Shape:
    """A site's hosts SITE-hostN are on its switch SITE; the link between two sites is A-B, in the order of `sites`."""
    hosts = {f"{site}-host{index}": site for site in sites for index in range(hosts_per_site)}
    links = {
        **{host: (host, site) for host, site in hosts.items()},
        **{f"{a}-{b}": (a, b) for a, b in combinations(sites, 2)},
    }
    return Shape(tuple(hosts), sites, links)


def _expand(asked: Node, hosts: int, rate: Node | None) -> Expanded:
    """Each way takes half of the round trip, in whole ns; the cables inside a site take no time."""
    settings = asked.mapping()
    if "rtt" not in settings:
        raise asked.error(f"expected 'rtt': '{AWS}', a CSV file, or a mapping of sites to sites to times")
    known, trips = _matrix(settings["rtt"])
    sites = known
    if "sites" in settings:
        sites = tuple(dict.fromkeys(node.choice(known) for node in settings["sites"].items()))
    if len(sites) < 2:
        raise asked.error("expected at least two sites")
    shape = wan(sites, count(asked, "hosts_per_site", default=max(1, -(-hosts // len(sites)))))
    if len({*shape.hosts, *sites}) + len(shape.links) < 2 * len(shape.hosts) + len(sites) + comb(len(sites), 2):
        raise asked.error("the sites' names are too alike: two hosts, switches or links would have one name")
    own: dict[str, Mapping[str, str]] = dict.fromkeys(shape.hosts, CABLE)
    for a, b in combinations(sites, 2):
        if frozenset((a, b)) not in trips:
            raise settings["rtt"].error(f"no time between {a} and {b}")
        trip = trips[frozenset((a, b))]
        own[f"{a}-{b}"] = {"delay": f"{trip // 2} ns"}
    return Expanded(shape, own)


def _matrix(node: Node) -> tuple[tuple[str, ...], Mapping[Pair, int]]:
    """The sites, and the time between each two, the mean where a matrix has it both ways."""
    if isinstance(node.value, str):
        text, file = _text(node, node.value)
        cells = from_csv(text, file)
    else:
        cells = [
            (a, b, child.parse(Duration.parse))
            for a, row in node.mapping().items()
            for b, child in row.mapping().items()
        ]
    times: dict[Pair, list[int]] = {}
    for a, b, time in cells:
        times.setdefault(frozenset((a, b)), []).append(time)
    sites = tuple(dict.fromkeys(node.name(site) for a, b, _ in cells for site in (a, b)))
    return sites, {pair: sum(found) // len(found) for pair, found in times.items()}


def from_csv(text: str, file: str) -> list[tuple[str, str, Duration]]:
    """From a table of ms whose first row and first column are names: from, to, time. Empty cells, lines that start with
    `#` and the diagonal say nothing. Raises NetworkError with file, line and column."""
    lines = [line if not line.startswith("#") else "" for line in text.splitlines()]
    rows = [(number, row) for number, row in enumerate(csv.reader(lines), start=1) if row]
    if not rows:
        raise NetworkError("expected a table of round-trip times in ms", file=file)
    columns = [name.strip() for name in rows[0][1][1:]]
    cells = []
    for number, (name, *values) in rows[1:]:
        if len(values) > len(columns):
            raise NetworkError(f"{len(values)} times for {len(columns)} names", file=file, line=number, key=name)
        for column, value in zip(columns, values, strict=False):
            if value.strip() and name.strip() != column:
                try:
                    cells.append((name.strip(), column, Duration.parse(f"{value.strip()} ms")))
                except NetworkError as error:
                    raise NetworkError(str(error), file=file, line=number, key=column) from None
    return cells


def _text(node: Node, name: str) -> tuple[str, str]:
    """The matrix that ships with this package, or a file beside the network file."""
    if name == AWS:
        return (resources.files("emulator.topologies") / "aws.csv").read_text(encoding="utf-8"), "aws.csv"
    path = Path(node.file).parent / name
    try:
        return path.read_text(encoding="utf-8"), str(path)
    except (OSError, UnicodeDecodeError) as error:
        raise node.error(
            f"can't read {path}: {getattr(error, 'strerror', None) or 'not a text file in UTF-8'}"
        ) from None


WAN = Topology(("rtt", "sites", "hosts_per_site"), _expand)
