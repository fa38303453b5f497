"""`tracebed compose`: write a compose file that runs a trace on a network, in containers."""

from __future__ import annotations

import json
from pathlib import Path

import click

from replay.cli.options import FIDELITY, STEPS, VERIFY


@click.command("compose", no_args_is_help=True)
@click.argument("trace", type=click.Path(path_type=Path))
@click.option("--network", required=True, metavar="NET", help="A network file or a profile.")
@click.option(
    "-o",
    "--output",
    "folder",
    type=click.Path(path_type=Path),
    required=True,
    help="The folder to make, with all in it.",
)
@click.option(
    "--image", default="tracebed", show_default=True, metavar="NAME", help="The image, as containers/ builds it."
)
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set a key of the network, by its dotted path."
)
@click.option("--what-if", "what_if", multiple=True, metavar="NAME=VALUE", help="Change the job first, as replay does.")
@STEPS
@FIDELITY
@VERIFY
@click.option("--json", "as_json", is_flag=True, help="Print the folder and its services as JSON.")
def command(
    trace: Path,
    network: str,
    folder: Path,
    image: str,
    settings: tuple[str, ...],
    what_if: tuple[str, ...],
    steps: str,
    fidelity: str,
    verify: bool,
    as_json: bool,
) -> None:
    """Write a folder in which `docker-compose up` replays TRACE on NET, a container a host.

    The ranks' containers have no privileges. The links are shaped from a container beside them, by the kernel of the machine
    that runs it, in real time. The run folder is left in runs/ there; a failed run ends with another status than 0.

    \b
    Example:
      tracebed compose resnet50.trace --network ethernet-1g -o bed && cd bed && docker-compose up
    """  # fmt: skip
    from replay.cli.network import split_settings
    from replay.compose import write
    from replay.session import load_network, read_job

    job = read_job(trace, what_if, steps)
    resolved = load_network(network, job, split_settings(settings))
    names = write(folder, job, resolved, image, fidelity, verify)
    if as_json:
        click.echo(json.dumps({"folder": str(folder), "image": image, "services": names}))
    else:
        click.echo(f"{folder}: {len(job.trace.programs)} ranks in {len(names) - 1} containers on {resolved.name}")
        click.echo(f"run it: cd {folder} && docker-compose up")
