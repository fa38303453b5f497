"""`tracebed clean`: remove what runs that died have left behind."""

from __future__ import annotations

import json

import click


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print what was removed as JSON.")
def command(as_json: bool) -> None:
    """Remove the network namespaces, containers, processes and folders of runs that died before they could.

    Every run writes down what it owns before it makes it. Runs that are alive are left alone, and so is everything that no
    run wrote down.

    Example: tracebed clean
    """
    from emulator.cleaning import clean

    removed = clean(on_left=lambda why: click.echo(f"tracebed: {why}", err=True))
    if as_json:
        click.echo(json.dumps([{"kind": claim.kind, "name": claim.name} for claim in removed]))
        return
    for claim in removed:
        click.echo(f"removed {claim.kind} {claim.name}")
    if not removed:
        click.echo("nothing to remove")
