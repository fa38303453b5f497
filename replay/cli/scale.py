"""`tracebed scale`: a recorded job with more or fewer ranks or steps, or without names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from replay.cli.options import STEPS


@click.command("scale", no_args_is_help=True)
@click.argument("trace", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The .trace to write."
)
@click.option("--ranks", type=click.IntRange(min=2), help="Ranks of the new job: whole replicas.")
@click.option("--along", help="A group whose ranks are replicas of the model, where more than one kind could be.")
@click.option("--repeat", type=click.IntRange(min=1), default=1, help="How often the steps are done.")
@STEPS
@click.option("--drop-warm-up", type=click.IntRange(min=0), default=0, help="Steps to leave out at the start.")
@click.option("--anonymise", is_flag=True, help="Leave out names of operations, groups, hosts and files.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    trace: Path,
    output: Path,
    ranks: int | None,
    along: str | None,
    repeat: int,
    steps: str,
    drop_warm_up: int,
    anonymise: bool,
    as_json: bool,
) -> int:
    """Make another job of the one in TRACE: more or fewer ranks or steps, no warm-up, no names.

    First steps are cut, then ranks made, then steps repeated. --ranks makes more or fewer replicas of the model, each with
    its own tensor parallel, pipeline and other groups and a batch as a recorded one had. --along says by a group's name what is
    data-parallel where that can't be told. What is assumed is said, and is kept in the file as findings.

    \b
    Example:
      tracebed scale resnet50.trace --ranks 32 --drop-warm-up 1 --repeat 5 -o resnet50-32.trace
      tracebed scale llama.trace --ranks 64 --along dp-0-0 -o llama-64.trace
    """
    from replay.request import parse_steps
    from traces import archive
    from traces.scale import anonymised, repeated, with_ranks
    from traces.steps import select

    if steps and drop_warm_up:
        raise click.UsageError("--steps and --drop-warm-up both say where to begin: expected one of them")
    recorded = archive.read(trace)
    made = recorded
    if anonymise:
        along = next((str(group.id) for group in recorded.groups if group.name == along), along)
        made = recorded = anonymised(recorded)
    if window := steps or (drop_warm_up and f"{drop_warm_up}:"):
        made = select(made, *parse_steps(window, made.step_count))
    if ranks is not None:
        made = with_ranks(made, ranks, along=along)
    made = repeated(made, repeat)
    archive.write(made, output)
    known = {replace(finding, op=-1) for finding in recorded.findings}
    assumed = [finding for finding in made.findings if replace(finding, op=-1) not in known]
    if as_json:
        import msgspec

        said = {
            "trace": str(output),
            "hash": archive.trace_hash(output),
            "world_size": made.world_size,
            "steps": made.step_count,
            "assumed": msgspec.to_builtins(assumed),
        }
        click.echo(msgspec.json.encode(said).decode())
        return 0
    for finding in assumed:
        click.echo(f"assumed: {finding.message}")
    click.echo(f"{output}: {made.world_size} ranks, {made.step_count} steps")
    return 0
