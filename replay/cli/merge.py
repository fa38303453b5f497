"""`tracebed merge`: traces of some ranks each to one trace of the job."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("merge", no_args_is_help=True)
@click.argument("traces", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The .trace to write."
)
def command(traces: tuple[Path, ...], output: Path) -> int:
    """Join TRACES, which hold different ranks of one job, as `tracebed record` wrote them on several machines.

    The machines' clocks are aligned by when collectives end.

    \b
    Example:
      tracebed merge node0.trace node1.trace -o job.trace
    """
    from traces import archive
    from traces.merge import merged

    trace = merged([archive.read(path) for path in traces])
    archive.write(trace, output)
    ranks = f"{len(trace.programs)} of {trace.world_size} ranks"
    click.echo(f"{output}: {ranks}, {trace.step_count} steps, {len(trace.findings)} findings (tracebed check {output})")
    return 0
