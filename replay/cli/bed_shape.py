"""`tracebed bed shape`: test beds of containers that are up already, shaped as a network says."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from emulator.adopting import Running
    from emulator.beds.shaped import Line, Shaped
    from emulator.links import Direction
    from emulator.network import Network
    from emulator.qdisc import Qdisc


@click.command("shape")
@click.argument("network", metavar="[NET]", required=False)
@click.option("--compose-project", "project", help="The containers of this compose project.")
@click.option(
    "--container",
    "containers",
    multiple=True,
    metavar="NAME[=HOST]",
    help="A container, and the host of NET that it is; without HOST by its name, or in the order given.",
)
@click.option("--docker-network", help="The Docker network to shape, where several join the containers.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set a key of NET, by its dotted path.")
@click.option("--show", is_flag=True, help="Print what was asked and what the kernel says now.")
@click.option("--reset", is_flag=True, help="Take away what was put there, and nothing else.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    network: str | None,
    project: str | None,
    containers: tuple[str, ...],
    docker_network: str | None,
    settings: tuple[str, ...],
    show: bool,
    reset: bool,
    as_json: bool,
) -> int:
    """Shape running containers, anybody's, on a Docker network of kind bridge, as NET says, until --reset. Takes root.

    A container is the host that is called like its compose service (worker-2: the second of a scaled one) or like itself;
    where none is, the containers are the hosts in order. NET's links and switches are all there, so flows share them; its
    transport and costs are not applied. Only what these containers send each other over IP is shaped. They need no
    capabilities and are not touched; `tracebed clean` leaves the shape alone.

    Called again with another NET or --set, it changes the links in place and what is queued stays, as long as the links are
    the same and keep the kind of their queue (none, in bytes, in packets). A container that was started anew is shaped by
    calling it again.

    \b
    Example:
      tracebed bed shape wan.yaml --compose-project lab
      tracebed bed shape ethernet-1g --container a --container b --set "link.delay=1 ms"
      tracebed bed shape --show
      tracebed bed shape --reset --compose-project lab
    """
    from emulator.buckets import STATEMENT

    if project and containers:
        raise click.UsageError("--compose-project names all containers: leave --container out")
    if (network is not None) + show + reset != 1:
        raise click.UsageError("expected one of NET, --show and --reset")
    if network is None:
        return _about_shapes(project, containers, reset, as_json)
    if not project and not containers:
        raise click.UsageError("expected --compose-project or --container")
    shaped, in_place = _shape(network, project, containers, docker_network, settings)
    if as_json:
        click.echo(json.dumps({"in_place": in_place, "netem": shaped.netem, "hosts": _hosts(shaped)}))
    else:
        click.echo(f"{_name(shaped)}: {shaped.network.name}, {'changed in place' if in_place else 'shaped'}")
        for host, container in _hosts(shaped).items():
            click.echo(f"  {host}  {container}")
        if not shaped.netem:
            click.echo(STATEMENT)
    return 0


def _shape(
    network: str,
    project: str | None,
    containers: tuple[str, ...],
    docker_network: str | None,
    settings: tuple[str, ...],
) -> tuple[Shaped, bool]:
    from emulator import adopting
    from emulator.beds.shaped import shape
    from emulator.containers import daemon_address

    address = daemon_address()
    split = [name.partition("=") for name in containers]
    if project:
        running = adopting.of_project(address, project)
    else:
        running = adopting.of_names(address, [name for name, _, _ in split])
    chosen = {each.name: host for each, (_, _, host) in zip(running, split, strict=False) if host}
    resolved = _load(network, settings, running)
    hosts = adopting.match([host.name for host in resolved.hosts], running, chosen)
    joining = adopting.shared_network(address, tuple(hosts.values()), docker_network)
    cables = {host: adopting.cable(each, joining) for host, each in hosts.items()}
    return shape(resolved, cables, project or "")


def _load(network: str, settings: tuple[str, ...], running: tuple[Running, ...]) -> Network:
    """The network, with as many hosts as there are containers where it doesn't say how many."""
    from emulator.errors import NetworkError
    from emulator.network import load
    from replay.cli.network import split_settings

    overrides = split_settings(settings)
    resolved = load(network, overrides=overrides)
    if len(resolved.hosts) == len(running):
        return resolved
    try:
        return load(network, ranks=len(running), overrides=overrides)
    except NetworkError:  # its hosts and their ranks are listed
        return resolved


