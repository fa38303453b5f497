"""Any part of a run killed: it ends at once with an error that names what died, keeps what it measured, leaves nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from emulator.ledger import process_name
from emulator.namespace import FOLDER
from tests.dockerd import daemon, docker
from tests.replay.runs import all_reduces, computing, rows, run_json, tracebed, tracebed_argv, written

SOON_S = 5
PATIENCE_S = 60
RANKS = 4
LINKS = Path("/sys/class/net")


def wait_until(condition: Callable[[], bool], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s} s"
        time.sleep(0.02)


@dataclass(frozen=True)
class Running:
    """A replay under way: the command, where its runs go, and where its ledger is."""

    command: subprocess.Popen[str]
    base: Path
    state: Path

    @property
    def folder(self) -> Path:
        (folder,) = self.base.iterdir()
        return folder

    def steps(self) -> int:
        """How many steps have ended."""
        return sum(len(rows(file)) for file in self.base.glob("*/steps.csv"))

    def owned(self, kind: str) -> list[str]:
        """What its ledger holds of a kind, in the order in which it was made."""
        (ledger,) = self.state.glob("*.json")
        return [name for of, name in json.loads(ledger.read_text())["claims"] if of == kind]

    def processes(self) -> list[int]:
        return [int(name.split()[0]) for name in self.owned("process")]

    def fails(self, error: str) -> None:
        """Within 5 s the command ends and says so, in its last line and in run.json; it keeps the steps that ended."""
        _, said = self.command.communicate(timeout=SOON_S)
        assert self.command.returncode == 1
        assert "Traceback" not in said
        assert error in said.splitlines()[-1]
        run = run_json(self.folder)
        assert (run.status, run.summary) == ("failed", None)
        assert error in run.error
        assert self.steps() >= 2


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Starts a replay with these arguments, and comes back when two of its steps have ended."""
    state, base = tmp_path / "state", tmp_path / "runs"
    begun: list[subprocess.Popen[str]] = []

    def go(*arguments: str | Path) -> Running:
        argv = tracebed_argv("replay", *arguments, "-o", base)
        env = {**os.environ, "TRACEBED_STATE": str(state)}
        command = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        begun.append(command)
        running = Running(command, base, state)
        wait_until(lambda: command.poll() is not None or running.steps() >= 2, PATIENCE_S)
        assert command.poll() is None
        return running

    yield go
    for command in begun:
        command.terminate()
        command.communicate()


def bare(folder: Path) -> Path:
    """A network file whose links are not shaped, so any kernel can make them."""
    network = folder / "bare.yaml"
    network.write_text("topology: {star: {}}\nlink: {rate: unlimited}\n")
    return network


@pytest.fixture
def on_virtual(lab: Path, start: Callable[..., Running], tmp_path: Path) -> Running:
    """100 steps in the lab kernel, packet by packet: a third of a second each."""
    trace = written(all_reduces(RANKS, 20_000_000, steps=100), tmp_path)
    return start(trace, "--network", "ethernet-10g", "--fidelity", "packet")


@pytest.fixture
def on_host(root: None, start: Callable[..., Running], tmp_path: Path) -> Running:
    """600 steps of 100 ms on this machine's kernel."""
    network = bare(tmp_path)
    return start(written(computing(RANKS, 100_000_000, steps=600), tmp_path), "--network", network, "--on", "host")


@pytest.fixture
def in_containers(
    root: None, needs: Callable[..., None], start: Callable[..., Running], tmp_path: Path
) -> Iterator[Running]:
    """The same with hosts that are containers, of a daemon of our own."""
    needs("dockerd", "docker")
    network = bare(tmp_path)
    trace = written(computing(RANKS, 100_000_000, steps=600), tmp_path)
    with daemon():
        yield start(trace, "--network", network, "--on", "host", "--bed", "docker")


@pytest.fixture
def with_companions(root: None, start: Callable[..., Running], tmp_path: Path) -> Running:
    """The same with background traffic between two hosts and a capture: three processes more, which are started first."""
    network = tmp_path / "busy.yaml"
    traffic = "traffic: [{constant: {from: host0, to: host1, rate: 1 mbit}}]\n"
    network.write_text("topology: {star: {}}\nlink: {rate: unlimited}\n" + traffic)
    trace = written(computing(RANKS, 100_000_000, steps=600), tmp_path)
    return start(trace, "--network", network, "--on", "host", "--pcap", "host0")


