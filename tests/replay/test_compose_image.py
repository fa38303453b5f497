"""containers/Dockerfile builds without a network, and what it builds runs a compose file."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.composed import compose, exit_statuses
from tests.dockerd import daemon, docker, make_image
from tests.guest import ROOT
from tests.replay.runs import overlapping, run_json, tracebed, written

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("root")]

PACKAGES = ("python3-venv", "libc-bin", "libstdc++6", "dash", "coreutils")
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "traces", "emulator", "replay", "containers", ".dockerignore")
UNLIMITED = "topology: {star: {}}\nlink: {rate: unlimited}\n"


def call(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr or done.stdout
    return done.stdout


def make_base() -> None:
    """An image of this machine's Debian packages: as one by debootstrap, but smaller and in a second."""
    kinds = ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")
    asked = ("apt-cache", "depends", "--recurse", "--installed", *(f"--no-{kind}" for kind in kinds), *PACKAGES)
    needed = [line for line in call(*asked).splitlines() if not line.startswith((" ", "<", "|"))]
    paths = map(Path, call("dpkg-query", "-L", *needed).splitlines())
    there = [path for path in paths if path.exists() and not path.is_dir()]
    files = {str(path).lstrip("/"): path for path in (*there, Path("/etc/ld.so.cache"))}
    make_image("base", files, {"var/run": "../run"})


def sources(folder: Path) -> Path:
    """What the build sees, with the wheels for the base's Python."""
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile
        copy(ROOT / name, folder / name)  # type: ignore[operator]
    python = str(folder / "venv" / "bin" / "python")
    call("/usr/bin/python3", "-m", "venv", str(folder / "venv"))
    call(python, "-m", "pip", "wheel", "-q", "-w", str(folder / "wheels"), str(folder), "setuptools>=70")
    return folder


def test_the_image_is_built_offline_and_runs_a_compose_file(
    tmp_path: Path, needs: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("dockerd", "docker", "docker-compose", "apt-cache", "dpkg-query")
    monkeypatch.setenv("DOCKER_BUILDKIT", "0")  # the classic builder, which Engine 20.10 has
    (tmp_path / "source").mkdir()
    source = sources(tmp_path / "source")
    (tmp_path / "net.yaml").write_text(UNLIMITED)
    trace = written(overlapping(2, 300_000, steps=2), tmp_path)
    asked = tracebed("compose", trace, "--network", tmp_path / "net.yaml", "-o", tmp_path / "bed")
    assert asked.returncode == 0, asked.stderr
    with daemon():
        make_base()
        offline = ("BASE=base", "PIP_ARGUMENTS=--no-index --find-links /source/wheels")
        arguments = [part for argument in offline for part in ("--build-arg", argument)]

        docker("build", *arguments, "-f", str(source / "containers" / "Dockerfile"), "-t", "tracebed", str(source))
        assert docker("inspect", "--format={{.Config.User}}", "tracebed") == "65534:65534"
        assert docker("run", "--rm", "--network=none", "tracebed").startswith("Usage: tracebed")
        up = compose(tmp_path / "bed", "up", "--no-color")
        (run,) = (tmp_path / "bed" / "runs").iterdir()
        said = run_json(run)
        assert exit_statuses(tmp_path / "bed") == {"tracebed": bool(said.doubts), "host0": 0, "host1": 0}, up.stdout
    assert said.status == "complete"
