"""`tracebed replay --bed docker` as users run it: on this machine's own kernel, with their images, and where Docker isn't there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.dockerd import daemon, docker, make_image
from tests.replay.runs import overlapping, tracebed, written

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("root")]

IMAGE = "small"
"""Without Python, a shell, and anything that runs by itself."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with daemon() as at:
        busybox = shutil.which("busybox")
        assert busybox is not None
        make_image(IMAGE, {"bin/busybox": Path(busybox)})
        yield at


@pytest.fixture
def environment(address: str, tmp_path: Path) -> Mapping[str, str]:
    return {"DOCKER_HOST": address, "TRACEBED_STATE": str(tmp_path / "state")}


@pytest.fixture(autouse=True)
def programs(needs: Callable[..., None]) -> None:
    needs("dockerd", "docker", "busybox")


@pytest.fixture
def arguments(tmp_path: Path) -> list[str | Path]:
    """A replay between containers on this machine, whose kernel may have no netem: tbf alone will do."""
    network = tmp_path / "bare.yaml"
    network.write_text("topology: {star: {}}\nlink: {rate: 200 mbit, queue: 200 kB}\n")
    trace = written(overlapping(3, 300_000, steps=2), tmp_path)
    return ["replay", trace, "--network", network, "--on", "host", "--bed", "docker", "-o", tmp_path / "runs"]


def nothing_is_left(tmp_path: Path) -> bool:
    containers = docker("ps", "--all", "--quiet")
    images = docker("images", "--format={{.Repository}}").split()
    return containers == "" and images == [IMAGE] and not list((tmp_path / "state").iterdir())


@pytest.mark.parametrize("image", ["", IMAGE])
def test_on_this_machine(
    image: str, arguments: list[str | Path], environment: Mapping[str, str], tmp_path: Path
) -> None:
    """Every element is checked, by code that has to be there without the image's files."""
    chosen = ["--image", image] if image else []
    done = tracebed(*arguments, *chosen, "--verify", "--json", env=environment)
    (run,) = json.loads(done.stdout)
    assert (run["status"], run["request"]["bed"], run["request"]["image"]) == ("complete", "docker", image), done.stderr
    assert done.returncode == bool(run["doubts"])  # of a machine that has other work
    assert run["summary"]["verified"] > 0
    # A ring takes 400 kB out of each host, at 200 Mbit/s.
    assert run["summary"]["step_mean_ns"] > run["summary"]["ideal_step_ns"] + 10_000_000
    assert nothing_is_left(tmp_path)


@pytest.mark.lab
@pytest.mark.usefixtures("lab")
def test_an_image_of_this_machine_in_virtual_time(
    arguments: list[str | Path], environment: Mapping[str, str], tmp_path: Path
) -> None:
    arguments[arguments.index("host")] = "virtual"
    done = tracebed(*arguments, "--set", "link.rate=1 gbit", "--image", IMAGE, "--verify", "--json", env=environment)
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)
    assert (run["status"], run["request"]["image"]) == ("complete", IMAGE)
    assert run["summary"]["verified"] > 0
    assert nothing_is_left(tmp_path)


@pytest.mark.parametrize("ground", ["host", pytest.param("virtual", marks=pytest.mark.lab)])
@pytest.mark.usefixtures("lab")
def test_an_image_that_is_not_there(
    ground: str, arguments: list[str | Path], environment: Mapping[str, str], tmp_path: Path
) -> None:
    arguments[arguments.index("host")] = ground
    done = tracebed(*arguments, "--image", "nowhere", env=environment)
    assert done.returncode == 2
    assert "has no image 'nowhere'; mend: docker pull nowhere" in done.stderr.splitlines()[-1]
    assert nothing_is_left(tmp_path)


def test_without_a_daemon(arguments: list[str | Path], environment: Mapping[str, str], tmp_path: Path) -> None:
    done = tracebed(*arguments, env={**environment, "DOCKER_HOST": f"unix://{tmp_path}/nobody"})
    assert done.returncode == 3
    last = done.stderr.splitlines()[-1]
    assert f"no Docker daemon answers at unix://{tmp_path}/nobody: No such file or directory; mend: " in last
    assert nothing_is_left(tmp_path)


def test_a_daemon_elsewhere(arguments: list[str | Path], environment: Mapping[str, str]) -> None:
    done = tracebed(*arguments, env={**environment, "DOCKER_HOST": "tcp://192.0.2.1:2375"})
    assert done.returncode == 3
    assert "Docker at tcp://192.0.2.1:2375: expected a daemon of this machine; mend: " in done.stderr.splitlines()[-1]


def test_an_image_for_another_bed(arguments: list[str | Path], environment: Mapping[str, str]) -> None:
    arguments[arguments.index("docker")] = "netns"
    done = tracebed(*arguments, "--image", IMAGE, env=environment)
    assert done.returncode == 2
    assert "--image belongs to --bed docker" in done.stderr
