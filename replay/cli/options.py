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
