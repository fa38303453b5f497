"""What this machine can do, as `tracebed doctor` says it, and what `tracebed clean` removes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from emulator import doctor
from emulator.doctor import Check, a_ground_works, examine
from emulator.errors import BedError, MachineError
from emulator.kernel import boot, build
from emulator.ledger import process_name
from replay.cli.doctor import command
from tests.emulator.test_trials import PARTS
from tests.guest import ROOT

RUN_THAT_HANGS = """
from emulator.kernel.boot import Guest, run
from emulator.ledger import Ledger
with Ledger("hangs") as ledger:
    run(Guest(("sh", "-c", "echo up; while :; do :; done")), ledger, on_output=lambda line: print(line, flush=True))
"""


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The ledgers of these runs are their own."""
    monkeypatch.setenv("TRACEBED_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def tracebed(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", "from replay.cli.main import main; main()"]
    settings = {**os.environ, **environment}
    return subprocess.run([*program, *arguments], cwd=ROOT, env=settings, capture_output=True, text=True)


def checks(**environment: str) -> dict[str, Any]:
    """The checks that `tracebed doctor --json` prints, by name."""
    said = tracebed("doctor", "--json", **environment)
    return {check["name"]: check for check in json.loads(said.stdout)["checks"]}


@pytest.fixture
def no_docker(monkeypatch: pytest.MonkeyPatch) -> None:
    """docker 7.1 leaves the socket open that found no daemon: only a process of its own may ask."""
    monkeypatch.setattr(doctor, "_docker", lambda: Check("docker", False, "not asked", "ask"))


@pytest.mark.lab
@pytest.mark.usefixtures("lab")
def test_a_machine_with_the_lab_kernel_can_replay(state: Path) -> None:
    said = checks(DOCKER_HOST=f"unix://{state}/none.sock")
    always = {"python", "processors", "clock", "virtual", "host", "docker", "compose", "leftovers"}
    assert always < set(said)
    assert set(said) - always == ({*PARTS} if os.geteuid() == 0 else {"kernel"})
    assert said["virtual"]["works"]
    assert not said["docker"]["works"]
    assert said["docker"]["mend"].startswith("sudo apt-get install -y docker.io")
    assert all(check["works"] == (not check["mend"]) for check in said.values())
    assert not list(state.iterdir())  # nothing of what was tried is left
    table = tracebed("doctor")
    assert table.returncode == 0
    assert "virtual" in table.stdout


@pytest.mark.usefixtures("no_docker")
def test_without_a_ground_the_exit_status_is_3_and_each_mend_is_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_namespaces(*_: object) -> None:
        raise MachineError("can't make a network namespace", mend="run as root")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "missing_tools", lambda: ("flex", "bison"))
    monkeypatch.setattr("emulator.beds.netns.NetnsBed", no_namespaces)
    assert command.main([], standalone_mode=False) == 3
    lines = capsys.readouterr().out.splitlines()
    assert "to mend virtual: sudo apt-get install -y flex bison && tracebed kernel build" in lines
    assert "to mend host: run as root" in lines
    assert "to mend docker: ask" in lines
    monkeypatch.setattr(build, "missing_tools", tuple)
    assert {check.name: check.mend for check in examine()}["virtual"] == "tracebed kernel build"


@pytest.mark.lab
@pytest.mark.usefixtures("lab", "no_docker")
def test_a_kernel_that_does_not_boot_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> int:
        raise BedError("the lab kernel was killed by signal 11")

    monkeypatch.setattr(boot, "run", fail)
    (check,) = (check for check in examine() if check.name == "virtual")
    assert not check.works
    assert check.mend.endswith("&& tracebed kernel build")


def test_a_clock_that_is_slow_to_read_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = tmp_path / "current_clocksource"
    monkeypatch.setattr(doctor, "_CLOCK", clock)
    assert doctor._clock().works  # the kernel doesn't say
    (tmp_path / "available_clocksource").write_text("hpet tsc acpi_pm\n")
    clock.write_text("hpet\n")
    assert doctor._clock().mend == f"echo tsc | sudo tee {clock}"
    clock.write_text("tsc\n")
    assert doctor._clock() == Check("clock", True, "tsc")


def test_compose_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor._compose().mend == "sudo apt-get install -y docker-compose"
    plugin = tmp_path / "docker"
    plugin.write_text("#!/bin/sh\necho 2.27.1\n")
    plugin.chmod(0o755)
    assert doctor._compose() == Check("compose", True, "docker compose 2.27.1")


def test_one_ground_is_enough() -> None:
    virtual, host = Check("virtual", False, "", "x"), Check("host", True, "")
    assert a_ground_works((virtual, host))
    assert not a_ground_works((virtual, Check("docker", True, "")))


@pytest.mark.lab
@pytest.mark.usefixtures("lab")
def test_clean_removes_the_folder_of_a_lab_run_that_was_killed(state: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.Popen([sys.executable, "-c", RUN_THAT_HANGS], env=environment, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    with run.stdout:
        assert run.stdout.readline() == "up\n"
        claims = dict(json.loads((state / "tracebed-hangs.json").read_text())["claims"])
        assert json.loads(tracebed("clean", "--json").stdout) == []  # it is alive
        run.send_signal(signal.SIGKILL)
        run.wait()
    check = checks()["leftovers"]
    assert (check["works"], check["mend"]) == (False, "tracebed clean")
    assert "tracebed-hangs" in check["detail"]
    # The kernel dies with the run that booted it, at once or when it is killed here.
    assert {"kind": "folder", "name": claims["folder"]} in json.loads(tracebed("clean", "--json").stdout)
    assert not Path(claims["folder"]).exists()
    assert process_name(int(claims["process"].split()[0])) is None
    assert tracebed("clean").stdout == "nothing to remove\n"
