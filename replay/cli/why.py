"""`tracebed why`: what holds the steps of runs that were made."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("why", no_args_is_help=True)
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON: a list for each FOLDER.")
def command(folders: tuple[Path, ...], as_json: bool) -> None:
    """Say what is on the critical path of the steps that are in run FOLDERs, and what a step would be without each.

    The path goes back from the last rank's mark to whatever each moment waited for, by times as they were measured. For "a step
    without it" all moments are put together anew, with no time for that rank's compute, those operations' messages, or that
    link. Messages that stay take as long as they did, so what shares a link with what is taken away would be faster still.
    Operations and links show the same time from two sides.

    \b
    Example:
      tracebed why runs/resnet50-ethernet-10g
    """  # fmt: skip
    import msgspec

    from replay.results import read_holders, read_run

    found = [(folder, read_run(folder), read_holders(folder)) for folder in folders]
    if as_json:
        click.echo(msgspec.json.encode([holders for *_, holders in found]).decode())
        return
    from replay.cli.table import show_why

    for folder, run, holders in found:
        if not holders and run.request.library:
            click.echo(f"{folder.name}: not known, as its messages are {run.request.library}'s")
            continue
        show_why(folder.name, run.summary.step_mean_ns if run.summary else 0.0, holders)
