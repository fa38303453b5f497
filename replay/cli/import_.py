"""`tracebed import`: recordings of a job to one .trace file."""

from __future__ import annotations

from pathlib import Path

import click

from replay.cli.written import say


@click.command("import", no_args_is_help=True)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The .trace to write."
)
@click.option("--format", "format_name", help="Read every file as this format; otherwise each file's content decides.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(files: tuple[Path, ...], output: Path, format_name: str | None, as_json: bool) -> int:
    """Turn recordings of one job into one .trace file.

    FILES are files, archives (.tar.gz) or folders of them, gzipped or not; their content says what they are:

    \b
      recordings of ranks   Kineto traces and PyTorch execution traces (of one rank: joined), flight recorder dumps,
                            what `tracebed record` left of a job, PARAM's basic traces
      logs                  of NCCL and RCCL (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=INIT,COLL), NCCL Inspector's, a
                            Horovod timeline, liballprof's traces of MPI
      programs              Chakra's .et and JSON, GOAL schedules, SMPI's time-independent traces
      workloads             of AICB and SimAI
      captures              of the job's packets: .pcap, .pcapng

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
    say(trace, output, as_json=as_json)
    return 0
