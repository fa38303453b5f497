"""Containers on a Docker network, shaped, shaped otherwise, and reset; what was measured between them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from emulator.namespace import enter
from tests.dockerd import daemon, docker, make_image
from tests.guests.pair import Task, receive_bulk, report, send_bulk
from tests.guests.rtt import ask, echo

ADDRESSES = {"left": "10.8.0.2", "right": "10.8.0.3", "third": "10.8.0.4", "other": "10.8.0.5"}
SHAPE = (sys.executable, "-c", "from replay.cli.main import main; main()", "bed", "shape")
CONTAINERS = ("--container", "left", "--container", "right", "--container", "third")
STAR = {"topology": {"star": {}}, "link": {"rate": "100 mbit", "delay": "2 ms"}, "links": {"host0": {"delay": "1 ms"}}}
WAN = {
    "topology": {"wan": {"rtt": {"left": {"right": "10 ms", "third": "30 ms"}, "right": {"third": "50 ms"}}}},
    "link": {"rate": "1 gbit"},
}
DUMBBELL = {
    "topology": {"dumbbell": {"left": 2, "right": 1}},
    "link": {"rate": "1 gbit"},
    "links": {"trunk": {"rate": "50 mbit"}},
}
BULK = 4_000_000


class Containers:
    """Containers as hosts of a bed, for `Task`."""

    def enter(self, host: str) -> None:
        enter(f"/proc/{docker('inspect', '--format={{.State.Pid}}', host)}/ns/net")


def call(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def shape(*arguments: str) -> Any:
    done = subprocess.run([*SHAPE, "--json", *arguments], capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else [done.returncode, done.stderr]


def file(name: str, network: object) -> str:
    path = Path("/run") / name
    path.write_text(json.dumps(network))  # JSON is YAML
    return str(path)


def devices() -> list[str]:
    """What is to be as before: devices, qdiscs, filters and namespaces of the machine."""
    links = re.findall(r"^\d+: (.*)", call("ip", "link"), re.MULTILINE)
    return [*links, *call("tc", "qdisc").splitlines(), *call("ip", "netns").splitlines()]


def round_trips(source: str, target: str) -> list[int]:
    server = Task(Containers(), target, lambda: echo(3))
    found = Task(Containers(), source, lambda: ask(ADDRESSES[target], 3)).result()
    server.result()
    return found


def ping(source: str, target: str) -> list[float]:
    said = docker("exec", source, "ping", "-c", "3", ADDRESSES[target])
    return [float(time) for time in re.findall(r"time=([\d.]+) ms", said)]


def transfer(meanwhile: Callable[[], object]) -> dict[str, Any]:
    """A bulk transfer from left to right; `meanwhile` is done 150 ms after it began."""
    receiver = Task(Containers(), "right", lambda: receive_bulk(BULK))
    sender = Task(Containers(), "left", lambda: send_bulk(ADDRESSES["right"], BULK))
    time.sleep(0.15)
    began, done, ended = time.monotonic_ns(), meanwhile(), time.monotonic_ns()
    progress, (again, _) = receiver.result(), sender.result()
    return {"progress": progress, "again": again, "done": done, "began": began, "ended": ended}


def sharing() -> list[tuple[int, int]]:
    """What comes of two transfers at once, from third to left and to right: when and how much, in order of time."""
    receivers = [Task(Containers(), host, lambda: receive_bulk(BULK)) for host in ("left", "right")]
    senders = [Task(Containers(), "third", partial(send_bulk, ADDRESSES[host], BULK)) for host in ("left", "right")]
    arrivals: list[tuple[int, int]] = []
    for receiver in receivers:
        progress = [(0, 0), *receiver.result()]
        arrivals += [(at, have - had) for (_, had), (at, have) in pairwise(progress)]
    for sender in senders:
        sender.result()
    return sorted(arrivals)


def main() -> None:
    busybox = shutil.which("busybox")
    assert busybox is not None
    make_image("small", {"bin/busybox": Path(busybox)}, {"bin/ping": "busybox", "bin/sleep": "busybox"})
    docker("network", "create", "--subnet=10.8.0.0/24", "wire")
    for host, address in ADDRESSES.items():
        docker("run", "-d", f"--name={host}", "--network=wire", f"--ip={address}", "--cap-drop=ALL", "--cap-add=NET_RAW",
               "small", "sleep", "9999")  # fmt: skip
    for source in ADDRESSES:
        for target in ADDRESSES:
            ping(source, target)  # so that nobody has to ask for an address later
    before = devices()
    star = file("star.yaml", STAR)
    said: dict[str, Any] = {"star": shape(star, *CONTAINERS)}
    said["trips"] = {f"{a} {b}": round_trips(a, b) for a, b in (("left", "right"), ("right", "third"))}
    said["pings"] = ping("left", "right")
    said["pings of others"] = [*ping("other", "left"), *ping("left", "other")]
    said["steady"] = transfer(lambda: None)
    said["changed"] = transfer(lambda: shape(star, *CONTAINERS, "--set", "link.rate=10 mbit"))
    said["show"] = shape("--show")
    said["lossy"] = shape(star, *CONTAINERS, "--set", "links.host0.up.loss=1%")
    before_loss = shape("--show")
    said["lost"] = {"transfer": transfer(lambda: None), "before": before_loss, "after": shape("--show")}
    said["dumbbell"] = shape(file("dumbbell.yaml", DUMBBELL), *CONTAINERS)
    said["shared"] = sharing()
    said["wan"] = shape(file("wan.yaml", WAN), *CONTAINERS)
    said["wan trips"] = {
        f"{a} {b}": round_trips(a, b) for a, b in (("left", "right"), ("left", "third"), ("third", "right"))
    }
    said["reset"] = shape("--reset")
    said["left over"] = sorted({*devices()} ^ {*before})
    said["pings after"] = ping("left", "right")
    report(said)


if __name__ == "__main__":
    with daemon():
        main()
