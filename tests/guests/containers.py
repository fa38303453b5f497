"""dockerd in the lab kernel: two containers on a bridge network, netem 20 ms on one's port; what ping between them says."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.dockerd import daemon, docker, make_image
from tests.guests.pair import report

ADDRESSES = {"left": "10.8.0.2", "right": "10.8.0.3"}


def main() -> None:
    busybox = shutil.which("busybox")
    assert busybox is not None
    make_image("small", {"bin/busybox": Path(busybox)}, {"bin/ping": "busybox", "bin/sleep": "busybox"})
    docker("network", "create", "--subnet=10.8.0.0/24", "wire")
    for host, address in ADDRESSES.items():
        docker("run", "-d", f"--name={host}", "--network=wire", f"--ip={address}", "small", "sleep", "9999")
    process = docker("inspect", "--format={{.State.Pid}}", "left")
    shape = ["nsenter", "-t", process, "-n", "tc", "qdisc", "add", "dev", "eth0", "root", "netem", "delay", "20ms"]
    subprocess.run(shape, check=True)
    pings = docker("exec", "left", "ping", "-c", "3", ADDRESSES["right"])
    kind = docker("info", "--format={{.Driver}} on cgroup v{{.CgroupVersion}}")
    report({"pings": pings.splitlines(), "kind": kind})


if __name__ == "__main__":
    with daemon():
        main()
