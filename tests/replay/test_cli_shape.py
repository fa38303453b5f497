"""`tracebed bed shape` as a user runs it: containers of a Docker daemon on this machine's own kernel, which may lack netem.

All is in a network namespace of its own, daemon included, so that what is to be as before can be looked at as a whole.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from emulator.ledger import written
from emulator.namespace import FOLDER
from tests.dockerd import daemon, docker, make_image
from tests.guest import ROOT
from tests.namespaces import fresh_namespace

PROGRAM = [sys.executable, "-c", "from replay.cli.main import main; main()"]
NAMES = ("alpha", "beta", "gamma", "other")
THREE = ("--container", "alpha", "--container", "beta", "--container", "gamma")
CLAIMS = 7  # a namespace, and for each container a device and the end of its cable
COMPOSE = """
version: "2.4"
networks: {default: {ipam: {config: [{subnet: 10.9.0.0/24}]}}}
services:
  worker: {image: small, command: sleep 9999, scale: 2}
  db: {image: small, command: sleep 9999}
"""

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("root")]


@pytest.fixture(scope="module")
def machine(root: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A namespace with a Docker daemon, in which this thread is, and a network of four containers."""
    busybox = shutil.which("busybox")
    assert busybox is not None
    with fresh_namespace(f"tracebed-test-shape-{os.getpid()}"), daemon():
        make_image("small", {"bin/busybox": Path(busybox)}, {"bin/ping": "busybox", "bin/sleep": "busybox"})
        docker("network", "create", "--subnet=10.8.0.0/24", "wire")
        for container in NAMES:
            docker("run", "-d", f"--name={container}", "--network=wire", "small", "sleep", "9999")
        yield


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledgers of these shapes are their own."""
    monkeypatch.setenv("TRACEBED_STATE", str(tmp_path / "state"))


@pytest.fixture
def star(tmp_path: Path) -> str:
    """A network that tbf can make."""
    file = tmp_path / "star.yaml"
    file.write_text("topology: {star: {}}\nlink: {rate: 100 mbit, queue: 1 MB}\n")
    return str(file)


def shape(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*PROGRAM, "bed", "shape", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def answer(*arguments: str, status: int = 0) -> Any:
    done = shape("--json", *arguments)
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout)


def refused(*arguments: str, status: int = 2) -> str:
    done = shape(*arguments)
    assert (done.returncode, done.stdout) == (status, "")
    assert "Traceback" not in done.stderr
    return done.stderr


def call(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def everything() -> list[str]:
    """What is to be as before: devices with all their settings, qdiscs, filters, and shapes' namespaces."""
    cables = [link["ifname"] for link in json.loads(call("ip", "-j", "link"))]
    filters = [call("tc", "filter", "show", "dev", cable, "ingress") for cable in cables]
    boxes = sorted(path.name for path in FOLDER.glob("tb-shape-*"))
    return [*call("ip", "link").splitlines(), *call("tc", "qdisc").splitlines(), *filters, *boxes]


def ping(source: str, target: str) -> None:
    """Raises where nothing comes back."""
    address = docker("inspect", "--format={{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", target)
    docker("exec", source, "ping", "-c", "1", "-w", "5", address)


def packets() -> dict[tuple[str, str], int]:
    (shown,) = answer("--show")["shapes"]
    return {(line["source"], line["target"]): line["packets"] for line in shown["directions"]}


def cable_of(container: str) -> str:
    """The device where a container's cable ends."""
    pid = docker("inspect", "--format={{.State.Pid}}", container)
    (port,) = json.loads(call("nsenter", "-t", pid, "-n", "ip", "-j", "link", "show", "eth0"))
    (device,) = (
        link["ifname"] for link in json.loads(call("ip", "-j", "link")) if link["ifindex"] == port["link_index"]
    )
    return str(device)


@pytest.fixture(autouse=True)
def programs(needs: Callable[..., None], request: pytest.FixtureRequest) -> None:
    needs("dockerd", "docker", "docker-compose", "busybox", "nsenter", "ip", "tc")
    request.getfixturevalue("machine")


def test_containers_are_shaped_changed_and_reset_and_nothing_else_is_touched(star: str) -> None:
    before = everything()
    other = cable_of("other")
    made = answer(star, *THREE, "--set", "link.rate=50 mbit")
    assert made["hosts"] == {"host0": "alpha", "host1": "beta", "host2": "gamma"}
    assert not made["in_place"]
    ping("alpha", "beta")
    ping("other", "alpha")
    ping("gamma", "other")
    assert packets() == {
        ("host0", "switch"): 1, ("switch", "host0"): 1, ("host1", "switch"): 1, ("switch", "host1"): 1,
        ("host2", "switch"): 0, ("switch", "host2"): 0,
    }  # fmt: skip
    assert call("tc", "qdisc", "show", "dev", other) == "qdisc noqueue 0: root refcnt 2 \n"
    assert answer(star, *THREE)["in_place"]
    (shown,) = answer("--show")["shapes"]
    assert {line["asked"] for line in shown["directions"]} == {"rate 100 mbit, queue 1 MB"}
    assert all("rate 100 mbit" in line["kernel"] and not line["differs"] for line in shown["directions"])
    assert packets()["host0", "switch"] == 1  # changed, not made anew
    clean = subprocess.run([*PROGRAM, "clean"], cwd=ROOT, capture_output=True, text=True)
    assert clean.stdout == "nothing to remove\n"
    answer("--reset", "--container", "beta")
    assert everything() == before
    assert not list(written())
    assert answer("--show") == {"right": True, "shapes": []}


