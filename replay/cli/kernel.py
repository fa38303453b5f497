"""`tracebed kernel`: build the lab kernel, or say where it is."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.group()
def command() -> None:
    """Build the lab kernel, or say where it is.

    The lab kernel is a Linux that runs as an ordinary program, with a clock of its own: real TCP and real netem at any
    rate, exact and repeatable, without root. It is built once from the distribution's source.
    """


@command.command("build")
@click.option(
    "--source", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A Linux 6.12 tarball to build from."
)
@click.option("--json", "as_json", is_flag=True, help="Print where it is and what it was built from as JSON.")
def build_command(source: Path | None, as_json: bool) -> None:
    """Build the lab kernel unless it is built.

    Example: tracebed kernel build
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from emulator.kernel import build

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("looking for the lab kernel")
        kernel = build.build(
            lambda what, done, total: bar.update(task, description=what, completed=done, total=total), source
        )
        bar.update(task, description="the lab kernel is built", completed=1, total=1)
    _print(kernel, as_json)


@command.command("path")
@click.option("--json", "as_json", is_flag=True, help="Print where it is and what it was built from as JSON.")
def path_command(as_json: bool) -> None:
    """Say where the lab kernel is. Exit status 3 where it is not built.

    Example: tracebed kernel path
    """
    from emulator.kernel import build

    _print(build.require(), as_json)


def _print(kernel: Path, as_json: bool) -> None:
    from emulator.kernel import build

    click.echo(json.dumps({"path": str(kernel), **build.describe(kernel)}) if as_json else str(kernel))
