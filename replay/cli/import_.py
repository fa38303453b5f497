"""`tracebed import`: recordings of a job to one .trace file."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command("import", no_args_is_help=True)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The .trace to write."
)
@click.option("--format", "format_name", help="Read every file as this format; otherwise each file's content decides.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(files: tuple[Path, ...], output: Path, format_name: str | None, as_json: bool) -> int:
    """Turn recordings of one job into one .trace file.

    FILES are Kineto traces and PyTorch execution traces of the job's ranks: .json, .json.gz, .tar.gz, or folders of
    them. The two of one rank are joined. Or they hold programs: a GOAL schedule, Chakra's .et
    files, SMPI's time-independent traces, liballprof's traces of MPI; or logs: of NCCL and RCCL (NCCL_DEBUG=INFO,
    NCCL_DEBUG_SUBSYS=INIT,COLL), NCCL Inspector's, a Horovod timeline; or workloads of AICB and SimAI.

    \b
    Example:
      tracebed import recorded/resnet50 -o resnet50.trace
    """
    from importlib.metadata import version

    from traces import archive
    from traces.importer import import_files

    made_with = {"tracebed": version("tracebed")}
    trace = import_files(files, format_name=format_name, provenance=made_with)
    archive.write(trace, output)
    if as_json:
        findings = [
            {"code": f.code, "rank": f.rank, "message": f.message, "severity": f.severity} for f in trace.findings
        ]
        click.echo(
            json.dumps(
                {
                    "trace": str(output),
                    "hash": archive.trace_hash(output),
                    "world_size": trace.world_size,
                    "ranks": sorted(trace.programs),
                    "steps": trace.step_count,
                    "findings": findings,
                }
            )
        )
        return 0
    ranks = f"{len(trace.programs)} of {trace.world_size} ranks"
    click.echo(f"{output}: {ranks}, {trace.step_count} steps, {len(trace.findings)} findings (tracebed check {output})")
    return 0
