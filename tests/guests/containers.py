"""dockerd in the lab kernel: two containers on a bridge network, netem 20 ms on one's port; what ping between them says."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

from tests.guests.pair import report

FOLDER = Path("/run/containers")  # in the guest's memory: its other folders are the caller's
UP_LIMIT_S = 60
ADDRESSES = {"left": "10.8.0.2", "right": "10.8.0.3"}


def call(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr or done.stdout}")
    return done.stdout.strip()


def start_docker() -> None:
    """dockerd, answering. There is no iptables in this kernel."""
    command = ["dockerd", "--iptables=false", f"--data-root={FOLDER}/data", f"--exec-root={FOLDER}/exec"]
    with (FOLDER / "log").open("wb") as log:
        daemon = subprocess.Popen([*command, f"--pidfile={FOLDER}/pid"], stdout=log, stderr=log)
    deadline = time.monotonic() + UP_LIMIT_S
    while subprocess.run(["docker", "version"], capture_output=True).returncode != 0:
        if daemon.poll() is not None or time.monotonic() > deadline:
            sys.exit((FOLDER / "log").read_text())
        time.sleep(0.1)


def make_image() -> None:
    """An image of one static program; there is no registry to pull from."""
    busybox = shutil.which("busybox")
    assert busybox is not None
    with tarfile.open(FOLDER / "root.tar", "w") as tar:
        tar.add(busybox, "bin/busybox")
        for name in ("ping", "sleep"):
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
    call("docker", "import", str(FOLDER / "root.tar"), "small")


if __name__ == "__main__":
    FOLDER.mkdir()
    start_docker()
    make_image()
    call("docker", "network", "create", "--subnet=10.8.0.0/24", "wire")
    for host, address in ADDRESSES.items():
        call("docker", "run", "-d", f"--name={host}", "--network=wire", f"--ip={address}", "small", "sleep", "9999")
    process = call("docker", "inspect", "--format={{.State.Pid}}", "left")
    call("nsenter", "-t", process, "-n", "tc", "qdisc", "add", "dev", "eth0", "root", "netem", "delay", "20ms")
    pings = call("docker", "exec", "left", "ping", "-c", "3", ADDRESSES["right"])
    kind = call("docker", "info", "--format={{.Driver}} on cgroup v{{.CgroupVersion}}")
    report({"pings": pings.splitlines(), "kind": kind})
