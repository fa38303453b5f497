"""`tracebed bed`, run as a user runs it: errands in virtual time, and beds that stay up on this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from emulator.ledger import written
from emulator.namespace import FOLDER
from tests.dockerd import daemon, docker, make_image
from tests.guest import ROOT

PROGRAM = [sys.executable, "-c", "from replay.cli.main import main; main()"]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledgers of these beds are their own."""
    monkeypatch.setenv("TRACEBED_STATE", str(tmp_path / "state"))


@pytest.fixture
def plain(tmp_path: Path) -> str:
    """A network that needs no netem: three hosts, no limits."""
    file = tmp_path / "plain.yaml"
    file.write_text("topology: {star: {hosts: 3}}\nlink: {rate: unlimited}\n")
    return str(file)


@pytest.fixture
def names() -> Iterator[tuple[str, str]]:
    """Two names that no other bed has; what is up of them afterwards is taken down."""
    found = f"test{os.getpid()}-1", f"test{os.getpid()}-2"
    yield found
    for name in found:
        tracebed("down", name)


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [*PROGRAM, "bed", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def tracebed(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*PROGRAM, "bed", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def answer(command: str, *arguments: str) -> Any:
    done = tracebed(command, "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def namespaces(name: str) -> set[str]:
    return {path.name for path in FOLDER.glob(f"tb-bed-{name}-*")}


@pytest.mark.lab
@pytest.mark.usefixtures("lab")
def test_a_profile_does_what_it_says() -> None:
    said = answer("probe", "ethernet-10g", "--set", "link.delay=5 us", "--set", "link.loss=0.5%")
    assert said["right"]
    assert [(path["source"], path["target"]) for path in said["paths"]] == [("host0", "host1"), ("host1", "host0")]
    for path in said["paths"]:
        trip, rate, loss, reordering = path["findings"]
        on_the_wires = 4 * 1538 * 8 / 10  # ns: a full packet on two links, there and back
        assert trip["got"] == pytest.approx(20_000 + on_the_wires, abs=1000)
        assert rate["got"] == pytest.approx(10e9, rel=0.005)
        assert loss["got"] == pytest.approx(1 - 0.995**2, abs=loss["band"])
        assert loss["band"] == pytest.approx(3.4 * (0.01 * 0.99 / 10_000) ** 0.5, rel=0.05)
        assert reordering["got"] == 0
    assert not list(written())


@pytest.mark.lab
@pytest.mark.usefixtures("lab")
def test_paths_inside_a_machine_and_out_of_it_do_what_they_say(tmp_path: Path) -> None:
    file = tmp_path / "pods.yaml"
    file.write_text("profile: ethernet-25g\ntopology: {star: {hosts: 2, ranks_per_host: 2, island: nvlink-h100}}\n")
    said = answer("probe", str(file))
    assert said["right"]
    for path in said["paths"]:
        inside = path["source"][:5] == path["target"][:5]
        trip, rate, *_ = path["findings"]
        nvlink, ethernet = (65520 if inside else 1500) + 14, 1538  # bytes on the wire
        # there and back, over two links of each
        asked = 4 * (235 + nvlink * 8 / 2966.4) + (0 if inside else 4 * (1000 + ethernet * 8 / 25))
        assert trip["asked"] == pytest.approx(asked, abs=1)
        assert trip["got"] == pytest.approx(asked, abs=10)
        assert rate["got"] == pytest.approx(2966.4e9 if inside else 25e9, rel=0.005)


@pytest.mark.lab
@pytest.mark.usefixtures("lab")
def test_any_command_runs_on_a_host_in_virtual_time() -> None:
    script = "ip -br addr show eth0; echo to the errors >&2; exit 5"
    done = tracebed("exec", "ethernet-10g", "host1", "--", "sh", "-c", script)
    assert done.returncode == 5
    assert "10.0.0.2/32" in done.stdout
    assert "to the errors" in done.stdout
    assert tracebed("exec", "ethernet-10g", "host1", "--", "sh", "-c", "kill -9 $$").returncode == 128 + 9
    assert tracebed("exec", "ethernet-10g", "host1", "--", "no-such-program").returncode == 127


@pytest.mark.lab
@pytest.mark.usefixtures("lab")
def test_a_network_that_the_bed_cannot_be_is_refused_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(
        "hosts: [a, b]\nlink: {rate: 1 gbit}\nlinks: {x: {ends: [a, b]}, y: {ends: [a, b]}}\n",
    )
    done = tracebed("probe", str(file))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "host a has 2 links" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("exec", "ethernet-10g", "nobody", "--", "true"), "no host 'nobody': expected one of host0, host1"),
        (("down", "nothing"), "no bed called 'nothing' is up; there is none"),
        (("probe", "nothing", "--on", "host"), "no bed called 'nothing' is up"),
        (("probe", "nothing", "--on", "host", "--ranks", "2"), "belong to 'bed up'"),
        (("up", "ethernet-10g", "--name", "a/b"), "not a bed's name"),
        (("up", "ethernet-10g", "--image", "small"), "--image belongs to --bed docker"),
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments: tuple[str, ...], why: str) -> None:
    done = tracebed(*arguments)
    assert done.returncode == 2
    assert why in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.root
@pytest.mark.usefixtures("root")
def test_a_bed_stays_until_it_is_taken_down_and_leaves_nothing(plain: str, names: tuple[str, str]) -> None:
    name, _ = names
    hosts = [
        {"host": f"host{number}", "address": f"10.0.0.{number + 1}", "namespace": f"tb-bed-{name}-host{number}"}
        for number in range(3)
    ]
    up = answer("up", plain, "--name", name)
    assert up == [{"name": name, "network": "plain", "bed": "netns", "exact": up[0]["exact"], "hosts": hosts}]
    clean = subprocess.run([*PROGRAM, "clean"], cwd=ROOT, capture_output=True, text=True)
    assert clean.stdout == "nothing to remove\n"
    assert answer("status") == up
    assert answer("exec", name, "host2", "--on", "host", "--", "ip", "-br", "addr", "show", "eth0")["status"] == 0
    assert answer("probe", name, "--on", "host")["right"]
    made = namespaces(name)
    assert made == {f"tb-bed-{name}-{node}" for node in ("host0", "host1", "host2", "switch", "wires")}
    assert set(answer("down", name)["removed"]) == made
    assert answer("status") == []
    assert namespaces(name) == set()
    assert not list(written())


@pytest.mark.root
@pytest.mark.usefixtures("root")
def test_a_rate_holds_on_a_kernel_without_netem_too(tmp_path: Path, names: tuple[str, str]) -> None:
    """By buckets, and the bed says so. 100 Mbit/s is what any machine carries."""
    name, _ = names
    file = tmp_path / "slow.yaml"
    file.write_text("topology: {star: {hosts: 2}}\nlink: {rate: 100 mbit, queue: 100 kB}\n")
    (up,) = answer("up", str(file), "--name", name)
    said = tracebed("status").stdout
    assert ("this kernel has no netem" in said) != up["exact"]
    wires = subprocess.check_output(["tc", "-n", f"tb-bed-{name}-wires", "qdisc"], text=True)
    assert wires.count("rate 100Mbit") == 4  # two links, both ways
    assert ("netem" in wires) == up["exact"]
    file.write_text("topology: {star: {hosts: 2}}\nlink: {rate: 100 mbit, delay: 1 ms}\n")
    done = tracebed("up", str(file), "--name", f"{name}-slow")
    if up["exact"]:
        tracebed("down", f"{name}-slow")
    assert done.returncode == (0 if up["exact"] else 3)
    assert up["exact"] or "this kernel has no netem, and link host0 has delay; mend: load sch_netem" in done.stderr
    assert namespaces(f"{name}-slow") == set()


@pytest.mark.root
@pytest.mark.usefixtures("root")
def test_a_bed_of_containers_stays_too(plain: str, names: tuple[str, str], needs: Callable[..., None]) -> None:
    needs("dockerd", "docker", "busybox")
    name, _ = names
    with daemon():
        make_image("small", {"bin/busybox": Path(shutil.which("busybox") or "")})
        (up,) = answer("up", plain, "--name", name, "--bed", "docker", "--image", "small")
        assert (up["bed"], up["hosts"][1]["namespace"]) == ("docker", f"tb-bed-{name}-host1")
        subprocess.run([*PROGRAM, "clean"], cwd=ROOT, check=True)
        assert "10.0.0.1/32" in docker("exec", f"tb-bed-{name}-host0", "busybox", "ip", "addr", "show", "eth0")
        assert answer("probe", name, "--on", "host")["right"]
        answer("down", name)
        assert docker("ps", "--all", "--quiet") == ""
    assert namespaces(name) == set()
    assert not list(written())


@pytest.mark.root
@pytest.mark.usefixtures("root")
def test_a_bed_that_somebody_changed_is_found_out(plain: str, names: tuple[str, str]) -> None:
    name, _ = names
    answer("up", plain, "--name", name)
    port = ["ip", "-n", f"tb-bed-{name}-switch", "link", "set", "p1", "down"]  # where host1 is plugged in
    subprocess.run(port, check=True)
    done = tracebed("probe", name, "--on", "host", "--json")
    assert done.returncode == 1
    said = json.loads(done.stdout)
    wrong = {(path["source"], path["target"]) for path in said["paths"] if path["findings"][2]["verdict"] == "no"}
    assert wrong == {("host0", "host1"), ("host1", "host2")}


@pytest.mark.root
@pytest.mark.usefixtures("root")
def test_beds_that_come_up_at_once_do_not_collide(plain: str, names: tuple[str, str]) -> None:
    one, other = names
    started = [start("up", plain, "--name", name) for name in (one, other, one)]
    ended = [process.communicate() for process in started]
    statuses = [process.returncode for process in started]
    assert statuses[1] == 0
    assert sorted((statuses[0], statuses[2])) == [0, 1]  # a name is taken once
    assert sum(f"'{one}'" in said or f"bed-{one}" in said for _, said in ended) == 1
    assert {bed["name"] for bed in answer("status")} == {one, other}
    assert len(namespaces(one)) == len(namespaces(other)) == 5
    for name in (one, other):
        assert answer("probe", name, "--on", "host")["right"]
        answer("down", name)
    assert not list(written())
