"""The `tracebed` command: one file a command, imported only when it is called."""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import NoReturn

import click

from emulator.errors import BedError, MachineError, NetworkError
from traces.errors import TraceError

# command name -> (module, one line for --help)
COMMANDS = {
    "record": ("replay.cli.record", "Run a training job and record what its ranks communicate."),
    "merge": ("replay.cli.merge", "Join traces of different ranks of one job."),
    "import": (
        "replay.cli.import_",
        "Turn recordings of a job (Kineto, PyTorch execution traces) and programs (GOAL, Chakra, SMPI) into one .trace file.",
    ),
    "synth": ("replay.cli.synth", "Make a trace from a model's description and a parallel layout."),
    "export": ("replay.cli.export", "Write a trace as other tools read it (GOAL, Chakra, SMPI)."),
    "info": ("replay.cli.info", "Say what a trace holds: ranks, groups, steps, operations, bytes."),
    "check": ("replay.cli.check", "Find what is wrong with a trace, and whether it can be replayed."),
    "scale": ("replay.cli.scale", "Make a recorded job larger, smaller or longer, or take names out of it."),
    "network": ("replay.cli.network", "Show networks and profiles as they are resolved."),
    "replay": ("replay.cli.replay", "Run a trace on emulated networks and measure the step time."),
    "why": (
        "replay.cli.why",
        "Say what holds the steps of a run: the critical path, and the step without each part of it.",
    ),
    "compose": ("replay.cli.compose", "Write a compose file that runs a trace on a network, in containers."),
    "bed": ("replay.cli.bed", "Keep networks up as test beds, probe them, run commands on their hosts."),
    "kernel": ("replay.cli.kernel", "Build the lab kernel, or say where it is."),
    "doctor": ("replay.cli.doctor", "Say what this machine can do, and how to mend what it can't."),
    "clean": ("replay.cli.clean", "Remove what runs that died have left behind."),
}
DONE, NO, BAD_INPUT, MACHINE_CANNOT = 0, 1, 2, 3


class _LazyGroup(click.Group):
    """Lists every command, imports only the one that is called: `tracebed --help` must not load numpy."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(COMMANDS[cmd_name][0]).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="tracebed")
def tracebed() -> None:
    """Record a training job's communication once, replay it on any network, read the step time.

    Exit status: 0 done; 1 the answer is no (a check failed, a run can't be trusted); 2 bad input; 3 this machine can't.
    """


def main() -> NoReturn:
    """Run the command that the arguments name."""
    guarded(partial(tracebed.main, standalone_mode=False))


def guarded(call: Callable[[], object]) -> NoReturn:
    """Do `call` and exit with the status it returns.

    What a user can cause is one line on standard error and an exit status, never a traceback.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ended as by Ctrl-C: what was made is taken down
    try:
        status = call()
    except click.ClickException as error:
        error.show()
        sys.exit(BAD_INPUT)
    except (click.Abort, KeyboardInterrupt):
        print("tracebed: stopped", file=sys.stderr)
        sys.exit(NO)
    except (TraceError, NetworkError) as error:
        print(f"tracebed: {error}", file=sys.stderr)
        sys.exit(BAD_INPUT)
    except MachineError as error:
        print(f"tracebed: {error}", file=sys.stderr)
        sys.exit(MACHINE_CANNOT)
    except BedError as error:
        print(f"tracebed: {error}", file=sys.stderr)
        sys.exit(NO)
    except OSError as error:
        print(f"tracebed: {error.filename or ''}: {error.strerror or error}", file=sys.stderr)
        sys.exit(BAD_INPUT)
    sys.exit(status if isinstance(status, int) else DONE)


if __name__ == "__main__":
    main()