def test_a_qdisc_that_somebody_changed_is_shown(star: str) -> None:
    answer(star, *THREE)
    (box,) = FOLDER.glob("tb-shape-*")
    devices = [link["ifname"] for link in json.loads(call("ip", "-n", box.name, "-j", "link"))]
    device = next(name for name in ("w1ups0", "w1b") if name in devices)  # where it waits: with netem behind, or alone
    command = ["tc", "-n", box.name, "qdisc", "change", "dev", device, "handle", "1:", "root", "tbf"]
    subprocess.run([*command, "rate", "7mbit", "burst", "3000", "limit", "100000"], check=True)
    said = answer("--show", status=1)
    wrong = [line for shown in said["shapes"] for line in shown["directions"] if line["differs"]]
    assert [(line["source"], line["target"]) for line in wrong] == [("host1", "switch")]
    assert "the kernel has 7 mbit" in wrong[0]["differs"]
    answer("--reset")


def test_a_container_that_was_started_anew_is_shown_and_shaped_again(star: str) -> None:
    answer(star, *THREE)
    docker("restart", "-t", "0", "beta")
    (shown,) = answer("--show", status=1)["shapes"]
    assert shown["not_shaped"] == ["host1"]
    assert not answer(star, *THREE)["in_place"]
    ping("alpha", "beta")
    assert packets()["host0", "switch"] == 1
    answer("--reset")


def test_a_compose_project_is_found_by_its_services(star: str, tmp_path: Path) -> None:
    file = tmp_path / "docker-compose.yml"
    file.write_text(COMPOSE)
    compose = ["docker-compose", "-p", "lab", "-f", str(file)]
    subprocess.run([*compose, "up", "-d"], check=True, capture_output=True)
    try:
        named = tmp_path / "named.yaml"
        links = "{a: {ends: [worker-1, hub]}, b: {ends: [worker-2, hub]}}"
        named.write_text(f"hosts: [worker-1, worker-2]\nswitches: [hub]\nlink: {{rate: 10 mbit}}\nlinks: {links}\n")
        made = answer(str(named), "--compose-project", "lab")
        assert made["hosts"] == {"worker-1": "lab_worker_1", "worker-2": "lab_worker_2"}
        ping("lab_worker_1", "lab_worker_2")
        ping("lab_db_1", "lab_worker_2")
        assert packets()["worker-1", "hub"] == 1
        all_of_it = answer(star, "--compose-project", "lab")  # no name fits, so in order
        assert all_of_it["hosts"] == {"host0": "lab_db_1", "host1": "lab_worker_1", "host2": "lab_worker_2"}
        assert not all_of_it["in_place"]
        assert answer(star, *THREE)["hosts"]["host0"] == "alpha"  # two beds at once
        assert [shown["project"] for shown in answer("--show")["shapes"]] in (["lab", ""], ["", "lab"])
        assert "several beds are shaped" in refused("--reset")
        answer("--reset", "--compose-project", "lab")
        answer("--reset", *THREE)
    finally:
        subprocess.run([*compose, "down", "-t", "0"], check=True, capture_output=True)


def test_what_cannot_be_shaped_is_refused_before_anything_is_touched(star: str) -> None:
    before = everything()
    assert "there is no container 'nobody'" in refused(star, "--container", "nobody")
    assert "no container of the compose project 'none' runs" in refused(star, "--compose-project", "none")
    assert "expected each container with one host" in refused(star, "--container", "alpha=host0", "--container", "beta")
    assert "no such container is shaped; those that are: none" in refused("--reset", "--container", "alpha")
    assert "expected one of NET, --show and --reset" in refused("--show", "--reset")
    assert "'nowhere' doesn't join" in refused(star, *THREE, "--docker-network", "nowhere")
    docker("run", "-d", "--name=apart", "--network=none", "small", "sleep", "9999")
    assert "apart is on none" in refused(star, "--container", "alpha", "--container", "apart")
    docker("rm", "-f", "apart")
    cable = cable_of("beta")
    call("tc", "qdisc", "add", "dev", cable, "root", "tbf", "rate", "1mbit", "burst", "2000", "limit", "9000")
    assert f"{cable}, where the cable of container beta ends, is shaped by somebody else (tbf)" in refused(star, *THREE)
    call("tc", "qdisc", "del", "dev", cable, "root")
    call("ip", "link", "set", cable, "txqueuelen", "0")  # tc's doing
    answer(star, "--container", "alpha", "--container", "beta")
    assert "beta is shaped together with others: alpha, beta" in refused(
        star, "--container", "beta", "--container", "gamma"
    )
    answer("--reset")
    assert everything() == before


def test_whatever_a_kill_leaves_behind_is_cleaned(star: str) -> None:
    before = everything()
    left = []
    for claims in range(1, CLAIMS + 1):
        process = subprocess.Popen([*PROGRAM, "bed", "shape", star, *THREE], cwd=ROOT, stdout=subprocess.DEVNULL)
        while process.poll() is None and sum(len(ledger.claims) for ledger in written()) < claims:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.wait()
        left += [len(ledger.claims) for ledger in written() if ledger.kept is None]
        subprocess.run([*PROGRAM, "clean"], cwd=ROOT, check=True, capture_output=True)
        if list(written()):
            answer("--reset")  # it was done
        assert everything() == before
    assert len(left) > CLAIMS // 2
    ping("alpha", "beta")
