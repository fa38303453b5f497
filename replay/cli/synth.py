"""`tracebed synth`: a model's description and a parallel layout to a .trace file."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command("synth", no_args_is_help=True)
@click.argument("model")
@click.option("--ranks", required=True, type=click.IntRange(2, 1024), help="How many ranks the job has.")
@click.option(
    "--layout",
    "layout_text",
    default="",
    help="dp, tp, pp, cp, ep, vpp, sp (0 or 1), zero (0-3), microbatches, as in dp=4,tp=2.",
)
@click.option("--steps", default=3, show_default=True, type=click.IntRange(1, 1000), help="How many training steps.")
@click.option("--batch", type=click.IntRange(1, 1 << 16), help="Samples a rank and pass, if not the description's.")
@click.option(
    "--tflops",
    type=click.FloatRange(0, min_open=True),
    help="What a device really does, 1e12 operations a second, if not the description's.",
)
@click.option(
    "-o", "--output", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The .trace to write."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    model: str,
    ranks: int,
    layout_text: str,
    steps: int,
    batch: int | None,
    tflops: float | None,
    output: Path,
    as_json: bool,
) -> int:
    """Make a trace of a job that nobody recorded.

    MODEL is the name of a shipped description (resnet50, gpt2, llama3-8b...) or a YAML file like them. Ranks that the
    layout does not name are data parallel. dp, tp and pp are data, tensor and pipeline parallel, cp context parallel (a ring),
    ep how many of the dp x cp ranks share the experts out, vpp chunks a rank of an interleaved pipeline, sp=1 sequence
    parallel among the tp ranks.

    \b
    Example:
      tracebed synth resnet50 --ranks 8 -o resnet50.trace
      tracebed synth llama3-8b --ranks 16 --layout tp=4,zero=3 -o llama.trace
      tracebed synth mixtral-8x7b --ranks 8 --layout ep=8 -o mixtral.trace
    """
    from dataclasses import replace
    from importlib.metadata import version

    from traces import archive, layout
    from traces.model import load
    from traces.synth import synthesize

    described = load(model)
    described = replace(described, batch=batch or described.batch, tflops=tflops or described.tflops)
    trace = synthesize(described, layout.parse(layout_text, ranks), steps=steps)
    trace = replace(trace, provenance={**trace.provenance, "tracebed": version("tracebed")})
    archive.write(trace, output)
    if as_json:
        said = {"trace": str(output), "hash": archive.trace_hash(output), "world_size": ranks, "steps": steps}
        click.echo(json.dumps({**said, "parameters": described.parameters}))
        return 0
    click.echo(f"{output}: {described.name}, {described.parameters:,} parameters, {ranks} ranks, {steps} steps")
    return 0
