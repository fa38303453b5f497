"""`tracebed record`: run a job and record what its ranks communicate."""

from __future__ import annotations

from pathlib import Path

import click

from replay.cli.written import say


class _Steps(click.ParamType[tuple[int, int]]):
    """A:B, from 0."""

    name = "A:B"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        first, colon, beyond = str(value).partition(":")
        if not (colon and first.isascii() and beyond.isascii() and first.isdigit() and beyond.isdigit()):
            self.fail(f"{value!r}: expected two numbers of steps, as in 5:10", param, ctx)
        if int(first) >= int(beyond):
            self.fail(f"{value!r} holds no step", param, ctx)
        return int(first), int(beyond)


@click.command("record", no_args_is_help=True, context_settings={"ignore_unknown_options": True})
@click.option(
    "-o", "--output", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The .trace to write."
)
@click.option("--steps", "window", type=_Steps(), help="Only the steps from A up to but not including B, from 0.")
@click.option("--warmup", type=click.IntRange(0), help="Leave out the first N steps. [default: 1; with --steps 0]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON behind what the job prints.")
@click.argument("command_line", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    output: Path, window: tuple[int, int] | None, warmup: int | None, as_json: bool, command_line: tuple[str, ...]
) -> int:
    """Run COMMAND and record what its ranks communicate through torch.distributed, mpi4py or Horovod, step by step.

    COMMAND is started as it is: torchrun, mpirun, srun or Python itself. Nothing is installed in its environment, which needs
    torch 2.4 or newer where it uses torch. Steps end where an optimizer's step ends, else where a profiler's does; a job may say
    so itself (docs/record.md), as one of mpi4py must. What was recorded is kept when the job fails or is killed.

    A job of several machines is recorded on each, into files of their own; `tracebed merge` joins them.

    \b
    Examples:
      tracebed record -o resnet50.trace -- torchrun --nproc-per-node 4 train.py
      tracebed record -o node0.trace --steps 10:20 -- torchrun --nnodes 2 --node-rank 0 ... train.py
    """
    import os
    import shutil
    import tempfile
    from dataclasses import asdict
    from importlib.metadata import version

    from traces import archive
    from traces.record.join import join, overhead
    from traces.record.launch import environment, run

    skipped = warmup if warmup is not None else (0 if window else 1)
    if window is not None:
        window = (window[0] + skipped, window[1] + skipped)
    output.parent.mkdir(parents=True, exist_ok=True)
    # Beside the trace, not in /tmp: ranks that srun or mpirun starts on other machines reach a shared file system.
    folder = Path(tempfile.mkdtemp(prefix=f"{output.name}.", suffix=".recording", dir=output.parent))
    folder.chmod(0o755)
    status = run(command_line, environment(folder, os.environ, warmup=skipped, steps=window))
    ended = "" if status == 0 else f"the job ended with {_status(status)}; "
    try:
        made_with = {"tracebed": version("tracebed"), "command": " ".join(command_line)}
        trace = join(folder, warmup=skipped, only=window, provenance=made_with)
        archive.write(trace, output)
    except Exception:
        if any(folder.iterdir()):
            click.echo(f"tracebed: {ended}what the ranks wrote is in {folder}", err=True)
        else:
            folder.rmdir()
        raise
    cost = overhead(folder)
    shutil.rmtree(folder)
    say(trace, output, as_json=as_json, note=ended, more={"status": status, "overhead": asdict(cost)})
    if cost.operations and not as_json:
        each, share = cost.spent_ns / cost.operations / 1e3, 100 * cost.spent_ns / cost.elapsed_ns
        click.echo(
            f"recording took {each:.0f} us an operation, {share:.2f}% of the steps' time (the rank with the most)"
        )
    return 0 if status == 0 else 1


def _status(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"status {status}"