def _about_shapes(project: str | None, containers: tuple[str, ...], reset: bool, as_json: bool) -> int:
    from emulator.beds.shaped import reset as take_away
    from emulator.beds.shaped import shapes
    from emulator.errors import NetworkError

    all_of_them = shapes()
    names = {name.partition("=")[0] for name in containers}
    wanted = [
        shaped
        for shaped in all_of_them
        if (not project and not names) or shaped.project == project or shaped.containers & names
    ]
    known = "; ".join(_name(shaped) for shaped in all_of_them) or "none"
    if not wanted and (project or names):
        raise NetworkError(f"no such container is shaped; those that are: {known}")
    if not reset:
        return _show(wanted, as_json)
    if len(wanted) > 1 and not names:
        raise NetworkError(f"several beds are shaped, expected --compose-project or --container: {known}")
    removed = [claim for shaped in wanted for claim in take_away(shaped)]
    if as_json:
        click.echo(json.dumps({"removed": [{"kind": claim.kind, "name": claim.name} for claim in removed]}))
    else:
        click.echo("; ".join(f"{_name(shaped)} is no longer shaped" for shaped in wanted) or "nothing is shaped")
    return 0


def _show(wanted: list[Shaped], as_json: bool) -> int:
    """Status 1 where something is otherwise than asked."""
    from emulator.beds.shaped import show
    from emulator.buckets import STATEMENT

    shown = [(shaped, *show(shaped)) for shaped in wanted]
    right = not any(absent or any(line.differs for line in lines) for _, lines, absent in shown)
    if as_json:
        click.echo(json.dumps({"right": right, "shapes": [_plain(*each) for each in shown]}))
        return 0 if right else 1
    for shaped, lines, absent in shown:
        click.echo(f"{_name(shaped)}: {shaped.network.name}")
        for host, container in _hosts(shaped).items():
            state = "  was started anew or has ended: not shaped; shape it again" if host in absent else ""
            click.echo(f"  {host}  {container}{state}")
        if not shaped.netem:
            click.echo(STATEMENT)
        _print_lines(lines)
    if not shown:
        click.echo("nothing is shaped")
    return 0 if right else 1


def _plain(shaped: Shaped, lines: tuple[Line, ...], absent: tuple[str, ...]) -> dict[str, object]:
    return {
        "project": shaped.project,
        "network": shaped.network.name,
        "netem": shaped.netem,
        "hosts": _hosts(shaped),
        "not_shaped": list(absent),
        "directions": [
            {
                **asdict(line.counters),
                "way": line.way,
                "asked": _asked(line.asked),
                "kernel": _kernel(line.has),
                "differs": line.differs,
            }
            for line in lines
        ],
    }


def _name(shaped: Shaped) -> str:
    return shaped.project or ", ".join(cable.container for cable in shaped.cables.values())


def _hosts(shaped: Shaped) -> dict[str, str]:
    return {host: cable.container for host, cable in shaped.cables.items()}


def _print_lines(lines: tuple[Line, ...]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("direction", "asked", "the kernel has"):
        table.add_column(heading, overflow="fold")
    for heading in ("packets", "bytes", "drops"):
        table.add_column(heading, justify="right")
    for line in lines:
        count = line.counters
        has = line.differs or _kernel(line.has) or "nothing"
        numbers = (f"{number:,}" for number in (count.packets, count.bytes, count.drops))
        table.add_row(f"{count.source} -> {count.target}", _asked(line.asked), has, *numbers)
    Console(highlight=False).print(table)


def _asked(way: Direction) -> str:
    from emulator.links import DIRECTION_KEYS, property_to_plain

    said = {name: property_to_plain(name, getattr(way, name)) for name in DIRECTION_KEYS if getattr(way, name)}
    said.pop("overhead", None)
    if not way.jitter:
        said.pop("distribution")
    return ", ".join(f"{name} {value}" for name, value in said.items()) or "unlimited"


def _kernel(stages: tuple[Qdisc, ...]) -> str:
    """Each stage and what it does, without what leaves it free."""
    from emulator.qdisc.tbf import U32_MAX
    from emulator.shaping import NO_LIMIT

    silent = {"seed", "gap", "distribution", "overhead", "packet_overhead"}
    said = []
    for stage in stages:
        values = {field.name: getattr(stage, field.name) for field in fields(stage) if field.name not in silent}
        words = [f"{name} {value}" for name, value in values.items() if value and value not in (U32_MAX, NO_LIMIT)]
        said.append(" ".join([stage.kind, *words]))
    return ", then ".join(said)