@dataclass(frozen=True)
class Traces:
    """What a run has on this machine while it runs: all of it must be gone afterwards."""

    processes: tuple[str, ...]
    namespaces: tuple[str, ...]
    folders: tuple[str, ...]

    @classmethod
    def of(cls, running: Running) -> Traces:
        processes = [pid for owned in running.processes() for pid in (owned, *children(owned))]
        assert processes
        return cls(
            tuple(filter(None, map(process_name, processes))),
            tuple(running.owned("netns")),
            tuple(running.owned("folder")),
        )

    def processes_are_gone(self) -> bool:
        return not any(process_name(int(name.split()[0])) == name for name in self.processes)

    def are_gone(self) -> bool:
        mounts = Path("/proc/mounts").read_text()
        named = any((FOLDER / name).exists() or name in mounts for name in self.namespaces)
        return self.processes_are_gone() and not named and not any(Path(folder).exists() for folder in self.folders)


def children(pid: int) -> list[int]:
    """The processes that a process has started, oldest first."""
    return sorted(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


@pytest.mark.lab
def test_the_lab_kernel_is_killed(on_virtual: Running) -> None:
    traces = Traces.of(on_virtual)
    (kernel,) = on_virtual.processes()
    kill(kernel)
    on_virtual.fails("the lab kernel was killed by signal 9")
    wait_until(traces.are_gone, SOON_S)


@pytest.mark.lab
@pytest.mark.parametrize(
    ("which", "error"),
    [(1, "the coordinator was killed"), (2, "rank 0's process was killed"), (-1, f"rank {RANKS - 1}'s process was")],
    ids=["coordinator", "first rank", "last rank"],
)
def test_a_process_of_the_lab_kernel_is_killed(on_virtual: Running, which: int, error: str) -> None:
    traces = Traces.of(on_virtual)
    (kernel,) = on_virtual.processes()
    # A lab kernel's own helper (lab.patch, watch_spinners), then init, the coordinator and the ranks.
    _helper, *inside = children(kernel)
    assert len(inside) == 2 + RANKS
    kill(inside[which])
    on_virtual.fails(error)
    wait_until(traces.are_gone, SOON_S)


@pytest.mark.root
@pytest.mark.torch
@pytest.mark.usefixtures("root", "torch")
@pytest.mark.parametrize(
    ("library", "said"),
    [
        ("gloo", r"rank (\d) lost its connection to rank 2 \(.*\); rank \1 (computes|waits for|starts)"),
        ("mpi", r"(; rank [013] (computes|waits for barrier|starts an operation).*){3}"),
    ],
)
def test_a_rank_whose_operations_are_a_librarys_is_killed(
    library: str, said: str, start: Callable[..., Running], tmp_path: Path
) -> None:
    """Ranks of gloo's notice; those of MPICH's may wait for ever, and are asked."""
    network = bare(tmp_path)
    trace = written(computing(RANKS, 100_000_000, steps=600), tmp_path)
    running = start(trace, "--network", network, "--on", "host", "--library", library)
    traces = Traces.of(running)
    kill(running.processes()[2])
    running.fails("rank 2's process was killed by signal 9 (SIGKILL); rank ")
    assert re.search(said, run_json(running.folder).error)
    wait_until(traces.are_gone, SOON_S)


@pytest.mark.root
def test_a_rank_on_this_machine_is_killed(on_host: Running) -> None:
    traces = Traces.of(on_host)
    assert (len(traces.processes), len(traces.namespaces)) == (RANKS, RANKS + 2)
    kill(on_host.processes()[2])
    on_host.fails("rank 2's process was killed by signal 9 (SIGKILL); rank ")
    error = run_json(on_host.folder).error
    assert re.search(
        r"; rank (\d) lost its connection to rank 2 .*; rank \1 (computes|waits for message .* from)", error
    )
    wait_until(traces.are_gone, SOON_S)


@pytest.mark.root
@pytest.mark.parametrize(
    ("which", "name"),
    [
        (0, "the background traffic of host host0"),
        (1, "the background traffic of host host1"),
        (2, "the capture of link host0"),
    ],
)
def test_a_process_beside_the_ranks_is_killed(which: int, name: str, with_companions: Running) -> None:
    traces = Traces.of(with_companions)
    assert len(traces.processes) == RANKS + 3
    kill(with_companions.processes()[which])
    with_companions.fails(f"the process of {name} was killed by signal 9 (SIGKILL)")
    wait_until(traces.are_gone, SOON_S)


@pytest.mark.root
def test_the_command_is_killed_with_what_runs_beside_the_ranks(with_companions: Running) -> None:
    the_command_is_killed(with_companions)


@pytest.mark.lab
def test_the_command_is_killed_while_the_lab_kernel_runs(on_virtual: Running) -> None:
    the_command_is_killed(on_virtual)


@pytest.mark.root
def test_the_command_is_killed_while_it_runs_on_this_machine(on_host: Running) -> None:
    the_command_is_killed(on_host)


@pytest.mark.root
def test_the_command_is_killed_while_it_runs_in_containers(in_containers: Running) -> None:
    assert len(in_containers.owned("container")) == RANKS
    the_command_is_killed(in_containers)
    assert docker("ps", "--all", "--quiet") == docker("images", "--quiet") == ""


@pytest.mark.root
def test_stopped_by_its_user_in_containers(in_containers: Running) -> None:
    stopped(in_containers, signal.SIGTERM)
    assert docker("ps", "--all", "--quiet") == docker("images", "--quiet") == ""


def the_command_is_killed(running: Running) -> None:
    """Its processes die with it; what else it made, `tracebed clean` takes away."""
    links, traces = set(os.listdir(LINKS)), Traces.of(running)
    kill(running.command.pid)
    running.command.communicate(timeout=SOON_S)
    wait_until(traces.processes_are_gone, SOON_S)
    assert not traces.are_gone()
    assert running.steps() >= 2
    cleaned = tracebed("clean", env={"TRACEBED_STATE": str(running.state)})
    assert cleaned.returncode == 0, cleaned.stderr
    assert traces.are_gone()
    assert list(running.state.iterdir()) == []
    assert set(os.listdir(LINKS)) == links


@pytest.mark.lab
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_by_its_user_in_the_lab_kernel(on_virtual: Running, number: signal.Signals) -> None:
    stopped(on_virtual, number)


@pytest.mark.root
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_by_its_user_on_this_machine(on_host: Running, number: signal.Signals) -> None:
    stopped(on_host, number)


@pytest.mark.root
def test_ctrl_c_reaches_all_of_a_terminals_processes(on_host: Running) -> None:
    """The ranks get it as well: they leave it to the command, so no rank is found dead before the run is known to be stopped."""
    for pid in on_host.processes():
        os.kill(pid, signal.SIGINT)
    stopped(on_host, signal.SIGINT)


@pytest.mark.lab
@pytest.mark.usefixtures("lab")
def test_of_a_stopped_run_the_table_shows_the_steps_that_ended(tmp_path: Path) -> None:
    """And of several, each that had begun; the second waits for the first, which has the only place."""
    trace = written(all_reduces(2, 20_000_000, steps=1000), tmp_path)
    arguments = (
        "--network",
        "ethernet-10g,ethernet-25g",
        "--fidelity",
        "packet",
        "--jobs",
        "1",
        "-o",
        tmp_path / "runs",
    )
    command = subprocess.Popen(
        tracebed_argv("replay", trace, *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    folder = tmp_path / "runs" / "job-ethernet-10g"
    wait_until(lambda: (folder / "steps.csv").exists() and len(rows(folder / "steps.csv")) >= 2, PATIENCE_S)
    command.send_signal(signal.SIGINT)
    table, said = command.communicate(timeout=SOON_S)
    assert (command.returncode, said.splitlines()[-1]) == (1, "tracebed: stopped")
    run = run_json(folder)
    assert run.summary is not None
    assert run.summary.drops is None
    assert f"ethernet-10g: stopped; after {run.summary.steps} of 1000 steps" in table.splitlines()
    (row,) = (line for line in table.splitlines() if line.startswith(" ethernet-10g, stopped "))
    assert f"{run.summary.step_mean_ns / 1e6:.4g}" in row.split()
    assert row.split()[-1] == "?"
    assert "ethernet-25g" not in table
    assert not (tmp_path / "runs" / "job-ethernet-25g" / "run.json").exists()


def stopped(running: Running, number: signal.Signals) -> None:
    traces = Traces.of(running)
    running.command.send_signal(number)
    _, said = running.command.communicate(timeout=SOON_S)
    assert running.command.returncode == 1
    assert said.splitlines()[-1] == "tracebed: stopped"
    assert "Traceback" not in said
    run = run_json(running.folder)
    assert run.status == "stopped"
    assert run.summary is not None
    assert run.summary.steps == running.steps() >= 2
    assert run.error.startswith(f"after {run.summary.steps} of ")
    assert traces.are_gone()
    assert list(running.state.iterdir()) == []
