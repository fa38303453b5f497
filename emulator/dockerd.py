"""A Docker daemon of one's own: its data, socket and containers apart from those of any other daemon of the machine.

Inside the lab kernel it is the only one there can be. It has no networks, and changes no packet filter and no setting of
the machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from emulator.containers import connected
from emulator.errors import BedError, MachineError
from emulator.ledger import Ledger

INSTALL = "sudo apt-get install -y docker.io"
_RUN = Path(
    "/run"
)  # short, as a socket's path has to be; and memory in the lab kernel, where all else is the caller's disk
_UP_LIMIT_S, _DOWN_LIMIT_S = 60, 30

# Where CPU work takes no time, so does a collection of garbage, and containerd, which by default rests in proportion to
# that (pause_threshold; docs/garbage-collection.md there), would never rest: it would read the clock for ever.
_CONTAINERD = """
version = 2
root = "{folder}/containerd-data"
state = "{folder}/containerd"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
address = "{folder}/containerd.sock"
[plugins."io.containerd.gc.v1.scheduler"]
pause_threshold = 0.0
"""

# Go's collector spins on memory, without a system call, until another thread has gone on. Where nothing preempts it, that is a
# second of CPU each time (lab.patch, 6) and made a container take 5 s: so it collects only when there is much.
_RARELY_COLLECT = {"GOGC": "off", "GOMEMLIMIT": "512MiB"}


@contextmanager
def own_daemon(ledger: Ledger) -> Iterator[str]:
    """A daemon that answers; yields its address, for DOCKER_HOST. It is stopped at the end, its containers with it.

    Raises:
        MachineError: dockerd or its containerd is not installed.
        BedError: it ended, or doesn't answer; with its last words.
    """
    containerd, dockerd = (_program(name) for name in ("containerd", "dockerd"))
    folder = _RUN / f"tb-dockerd-{uuid.uuid4().hex[:8]}"
    claim = ledger.claim("folder", str(folder))
    folder.mkdir(mode=0o700)
    try:
        config = folder / "containerd.toml"
        config.write_text(_CONTAINERD.format(folder=folder))
        address = f"unix://{folder}/socket"
        with (
            _running([containerd, f"--config={config}"], folder / "containerd.log", ledger) as below,
            _running([dockerd, *_options(folder)], folder / "dockerd.log", ledger) as above,
        ):
            _wait_until_up((below, above), address)
            try:
                yield address
            finally:
                _empty(address)
    finally:
        shutil.rmtree(folder)
        ledger.release(claim)


def _options(folder: Path) -> list[str]:
    return [
        f"--host=unix://{folder}/socket",
        f"--containerd={folder}/containerd.sock",
        f"--data-root={folder}/data",
        f"--exec-root={folder}/exec",
        f"--pidfile={folder}/pid",
        "--bridge=none",
        "--iptables=false",
        "--ip-forward=false",
        "--userland-proxy=false",
    ]


@dataclass(frozen=True, slots=True)
class _Program:
    """One that runs, and where it writes what it has to say."""

    process: subprocess.Popen[bytes]
    log: Path

    def last_words(self) -> str:
        said = " | ".join(self.log.read_text(errors="replace").splitlines()[-3:]) or "(none)"
        return f"{self.log.stem}: {said}"


def _program(name: str) -> str:
    """Where a program is. Raises MachineError."""
    found = shutil.which(name, path=_path())
    if found is None:
        raise MachineError(f"{name} is not installed", mend=INSTALL)
    return found


def _path() -> str:
    """Where programs are, with those of the superuser, which not every user's PATH has."""
    return os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/local/sbin:/usr/sbin:/sbin"))


@contextmanager
def _running(command: list[str], log: Path, ledger: Ledger) -> Iterator[_Program]:
    with log.open("wb") as output:
        environment = {**os.environ, "PATH": _path(), **_RARELY_COLLECT}
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment)
    with ledger.processes() as started:
        started(process.pid)
        try:
            yield _Program(process, log)
        finally:
            process.terminate()
            try:
                process.wait(_DOWN_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_up(programs: Sequence[_Program], address: str) -> None:
    deadline = time.monotonic() + _UP_LIMIT_S
    while True:
        try:
            with connected(address):
                return
        except MachineError:
            if time.monotonic() > deadline or any(program.process.poll() is not None for program in programs):
                said = "; ".join(program.last_words() for program in programs)
                raise BedError(f"dockerd doesn't answer; last words of {said}") from None
        time.sleep(0.05)


def _empty(address: str) -> None:
    """End all containers: a daemon that stops waits ten seconds for each that doesn't heed SIGTERM, as a first process."""
    with connected(address) as client:
        for container in client.containers.list(all=True):
            container.remove(force=True, v=True)
