"""A bed on this machine's own kernel: it is there, it carries packets, and it goes without a trace. Links without rate
and delay need no netem, which not every kernel has."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from itertools import permutations
from pathlib import Path

import pytest

from emulator.beds.netns import NetnsBed
from emulator.cleaning import clean
from emulator.errors import BedError, MachineError, NetworkError
from emulator.ledger import Claim, Ledger
from emulator.measure import survey
from emulator.namespace import FOLDER, Namespace, enter, inside, remove_named
from emulator.network import Network, from_dict
from emulator.probe import HOST
from tests.guest import ROOT

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("root")]

PLAIN = {"rate": "unlimited"}
BED_THAT_DIES = """
import os, signal, sys
from emulator.beds.netns import NetnsBed
from emulator.ledger import Ledger
from tests.emulator.test_netns_bed import star
with Ledger(sys.argv[1]) as own:
    bed = NetnsBed(star(2), own)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledgers of these runs are their own."""
    monkeypatch.setenv("TRACEBED_STATE", str(tmp_path / "state"))


@pytest.fixture
def run_id() -> str:
    return f"test{os.getpid()}"


def star(hosts: int, **top: object) -> Network:
    names = [f"h{number}" for number in range(hosts)]
    links = {name: {**PLAIN, "ends": [name, "sw"]} for name in names}
    return from_dict({"hosts": names, "switches": ["sw"], "links": links, **top})


def namespaces(run_id: str) -> set[str]:
    return {path.name for path in FOLDER.glob(f"tb-{run_id}-*")}


def test_hosts_reach_each_other_and_nothing_is_left(run_id: str) -> None:
    with Ledger(run_id) as own, NetnsBed(star(3), own) as bed:
        assert namespaces(run_id) == {f"tb-{run_id}-{node}" for node in ("h0", "h1", "h2", "sw", "wires")}
        with inside(bed.namespace("h2")):
            server = socket.create_server((bed.address("h2"), 5001))
        with inside(bed.namespace("h0")):
            client = socket.create_connection((bed.address("h2"), 5001), timeout=10)
        with server, client:
            stream, source = server.accept()
            with stream:
                assert source[0] == bed.address("h0")
                client.sendall(b"through two wires and a switch")
                assert stream.recv(64) == b"through two wires and a switch"
        carried = {(way.source, way.target): way for way in bed.counters()}
        assert set(carried) == {ends for host in ("h0", "h1", "h2") for ends in ((host, "sw"), ("sw", host))}
    assert namespaces(run_id) == set()


def test_a_host_may_be_a_namespace_that_somebody_else_made(run_id: str) -> None:
    with subprocess.Popen(["unshare", "--net", "sleep", "60"]) as owner:
        try:
            theirs = Path(f"/proc/{owner.pid}/ns/net")
            while os.readlink(theirs) == os.readlink("/proc/self/ns/net"):
                pass  # it has not unshared yet
            with Ledger(run_id) as own, NetnsBed(star(2), own, attached={"h1": theirs}) as bed:
                assert (FOLDER / bed.namespace("h1")).stat().st_ino == theirs.stat().st_ino
                with inside(bed.namespace("h1")), socket.create_server((bed.address("h1"), 5001)) as server:
                    with inside(bed.namespace("h0")):
                        socket.create_connection((bed.address("h1"), 5001), timeout=10).close()
                    stream, source = server.accept()
                    stream.close()
                    assert source[0] == bed.address("h0")
            devices = ["nsenter", f"--net={theirs}", "ip", "-br", "link"]
            assert "eth0" not in subprocess.run(devices, capture_output=True, text=True, check=True).stdout
        finally:
            owner.kill()
    assert namespaces(run_id) == set()


def test_256_hosts_come_up_are_probed_and_leave_nothing(run_id: str, capsys: pytest.CaptureFixture[str]) -> None:
    link = {"rate": "100 mbit", "queue": "200 kB"}
    network = from_dict({"topology": {"star": {"hosts": "256"}}, "link": link})
    before = devices()
    began = time.monotonic()
    with Ledger(run_id) as own, NetnsBed(network, own) as bed:
        up = time.monotonic()
        reports = list(survey(network, bed.namespace, HOST))
        probed = time.monotonic()
    down = time.monotonic()
    with capsys.disabled():
        print(f"\n256 hosts: up {up - began:.2f} s, probed {probed - up:.2f} s, down {down - probed:.2f} s")
    assert len(reports) == 256
    found = [finding for report in reports for finding in report.findings]
    assert all(finding.got is not None for finding in found)
    assert [finding.got for finding in found if finding.what == "loss"] == [0.0] * 256
    assert namespaces(run_id) == set()
    assert devices() == before


def devices() -> str:
    return subprocess.check_output(["ip", "-br", "link"], text=True)


def test_closing_twice_is_harmless(run_id: str) -> None:
    with Ledger(run_id) as own:
        bed = NetnsBed(star(2), own)
        bed.close()
        bed.close()
    assert namespaces(run_id) == set()


def test_a_shape_that_a_bed_cannot_have_is_refused_before_anything_is_made(run_id: str) -> None:
    network = {"hosts": ["a", "b"], "links": {name: {**PLAIN, "ends": ["a", "b"]} for name in ("x", "y")}}
    with Ledger(run_id) as own, pytest.raises(NetworkError, match="2 links"):
        NetnsBed(from_dict(network), own)
    assert namespaces(run_id) == set()


def test_each_host_knows_how_large_a_packet_to_each_other_may_be(run_id: str) -> None:
    mtus = {"a": 1500, "b": 9000, "c": 4000}
    links = {name: {**PLAIN, "mtu": mtu, "ends": [name, "s"]} for name, mtu in mtus.items()}
    network = from_dict({"hosts": list(mtus), "switches": ["s"], "links": links})
    with Ledger(run_id) as own, NetnsBed(network, own) as bed:
        for source, target in permutations(mtus, 2):
            with inside(bed.namespace(target)):
                server = socket.create_server((bed.address(target), 5001))
            with inside(bed.namespace(source)):
                client = socket.create_connection((bed.address(target), 5001), timeout=10)
            with server, client:
                headers = 52  # of IP and TCP, with timestamps
                assert (
                    client.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
                    == min(mtus[source], mtus[target]) - headers
                )


def test_a_bed_that_fails_half_way_takes_down_what_it_made(run_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise MachineError("this kernel has no netem")

    monkeypatch.setattr("emulator.wire.add_direction", refuse)
    with Ledger(run_id) as own, pytest.raises(MachineError, match="no netem"):
        NetnsBed(star(2), own)
    assert namespaces(run_id) == set()


def test_clean_removes_the_namespaces_of_a_bed_that_was_killed_and_no_others(run_id: str) -> None:
    command = [sys.executable, "-c", BED_THAT_DIES, run_id]
    died = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    left = namespaces(run_id)
    assert len(left) == 4
    foreign = f"foreign-{os.getpid()}"
    with Ledger("alive") as alive, NetnsBed(star(2), alive):
        subprocess.run(["ip", "netns", "add", foreign], check=True)
        try:
            assert set(clean()) == {Claim("netns", name) for name in left}
            assert (FOLDER / foreign).exists()
            assert len(namespaces("alive")) == 4
        finally:
            subprocess.run(["ip", "netns", "delete", foreign], check=True)
    assert namespaces(run_id) == set()


def test_a_namespace_closes_once_and_can_be_gone_before(run_id: str) -> None:
    with Ledger(run_id) as own:
        made = Namespace(f"tb-{run_id}-x", own)
        assert remove_named(made.name)
        assert not remove_named(made.name)
        made.close()
        made.close()
    with pytest.raises(BedError, match="is gone"):
        enter(f"tb-{run_id}-x")


def test_inside_comes_back_also_after_an_error(run_id: str) -> None:
    home = os.readlink("/proc/thread-self/ns/net")
    with Ledger(run_id) as own:
        made = Namespace(f"tb-{run_id}-x", own)
        with suppress(KeyError), inside(made.name):
            assert os.readlink("/proc/thread-self/ns/net") != home
            raise KeyError
        made.close()
    assert os.readlink("/proc/thread-self/ns/net") == home
