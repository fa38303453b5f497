"""200 kills at random moments of `bed up`, of a run and of `bed down`: after `clean` the machine is as it was before."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from emulator.beds import kept
from emulator.cleaning import clean
from emulator.namespace import FOLDER
from tests.dockerd import daemon, docker
from tests.replay.runs import computing, written

NETWORK = "topology: {star: {hosts: 3}}\nlink: {rate: unlimited}\n"
KILLS = {"netns": 60, "docker": 7}  # of each of three commands: 201
SEED = 11
LISTS = {"links": "ip -br link", "qdiscs": "tc qdisc"}

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("root")]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The ledgers of these beds are their own."""
    monkeypatch.setenv("TRACEBED_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def started(arguments: list[str]) -> int:
    """A process that runs a command of ours, forked to spare it the imports; its id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        silence = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silence, stream)
        os.setpgid(0, 0)
        from replay.cli.main import tracebed

        tracebed.main(arguments, standalone_mode=False)
    finally:
        os._exit(0)


def killed_within(arguments: list[str], limit_s: float) -> bool:
    """Kill the command after so long, unless it ended before; whether it was killed."""
    pid = started(arguments)
    handle = os.pidfd_open(pid)
    try:
        ended, _, _ = select.select([handle], [], [], limit_s)
        if not ended:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        os.waitpid(pid, 0)
        return not ended
    finally:
        os.close(handle)


def machine(state: Path) -> dict[str, object]:
    """What of a bed could be left."""
    seen = {name: subprocess.check_output(command.split(), text=True).split() for name, command in LISTS.items()}
    ledgers = sorted(path.name for path in state.iterdir()) if state.exists() else []
    return {**seen, "namespaces": sorted(path.name for path in FOLDER.glob("tb-*")), "ledgers": ledgers}


def bed_is_up(name: str) -> bool:
    return any(bed.name == name for bed in kept.beds())


@pytest.mark.parametrize("bed", KILLS)
def test_nothing_is_left(bed: str, needs: Callable[..., None], tmp_path: Path, state: Path) -> None:
    needs("ip", "tc", *(["dockerd", "docker"] if bed == "docker" else []))
    with daemon() if bed == "docker" else nullcontext():
        kill_all(bed, KILLS[bed], tmp_path, state)
        if bed == "docker":
            assert docker("ps", "--all", "--quiet") == ""
            assert docker("images", "--quiet") == ""
            assert docker("network", "ls", "--format={{.Name}}").split() == ["host", "none"]


def kill_all(bed: str, kills: int, tmp_path: Path, state: Path) -> None:
    chance = random.Random(SEED)
    network = tmp_path / "bare.yaml"
    network.write_text(NETWORK)
    trace = written(computing(3, 5_000_000, steps=10), tmp_path)
    name = f"kill{os.getpid()}"
    commands = {
        "up": ["bed", "up", str(network), "--name", name, "--bed", bed],
        "run": [
            "replay",
            str(trace),
            "--network",
            str(network),
            "--on",
            "host",
            "--bed",
            bed,
            "-o",
            str(tmp_path / "runs"),
        ],
        "down": ["bed", "down", name],
    }
    before = machine(state)
    lasts: dict[str, float] = dict.fromkeys(commands, 60)
    for _ in range(3):  # the first of each imports what the others have
        for what, arguments in commands.items():  # up comes before down
            lasts[what] = min(lasts[what], seconds(arguments))
    assert machine(state) == before
    for number in range(kills):
        for what, arguments in commands.items():
            while True:
                if what == "down":
                    seconds(commands["up"])
                    assert bed_is_up(name)
                hit = killed_within(arguments, chance.uniform(0, lasts[what]))
                clean()
                if bed_is_up(name):  # it was up before it was killed, or up still
                    kept.down(name)
                assert machine(state) == before, f"{what}, killed for the {number + 1}. time"
                if hit:
                    break


def seconds(arguments: list[str]) -> float:
    """How long a command takes that nobody kills."""
    began = time.monotonic()
    assert not killed_within(arguments, 60), arguments
    return time.monotonic() - began
