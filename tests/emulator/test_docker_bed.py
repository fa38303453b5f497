"""A docker bed on this machine's own kernel: its hosts are containers that need nothing inside, and it goes without a trace.
Links without rate and delay need no netem, which not every kernel has."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from emulator.beds.docker import DockerBed
from emulator.beds.netns import NetnsBed
from emulator.cleaning import clean
from emulator.containers import LABEL, remove_container
from emulator.errors import BedError, MachineError, NetworkError
from emulator.ledger import Claim, Ledger, leftovers
from emulator.namespace import inside
from emulator.network import from_dict
from tests.dockerd import daemon, docker, make_image
from tests.emulator.test_netns_bed import namespaces, star
from tests.guest import ROOT

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("root")]

BED_THAT_DIES = """
import os, signal, sys
from emulator.beds.docker import DockerBed
from emulator.ledger import Ledger
from tests.emulator.test_netns_bed import star
with Ledger(sys.argv[1]) as own:
    bed = DockerBed(star(2), own)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with daemon() as at:
        yield at


@pytest.fixture(autouse=True)
def at_docker(needs: Callable[..., None], address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon is the tests', and so are the ledgers."""
    needs("docker")
    monkeypatch.setenv("DOCKER_HOST", address)
    monkeypatch.setenv("TRACEBED_STATE", str(tmp_path / "state"))


@pytest.fixture
def run_id() -> str:
    return f"test{os.getpid()}"


def containers() -> list[str]:
    return docker("ps", "--all", "--format={{.Names}}").split()


def images() -> list[str]:
    return docker("images", "--format={{.Repository}}:{{.Tag}}").split()


def on_host(bed: DockerBed, host: str, work: Callable[[], str]) -> str:
    """What `work` returns in a process that has moved onto the host."""
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            bed.enter(host)
            os.write(into, work().encode())
        finally:
            os._exit(0)
    os.close(into)
    with os.fdopen(out) as said:
        found = said.read()
    os.waitpid(pid, 0)
    return found


def test_hosts_are_containers_that_reach_each_other_and_nothing_is_left(run_id: str) -> None:
    with Ledger(run_id) as own, DockerBed(star(3), own) as bed:
        names = [f"tb-{run_id}-h{number}" for number in range(3)]
        assert sorted(containers()) == names
        own_label = docker("ps", "--quiet", f"--filter=label={LABEL}={run_id}")
        assert len(own_label.split()) == 3
        assert (
            docker("inspect", "--format={{.HostConfig.NetworkMode}} {{.HostConfig.CapDrop}}", names[0]) == "none [ALL]"
        )
        with inside(bed.namespace("h2")), socket.create_server((bed.address("h2"), 5001)) as server:
            assert on_host(bed, "h0", lambda: _call(bed.address("h2"))) == bed.address("h0")
            stream, source = server.accept()
            stream.close()
            assert source[0] == bed.address("h0")
        assert len(bed.counters()) == 6
        assert namespaces(run_id) == {f"tb-{run_id}-{node}" for node in ("h0", "h1", "h2", "sw", "wires")}
    assert (containers(), images(), namespaces(run_id)) == ([], [], set())
    assert list(leftovers()) == []


def _call(address: str) -> str:
    with socket.create_connection((address, 5001), timeout=10) as stream:
        return str(stream.getsockname()[0])


def test_a_process_on_a_host_is_in_the_container(run_id: str, needs: Callable[..., None]) -> None:
    """Of an image without Python, a shell or anything that runs by itself."""
    make_image("bare", {"etc/only-here": Path(__file__)})
    try:
        with Ledger(run_id) as own, DockerBed(star(2), own, image="bare") as bed:
            seen = on_host(bed, "h1", lambda: f"{sorted(os.listdir('/etc'))} {socket.gethostname()}")
            assert "only-here" in seen
            assert seen.endswith(" h1")
            container = docker("inspect", "--format={{.Id}}", f"tb-{run_id}-h1")
            inherited = os.open("/proc", os.O_RDONLY)  # the image has another /proc, which doesn't show the process
            try:
                groups = on_host(bed, "h1", lambda: _groups(inherited))
            finally:
                os.close(inherited)
            assert container in groups
    finally:
        docker("rmi", "bare")
    assert containers() == []


def _groups(proc: int) -> str:
    with os.fdopen(os.open(f"{os.getpid()}/cgroup", os.O_RDONLY, dir_fd=proc)) as file:
        return file.read()


def test_beds_side_by_side(run_id: str) -> None:
    with Ledger(f"{run_id}a") as one, Ledger(f"{run_id}b") as other, DockerBed(star(2), one) as left:
        with DockerBed(star(2), other):
            assert len(containers()) == 4
        assert sorted(containers()) == [f"tb-{run_id}a-h0", f"tb-{run_id}a-h1"]
        assert images() == [f"tracebed:{run_id}a"]
        left.close()
        assert containers() == []  # and closing again is harmless


def test_without_a_daemon(run_id: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody")
    with pytest.raises(MachineError, match="no Docker daemon answers at unix://"), Ledger(run_id) as own:
        DockerBed(star(2), own)
    assert list(leftovers()) == []


def test_an_image_that_is_not_there(run_id: str) -> None:
    with pytest.raises(NetworkError, match="has no image 'nowhere'; mend: docker pull nowhere"), Ledger(run_id) as own:
        DockerBed(star(2), own, image="nowhere")
    assert (containers(), list(leftovers())) == ([], [])


def test_a_container_that_somebody_removed(run_id: str, address: str) -> None:
    with Ledger(run_id) as own, DockerBed(star(2), own) as bed:
        assert remove_container(address, f"tb-{run_id}-h1")
        with pytest.raises(BedError, match=f"container tb-{run_id}-h1 has ended"):
            bed.enter("h1")
    assert containers() == []


def test_a_container_that_ends_before_who_is_in_it(run_id: str) -> None:
    """Docker leaves its cgroups then."""
    name = f"tb-{run_id}-h1"
    with Ledger(run_id) as own, DockerBed(star(2), own) as bed:
        container = docker("inspect", "--format={{.Id}}", name)
        if not (pid := os.fork()):
            bed.enter("h1")
            signal.pause()
        groups = Path(f"/proc/{pid}/cgroup")
        while container not in groups.read_text():
            pass  # it has not entered yet
        docker("kill", name)
        docker("wait", name)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert containers() == []
    assert list(Path("/sys/fs/cgroup").glob(f"**/*{container}*")) == []


def test_a_network_that_no_bed_can_have_leaves_no_container(run_id: str) -> None:
    twice = {name: {"rate": "unlimited", "ends": ["h0", "h1"]} for name in ("x", "y")}
    network = from_dict({"hosts": ["h0", "h1"], "links": twice})
    with pytest.raises(NetworkError, match="has 2 links"), Ledger(run_id) as own:
        DockerBed(network, own)
    assert (containers(), images()) == ([], [])


def dies(run_id: str) -> None:
    """A bed's process is killed once the bed is up."""
    command = [sys.executable, "-c", BED_THAT_DIES, run_id]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == -signal.SIGKILL
    assert len(containers()) == 2


def test_what_a_dead_bed_leaves_is_cleaned(run_id: str, address: str) -> None:
    with Ledger(f"{run_id}live") as own, NetnsBed(star(2), own):
        dies(run_id)
        removed = clean()
        names = {Claim("container", f"{address} tb-{run_id}-h{number}") for number in (0, 1)}
        assert names | {Claim("image", f"{address} tracebed:{run_id}")} <= set(removed)
        assert (containers(), images(), namespaces(run_id)) == ([], [], set())
        assert len(namespaces(f"{run_id}live")) == 4
    assert clean() == ()


def test_what_is_left_without_its_daemon_is_said(run_id: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with Ledger(run_id) as own:
        own.claim("container", f"unix://{tmp_path}/gone tb-{run_id}-h0")
    ledger = tmp_path / "state" / f"tracebed-{run_id}.json"
    content = json.loads(ledger.read_text())
    ledger.write_text(json.dumps({**content, "owner": "4194305 1"}))  # no process can have such an id
    left: list[str] = []
    assert clean(left.append) == ()
    (said,) = left
    assert f"tb-{run_id}-h0 is left: no Docker daemon answers at unix://{tmp_path}/gone" in said
    assert ledger.exists()
