"""`tracebed merge`: traces of some ranks each to one trace of the job."""

from __future__ import annotations

from pathlib import Path

import click

from replay.cli.written import say


@click.command("merge", no_args_is_help=True)
@click.argument("traces", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The .trace to write."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(traces: tuple[Path, ...], output: Path, as_json: bool) -> int:
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
    say(trace, output, as_json=as_json)
    return 0
