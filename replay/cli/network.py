"""`tracebed network`: networks and profiles as they are resolved."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from typing import TYPE_CHECKING

import click

MOST_NAMES = 6
_WIDE = 120  # columns in which the host costs fit as well

if TYPE_CHECKING:
    from rich.table import Table

    from emulator.links import Direction
    from emulator.network import Network
    from emulator.traffic import Traffic
    from emulator.units import Rate


@click.group(no_args_is_help=True)
def command() -> None:
    """Show networks and profiles as they are resolved."""


@command.command()
@click.argument("network", metavar="NET")
@click.option(
    "--ranks", type=click.IntRange(1, 2**16), help="The job's ranks, for a file that doesn't say how many hosts."
)
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set a key of the file, by its dotted path."
)
@click.option("--yaml", "as_yaml", is_flag=True, help="Print the resolved form as a network file.")
@click.option("--json", "as_json", is_flag=True, help="Print the resolved form as JSON.")
def show(network: str, ranks: int | None, settings: tuple[str, ...], as_yaml: bool, as_json: bool) -> None:
    """Print the resolved form of NET, a network file or a profile's name.

    A link's `up` is from its first end to its second: in a star, from the host to the switch.

    \b
    Example:
      tracebed network show ethernet-10g --ranks 4 --set "links.host2.rate=1 gbit"
    """
    from emulator.network import load, to_dict

    resolved = load(network, ranks=ranks, overrides=split_settings(settings))
    if as_json:
        click.echo(json.dumps(to_dict(resolved), indent=2))
    elif as_yaml:
        import yaml

        click.echo(yaml.safe_dump(to_dict(resolved), sort_keys=False), nl=False)
    else:
        _print(resolved)


@command.command("list")
@click.option("--sources", is_flag=True, help="Print where the numbers of each profile come from.")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON, sources included.")
def list_(sources: bool, as_json: bool) -> None:
    """List the profiles: what each link does, what carries messages, and what hosts take besides the wire.

    A packet between two hosts crosses two links. The `message` cost is for each message, `copy` is how fast a host moves bytes.

    \b
    Example:
      tracebed network list --sources
    """
    from emulator.network import load, profiles

    rows, said = [], {}
    for name, profile in profiles().items():
        network, settings = load(name), profile.mapping()
        rows.append({"profile": name, **_numbers(network)})
        base = f" The rest: as {settings['profile'].scalar()}." if "profile" in settings else ""
        said[name] = settings["source"].scalar() + base
    if as_json:
        click.echo(json.dumps([{**row, "source": said[row["profile"]]} for row in rows], indent=2))
        return
    if sources:
        table = _table("profile", "where its numbers come from")
        for item in said.items():
            table.add_row(*item)
    else:
        wide = shutil.get_terminal_size().columns >= _WIDE
        if not wide:
            rows = [{**row, "transport": row["transport"].partition(" ")[0]} for row in rows]
        shown = [column for column in rows[0] if wide or column not in ("message", "copy")]
        table = _table(*shown)
        for row in rows:
            table.add_row(*("" if row[column] in ("unlimited", "none") else row[column] for column in shown))
    _write(table)
    if not sources:
        if not wide:
            click.echo(f"How it recovers, and what hosts take besides the wire: in {_WIDE} columns, or with --json")
        click.echo("Where each number comes from, and which are assumed: tracebed network list --sources")


def _numbers(network: Network) -> dict[str, str]:
    """What a profile says, a column each; its directions are all alike."""
    link = network.links[0]
    way, costs = link.a_to_b, network.costs
    return {
        "rate": _rate(way.rate),
        "delay": str(way.delay),
        "MTU": str(link.mtu),
        "queue": str(way.queue or "unlimited"),
        "loss": _loss(way) or "none",
        "transport": _transport(network),
        "message": str(costs.message),
        "copy": _rate(costs.copy),
        "stream": _rate(costs.stream),
    }


def split_settings(settings: tuple[str, ...]) -> dict[str, str]:
    """What was given as `--set KEY=VALUE`, by key. Raises click.UsageError."""
    split = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise click.UsageError(f"--set {setting}: expected KEY=VALUE, as in link.rate='1 gbit'")
        split[key] = value
    return split


def _print(network: Network) -> None:
    from emulator.shaping import choose_fidelity
    from emulator.transport import NO_COSTS

    buffer = network.tcp.buffer or "tuned by the kernel"
    click.echo(f"{network.name} ({network.source or 'all from the file'}), seed {network.seed}")
    congestion = f"{network.tcp.congestion} with ECN" if network.tcp.ecn else network.tcp.congestion
    click.echo(f"TCP {congestion}, buffers {buffer}; fidelity {choose_fidelity(network)}")
    if network.transport != "tcp":
        click.echo(f"transport {_transport(network)}")
    costs = network.costs
    if costs != NO_COSTS:
        limits = f"copy {_rate(costs.copy)}, stream {_rate(costs.stream)}, reduce {_rate(costs.reduce)}"
        click.echo(f"host costs: message {costs.message}, {limits}")
    held = [f"{host.name} ({', '.join(str(rank) for rank in host.ranks) or 'none'})" for host in network.hosts]
    click.echo(f"hosts (and their ranks): {_some(held)}")
    islands = [switch.name for switch in network.switches if switch.island]
    if islands:
        click.echo(f"islands (the switches inside machines, each before its machine's cards): {_some(islands)}")
    if network.events:
        courses = [f"{at.link} {at.way} from {at.steps[0].at} on ({len(at.steps)} steps)" for at in network.events]
        click.echo(f"events: {_some(courses)}")
    if network.traffic:
        click.echo(f"traffic: {_some([_traffic(entry) for entry in network.traffic])}")
    _write(_directions(network))


def _traffic(entry: Traffic) -> str:
    """One entry in words: `constant udp host0 to host1 at 1 gbit from 0 ns on`."""
    from emulator.traffic import Incast

    pattern = entry.pattern
    much = f"{pattern.size} every {pattern.every}" if isinstance(pattern, Incast) else f"at {pattern.rate}"
    lasts = "on" if entry.length is None else f"for {entry.length}"
    ends = f"{' '.join(entry.sources)} to {' '.join(entry.targets)}"
    return f"{entry.kind} {entry.transport} {ends} {much} from {entry.at} {lasts}"


def _directions(network: Network) -> Table:
    """One row for all directions that are alike; columns only for what some direction has."""
    alike: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for link in network.links:
        for side, way in (("up", link.a_to_b), ("down", link.b_to_a)):
            alike.setdefault(_cells(way, link.mtu), []).append((link.name, side))
    headings = ("rate", "delay", "MTU", "jitter", "loss", "queue", "more")
    shown = [index for index in range(len(headings)) if any(cells[index] for cells in alike)]
    table = _table("links", *(headings[index] for index in shown))
    for cells, members in alike.items():
        sides = Counter(name for name, _ in members)
        names = dict.fromkeys(name if sides[name] == 2 else f"{name} {side}" for name, side in members)
        table.add_row(_some(list(names)), *(cells[index] or "none" for index in shown))
    return table


def _cells(way: Direction, mtu: int) -> tuple[str, ...]:
    queue = "" if way.queue is None else str(way.queue)
    jitter = f"{way.jitter} {way.distribution}" if way.jitter else ""
    return _rate(way.rate), str(way.delay), str(mtu), jitter, _loss(way), queue, _more(way)


def _some(names: list[str]) -> str:
    return ", ".join(names[:MOST_NAMES]) + (f" and {len(names) - MOST_NAMES} more" if names[MOST_NAMES:] else "")


def _rate(rate: Rate | None) -> str:
    return "unlimited" if rate is None else str(rate)


def _transport(network: Network) -> str:
    rdma = network.rdma
    if network.transport == "tcp":
        return f"tcp {network.tcp.congestion}"
    congestion = [] if rdma.congestion == "none" else [rdma.congestion]
    return " ".join(["rdma", rdma.recovery, *congestion, *(["lossless"] if rdma.lossless else [])])


def _loss(way: Direction) -> str:
    from emulator.impairments import Event

    if way.loss is None:
        return ""
    if isinstance(way.loss, Event):
        return str(way.loss.probability)
    return type(way.loss).__name__


def _more(way: Direction) -> str:
    """What few links have."""
    events = {"reorder": way.reorder, "duplicate": way.duplicate, "corrupt": way.corrupt}
    return ", ".join(f"{name} {event.probability}" for name, event in events.items() if event)


def _table(*columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in ("profile", "rate", "delay", "queue"))
    return table


def _write(table: Table) -> None:
    from rich.console import Console

    Console().print(table)
