"""The compose file and what it mounts; ranks that report, and those that don't."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from emulator.errors import BedError
from replay.muster import called, reach, report
from replay.plan import lower
from replay.process import fork
from replay.request import Request
from tests.composed import compose
from tests.replay.runs import all_reduces, tracebed, written

THREE = "hosts: {a: {ranks: [0, 2]}, b: {ranks: [1]}, idle: {}}\nswitches: [s]\nlink: {rate: 1 gbit, delay: 1 us}\n"
LINKS = "links: {one: {ends: [a, s]}, two: {ends: [b, s]}, three: {ends: [idle, s]}}\n"


def made(folder: Path, *options: str, network: str = THREE + LINKS, status: int = 0) -> str:
    """`tracebed compose` of three ranks into FOLDER/bed; what it says."""
    (folder / "three.yaml").write_text(network)
    trace = written(all_reduces(3, 1000, steps=2), folder)
    said = tracebed("compose", trace, "--network", folder / "three.yaml", "-o", folder / "bed", *options)
    assert said.returncode == status, said.stderr
    return said.stdout + said.stderr


def services(folder: Path) -> dict[str, Any]:
    found = yaml.safe_load((folder / "bed" / "docker-compose.yml").read_text())
    assert found.keys() == {
        "services",
        "volumes",
    }  # docker-compose 1.29 refuses `name`, the specification's tools `version`
    return found["services"]


def test_a_container_a_host_that_has_ranks(tmp_path: Path) -> None:
    made(tmp_path, "--image", "other:1")
    found = services(tmp_path)
    assert {name: service["command"][3:] for name, service in found.items()} == {
        "tracebed": [],
        "a": ["0", "2"],
        "b": ["1"],
    }
    for service in found.values():
        assert service["image"] == "other:1"
        assert service["network_mode"] == "none"
        assert service["read_only"]
        assert not service.keys() & {"privileged", "pid", "ports", "container_name"}
        for mount in service["volumes"]:
            assert mount["type"] == "volume" or (tmp_path / "bed" / mount["source"]).exists()


def test_only_the_one_that_shapes_has_privileges(tmp_path: Path) -> None:
    made(tmp_path)
    found = services(tmp_path)
    assert all(service["cap_drop"] == ["ALL"] for service in found.values())
    assert [name for name, service in found.items() if service.keys() & {"cap_add", "security_opt"}] == ["tracebed"]
    assert [name for name, service in found.items() if service["user"] == "0:0"] == ["tracebed"]
    writable = [mount["source"] for mount in found["tracebed"]["volumes"] if not mount.get("read_only", True)]
    assert writable == ["./runs"]


def test_docker_compose_takes_it(tmp_path: Path, needs: Callable[..., None]) -> None:
    needs("docker-compose")
    made(tmp_path)
    said = compose(tmp_path / "bed", "config", "--services")
    assert said.returncode == 0, said.stderr
    assert set(said.stdout.split()) == {"tracebed", "a", "b"}


def test_the_request_is_what_was_asked(tmp_path: Path) -> None:
    said = made(
        tmp_path, "--set", "link.rate=2 gbit", "--what-if", "compute=0.5", "--steps", "1:2", "--verify", "--json"
    )
    assert json.loads(said) == {
        "folder": str(tmp_path / "bed"),
        "image": "tracebed",
        "services": ["tracebed", "a", "b"],
    }
    request = msgspec.json.decode((tmp_path / "bed" / "request.json").read_bytes(), type=Request)
    assert (request.trace, request.bed, request.ground) == ("/tracebed/job.trace", "compose", "host")
    assert (request.what_if, request.steps, request.verify) == (("compute=0.5",), "1:2", True)
    assert {link.a_to_b.rate for link in request.resolved_network().links} == {2 * 10**9}


def test_ranks_may_read_what_only_its_owner_could(tmp_path: Path) -> None:
    written(all_reduces(3, 1000, steps=2), tmp_path).chmod(0o600)
    made(tmp_path)
    assert (tmp_path / "bed" / "job.trace").stat().st_mode & 0o777 == 0o644


def test_each_folder_is_a_project_of_its_own(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        made(tmp_path / name)
    one, other = ((tmp_path / name / "bed" / ".env").read_text() for name in ("one", "other"))
    assert one != other


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "bed").mkdir()
    (tmp_path / "bed" / "mine").touch()
    assert "is not empty" in made(tmp_path, status=2)
    assert [path.name for path in (tmp_path / "bed").iterdir()] == ["mine"]


def test_a_host_that_is_called_as_the_service(tmp_path: Path) -> None:
    network = (THREE + LINKS).replace("idle", "tracebed")
    assert "'tracebed' is what the service is called" in made(tmp_path, network=network, status=2)
    assert not (tmp_path / "bed").exists()


def test_who_has_not_reported_is_named(tmp_path: Path) -> None:
    plan, meeting = lower(all_reduces(2, 1000, steps=1)), tmp_path / "socket"
    rank = fork(lambda parent: report(plan.ranks[0], reach(meeting)))
    try:
        with pytest.raises(BedError, match=r"not reported: 1 \(on b\)$"), called({0: "a", 1: "b"}, meeting, limit_s=1):
            pytest.fail("rank 1 is there")
        assert os.waitstatus_to_exitcode(os.waitpid(rank.pid, 0)[1]) == 1
    finally:
        rank.close()
        rank.end()
    assert not meeting.exists()


def test_who_has_reported_hands_its_namespace_over(tmp_path: Path) -> None:
    plan, meeting = lower(all_reduces(1, 1000, steps=1)), tmp_path / "socket"
    rank = fork(lambda parent: report(plan.ranks[0], reach(meeting)))
    try:
        with called({0: "a"}, meeting) as muster:
            assert os.stat(muster.namespaces["a"]).st_ino == os.stat("/proc/self/ns/net").st_ino
    finally:
        rank.close()
        rank.end()


def test_a_coordinator_that_does_not_come(tmp_path: Path) -> None:
    with pytest.raises(BedError, match=r"waited 0 s for the coordinator at .*/socket"):
        reach(tmp_path / "socket", limit_s=0)


def test_a_container_without_its_files() -> None:
    """A line, not a traceback."""
    argv = [sys.executable, "-m", "replay.cli.composed", "0"]
    said = subprocess.run(argv, capture_output=True, text=True)
    assert (said.returncode, said.stderr) == (2, "tracebed: /tracebed/request.json: No such file or directory\n")
