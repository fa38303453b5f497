"""`tracebed bed`: networks as test beds: kept on this machine's kernel, probed, used by any command."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click

from replay.cli.bed_shape import command as shape_command

if TYPE_CHECKING:
    from emulator.beds.kept import KeptBed
    from emulator.network import Network
    from emulator.probe import Finding, Report

_UNITS = {  # for people: the unit, its size, and digits
    "round trip, ns": ("us", 1e3, "{:,.3f}"),
    "rate, bit/s": ("Mbit/s", 1e6, "{:,.2f}"),
    "loss": ("%", 1e-2, "{:.4g}"),
    "reordering": ("%", 1e-2, "{:.4g}"),
}
F = TypeVar("F", bound=Callable[..., object])

_GROUND = click.option(
    "--on",
    "ground",
    type=click.Choice(["virtual", "host"]),
    default="virtual",
    show_default=True,
    help="A fresh bed of the network BED in the lab kernel, or the bed called BED that is up on this machine (root).",
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def _network_options(command: F) -> F:
    """How a network is completed, as `tracebed network show` has it."""
    ranks = click.option(
        "--ranks", type=click.IntRange(1, 2**16), help="The job's ranks, for a file that doesn't say how many hosts."
    )
    settings = click.option(
        "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set a key of the network, by its dotted path."
    )
    return ranks(settings(command))


@click.group(no_args_is_help=True)
def command() -> None:
    """Keep networks up as test beds, probe them, and run commands on their hosts.

    `up`, `down` and `status` are about beds on this machine's own kernel, which takes root. In virtual time a bed lives as
    long as one `probe` or `exec`.
    """


command.add_command(shape_command)


@command.command("up", no_args_is_help=True)
@click.argument("network", metavar="NET")
@click.option("--name", help="The bed's name; by default the network's.")
@click.option(
    "--bed",
    type=click.Choice(["netns", "docker"]),
    default="netns",
    show_default=True,
    help="What a host of the network is.",
)
@click.option("--image", default="", help="The image of a docker bed's containers; an empty one where it isn't said.")
@_network_options
@_JSON
def up_command(
    network: str,
    name: str | None,
    bed: str,
    image: str,
    ranks: int | None,
    settings: tuple[str, ...],
    as_json: bool,
) -> None:
    """Bring NET up on this machine's kernel, to stay until `bed down`. Hosts are network namespaces, or containers.

    A container only waits, and what runs in it is up to you (`docker exec`). `tracebed clean` leaves the bed alone.

    \b
    Example:
      tracebed bed up ethernet-10g --ranks 4 --name lab
    """
    from emulator.beds.kept import up

    if image and bed != "docker":
        raise click.UsageError("--image belongs to --bed docker")
    resolved = _load(network, ranks, settings)
    _print_beds((up(name or resolved.name, resolved, bed, image),), as_json)


@command.command("down", no_args_is_help=True)
@click.argument("name")
@_JSON
def down_command(name: str, as_json: bool) -> None:
    """Take the bed NAME down.

    A command that still runs on one of its hosts is not ended: it keeps its namespace, without name and links.

    \b
    Example:
      tracebed bed down lab
    """
    from emulator.beds.kept import down

    removed = [claim.name for claim in down(name)]
    click.echo(json.dumps({"removed": removed}) if as_json else f"{name} is down: {len(removed)} things removed")


@command.command("status")
@_JSON
def status_command(as_json: bool) -> None:
    """List the beds that are up: their hosts, addresses and network namespaces.

    \b
    Example:
      tracebed bed status
    """
    from emulator.beds.kept import beds

    _print_beds(beds(), as_json)


@command.command("exec", no_args_is_help=True)
@click.argument("bed", metavar="BED")
@click.argument("host")
@click.argument("argv", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@_GROUND
@_network_options
@_JSON
def exec_command(
    bed: str,
    host: str,
    argv: tuple[str, ...],
    ground: str,
    ranks: int | None,
    settings: tuple[str, ...],
    as_json: bool,
) -> int:
    """Run COMMAND on HOST of BED; its exit status is this command's (128 + the signal where one ended it).

    Other hosts are reached by `ip netns exec tb-lab-HOST` in virtual time, and by the names of `bed status` on this machine.

    \b
    Example:
      tracebed bed exec wan-continental host0 -- ping -c 3 10.0.0.2
    """
    import tempfile

    from emulator import lab
    from emulator.beds import kept
    from emulator.namespace import run_inside

    lines: list[str] = []
    if ground == "virtual":
        network = _load(bed, ranks, settings)
        _check_host(network, host)
        status = lab.execute(network, host, argv, lines.append if as_json else click.echo)
    else:
        _refuse_network_options(ranks, settings)
        up = kept.find(bed)
        _check_host(up.network, host)
        with tempfile.TemporaryFile() as output:
            status = run_inside(up.namespace(host), argv, output.fileno() if as_json else None)
            output.seek(0)
            lines = output.read().decode(errors="replace").splitlines()
    if as_json:
        click.echo(json.dumps({"status": status, "output": lines}))
    return status if status >= 0 else 128 - status


@command.command("probe", no_args_is_help=True)
@click.argument("bed", metavar="BED")
@_GROUND
@_network_options
@_JSON
def probe_command(bed: str, ground: str, ranks: int | None, settings: tuple[str, ...], as_json: bool) -> int:
    """Measure round trip, rate, loss and reordering from host to host, and hold them against what BED asks.

    Each host probes the next, so that every link is crossed both ways. Exit status 0: nothing is otherwise than asked; 1:
    something is.

    \b
    Example:
      tracebed bed probe ethernet-10g --set "link.delay=5 us"
    """
    from emulator import lab
    from emulator.beds import kept
    from emulator.measure import survey
    from emulator.probe import HOST

    if ground == "virtual":
        reports = lab.probe(_load(bed, ranks, settings))
    else:
        _refuse_network_options(ranks, settings)
        up = kept.find(bed)
        reports = tuple(survey(up.network, up.namespace, HOST))
    right = all(report.holds() for report in reports)
    if as_json:
        from dataclasses import asdict

        click.echo(json.dumps({"right": right, "paths": [asdict(report) for report in reports]}))
    else:
        _print_reports(reports)
    return 0 if right else 1


def _load(network: str, ranks: int | None, settings: tuple[str, ...]) -> Network:
    from emulator.network import load
    from replay.cli.network import split_settings

    return load(network, ranks=ranks, overrides=split_settings(settings))


def _refuse_network_options(ranks: int | None, settings: tuple[str, ...]) -> None:
    if ranks is not None or settings:
        raise click.UsageError("a bed that is up has its network: --ranks and --set belong to 'bed up'")


def _check_host(network: Network, name: str) -> None:
    from emulator.errors import NetworkError

    names = [host.name for host in network.hosts]
    if name not in names:
        raise NetworkError(f"{network.name} has no host '{name}': expected one of {', '.join(names)}")


def _print_beds(beds: tuple[KeptBed, ...], as_json: bool) -> None:
    from emulator.beds.netns import addresses
    from emulator.buckets import STATEMENT

    rows = [
        (bed, [(host, address, bed.namespace(host)) for host, address in addresses(bed.network).items()])
        for bed in beds
    ]
    if as_json:
        keys = ("host", "address", "namespace")
        said = [
            {
                "name": bed.name,
                "network": bed.network.name,
                "bed": bed.bed,
                "exact": bed.exact,
                "hosts": [dict(zip(keys, host, strict=True)) for host in hosts],
            }
            for bed, hosts in rows
        ]
        click.echo(json.dumps(said))
        return
    for bed, hosts in rows:
        click.echo(f"{bed.name}: {bed.network.name}, hosts: {len(hosts)}{'' if bed.exact else '; ' + STATEMENT}")
        for host, address, namespace in hosts:
            click.echo(f"  {host}  {address}  {'docker exec' if bed.bed == 'docker' else 'ip netns exec'} {namespace}")
    if not rows:
        click.echo("no bed is up")


def _print_reports(reports: tuple[Report, ...]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for heading in ("path", "measured", "asked", "got", "band", "verdict"):
        table.add_column(heading, justify="right" if heading in ("asked", "got", "band") else "left", no_wrap=True)
    for report in reports:
        for number, finding in enumerate(report.findings):
            path = "" if number else f"{report.source} -> {report.target}"
            table.add_row(path, *_numbers(finding), finding.verdict)
    Console(highlight=False).print(table)
    wrong = sum(not report.holds() for report in reports)
    click.echo(f"paths: {len(reports)}, otherwise than asked: {wrong}")


def _numbers(finding: Finding) -> tuple[str, str, str, str]:
    """What was measured, in units for people; what was asked and got; the band around what was asked."""
    unit, base, form = _UNITS[finding.what]
    asked, got, band = (
        "" if number is None else form.format(number / base) for number in (finding.asked, finding.got, finding.band)
    )
    return f"{finding.what.partition(',')[0]}, {unit}", asked, got or "nothing", f"±{band}" if band else ""
