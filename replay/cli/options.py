"""Options that more than one command takes."""

from __future__ import annotations

import click

from replay.request import FIDELITIES

STEPS = click.option(
    "--steps", default="", metavar="A:B", help="Only steps A up to but not including B, counted from 0."
)
FIDELITY = click.option(
    "--fidelity",
    type=click.Choice(FIDELITIES),
    default="auto",
    show_default=True,
    help="Packet by packet, or bursts where that changes nothing.",
)
VERIFY = click.option("--verify", is_flag=True, help="Send real tensors and check every value that was reduced.")


def list_algorithms(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    """What `--algorithm` gave; for `list`, print what there is and end."""
    if "list" in texts:
        _print_algorithms()
        ctx.exit()
    return texts


def _print_algorithms() -> None:
    from replay.choosers.rules import CHOOSERS
    from replay.collectives.registry import known
    from traces.program import CollectiveKind

    click.echo(f"choosers: {', '.join(CHOOSERS)}")
    for kind in CollectiveKind:
        click.echo(f"{kind}: {', '.join(known(kind))}")
    click.echo("the first of a kind is what runs by default")
