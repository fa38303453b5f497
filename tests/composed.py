"""Compose files of `tracebed compose` for tests: an image of nothing, and this machine's own programs mounted into it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.dockerd import make_image

ROOT = Path(__file__).parents[1]
IMAGE = "nothing"
_MOUNTS = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/ld.so.cache", sys.base_prefix, sys.prefix, str(ROOT))


def make_nothing() -> None:
    """The image: what its containers run is mounted."""
    make_image(IMAGE, links={"var/run": "../run"})


def use_this_machine(folder: Path) -> None:
    """Have the compose file in `folder` use this machine's programs, and this repository as it is."""
    file = yaml.safe_load((folder / "docker-compose.yml").read_text())
    path = f"{Path(sys.prefix) / 'bin'}:/usr/bin:/bin"
    extra = {
        "environment": {"PATH": path, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        "volumes": [f"{mount}:{mount}:ro" for mount in _MOUNTS],
    }
    override = {"services": {name: json.loads(json.dumps(extra)) for name in file["services"]}}
    (folder / "docker-compose.override.yml").write_text(yaml.safe_dump(override))


def argv(*arguments: str) -> Sequence[str]:
    """The command line of `docker-compose ARGUMENTS`."""
    return ["docker-compose", *arguments]


def environment() -> Mapping[str, str]:
    """What it is started with: a project's name is its folder's alone."""
    return {key: value for key, value in os.environ.items() if not key.startswith("COMPOSE_")}


def compose(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`docker-compose ARGUMENTS` in `folder`, run to its end."""
    return subprocess.run(argv(*arguments), cwd=folder, env=environment(), capture_output=True, text=True)


def exit_statuses(folder: Path) -> dict[str, int]:
    """How the container of each service ended."""
    found: dict[str, int] = {}
    for container in compose(folder, "ps", "-q").stdout.split():
        said = subprocess.run(["docker", "inspect", container], capture_output=True, text=True, check=True).stdout
        state: dict[str, Any] = json.loads(said)[0]
        assert not state["State"]["Running"]
        found[state["Config"]["Labels"]["com.docker.compose.service"]] = state["State"]["ExitCode"]
    return found
