"""The command line as a whole: light to start, an example for each command, JSON for machines."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from replay.cli.main import BAD_INPUT, COMMANDS, tracebed

HEAVY = ("numpy", "pandas", "pyroute2", "scapy", "docker", "rich", "msgspec", "yaml")


def _commands() -> list[tuple[str, ...]]:
    """Every command that does something, by the words that call it."""
    context = click.Context(tracebed)
    found: list[tuple[str, ...]] = []
    for name in COMMANDS:
        command = tracebed.get_command(context, name)
        assert command is not None
        found += [(name, inner) for inner in command.commands] if isinstance(command, click.Group) else [(name,)]
    return found


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from replay.cli.main import tracebed; tracebed(['--help'], standalone_mode=False);"
        f"print('loaded', [name for name in {HEAVY} if name in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "replay" in said
    assert said.splitlines()[-1] == "loaded []"


@pytest.mark.parametrize("words", _commands(), ids=" ".join)
def test_each_command_has_an_example_and_json(words: tuple[str, ...]) -> None:
    argv = [sys.executable, "-m", "replay.cli.main", *words, "--help"]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert "Example" in said
    assert f"tracebed {' '.join(words)}" in said
    assert "--json" in said


def test_an_unknown_command_is_bad_input() -> None:
    done = subprocess.run([sys.executable, "-m", "replay.cli.main", "fly"], capture_output=True, text=True, check=False)
    assert done.returncode == BAD_INPUT
    assert "fly" in done.stderr
    assert "Traceback" not in done.stderr
