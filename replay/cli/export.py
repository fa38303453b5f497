"""`tracebed export`: a trace in a format of other tools."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("export", no_args_is_help=True)
@click.argument("trace", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "name",
    required=True,
    help="goal (LogGOPSim, ATLAHS), chakra (ASTRA-sim), smpi-ti (SimGrid), param (PARAM's comms replay), perfetto (to look at "
    "in ui.perfetto.dev), csv or parquet (a row an operation).",
)
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help="The file to write; a folder for chakra and param.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(trace: Path, name: str, output: Path, as_json: bool) -> int:
    """Write TRACE in a format that other tools read.

    What the format can't hold is said. `tracebed import` reads goal, chakra, smpi-ti and param again.

    \b
    Examples:
      tracebed export resnet50.trace --to goal -o resnet50.goal
      tracebed export resnet50.trace --to perfetto -o resnet50.json
      tracebed export resnet50.trace --to smpi-ti -o resnet50.ti.txt
      echo resnet50.ti.txt > list; smpirun -np 4 -platform cluster.xml -hostfile hosts -replay list
    """
    import json

    from replay.export import export
    from traces import archive

    data, findings = export(archive.read(trace), name)
    if isinstance(data, bytes):
        output.write_bytes(data)
        size = len(data)
    else:
        output.mkdir(parents=True, exist_ok=True)
        for file, content in data.items():
            (output / file).write_bytes(content)
        size = sum(map(len, data.values()))
    if as_json:
        said = [{"code": f.code, "message": f.message, "severity": f.severity} for f in findings]
        click.echo(json.dumps({"file": str(output), "format": name, "bytes": size, "findings": said}))
        return 0
    click.echo(f"{output}: {name}, {size} bytes")
    for finding in findings:
        click.echo(f"{finding.code}: {finding.message}")
    return 0
