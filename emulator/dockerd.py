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
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from emulator.errors import BedError, MachineError
from emulator.ledger import Ledger

INSTALL = "sudo apt-get install -y docker.io"
_RUN = Path(
    "/run"
)  # a short path, which a socket's has to be; in the lab kernel it is memory, all else is the caller's disk
_UP_LIMIT_S, _DOWN_LIMIT_S = 60, 30
_SBIN = "/usr/local/sbin:/usr/sbin:/sbin"


@contextmanager
def own_daemon(ledger: Ledger) -> Iterator[str]:
    """A daemon that answers; yields its address, for DOCKER_HOST. It is stopped at the end, its containers with it.

    Raises:
        MachineError: dockerd is not installed.
        BedError: it ended, or doesn't answer; with its last words.
    """
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), _SBIN))
    program = shutil.which("dockerd", path=path)
    if program is None:
        raise MachineError("dockerd is not installed", mend=INSTALL)
    name = f"tb-dockerd-{uuid.uuid4().hex[:8]}"
    folder = _RUN / name
    claim = ledger.claim("folder", str(folder))
    folder.mkdir(mode=0o700)
    try:
        address = f"unix://{folder}/socket"
        with _running([program, *_options(name, folder)], folder / "log", path, ledger) as process:
            _wait_until_up(process, folder / "log", address)
            try:
                yield address
            finally:
                _empty(address)
    finally:
        shutil.rmtree(folder)
        ledger.release(claim)


def _options(name: str, folder: Path) -> list[str]:
    return [
        f"--host=unix://{folder}/socket",
        f"--data-root={folder}/data",
        f"--exec-root={folder}/exec",
        f"--pidfile={folder}/pid",
        f"--containerd-namespace={name}",  # in case the machine's containerd runs
        f"--containerd-plugins-namespace={name}-plugins",
        "--bridge=none",
        "--iptables=false",
        "--ip-forward=false",
        "--userland-proxy=false",
        "--shutdown-timeout=1",
    ]


@contextmanager
def _running(command: list[str], log: Path, path: str, ledger: Ledger) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env={**os.environ, "PATH": path}
        )
    with ledger.processes() as started:
        started(process.pid)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(_DOWN_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_up(process: subprocess.Popen[bytes], log: Path, address: str) -> None:
    from docker import APIClient
    from docker.errors import DockerException

    deadline = time.monotonic() + _UP_LIMIT_S
    while True:
        try:
            APIClient(address, version="auto").close()
            return
        except DockerException:
            if process.poll() is not None or time.monotonic() > deadline:
                raise BedError(f"dockerd doesn't answer; its last words: {_last_words(log)}") from None
        time.sleep(0.05)


def _empty(address: str) -> None:
    """End all containers: a daemon that stops waits ten seconds for each that doesn't heed SIGTERM, as a first process."""
    from docker import APIClient

    with closing(APIClient(address, version="auto")) as client:
        for container in client.containers(all=True):
            client.remove_container(container["Id"], force=True, v=True)


def _last_words(log: Path) -> str:
    return " | ".join(log.read_text(errors="replace").splitlines()[-3:]) or "(none)"
