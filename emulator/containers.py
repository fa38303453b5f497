"""Docker, as far as beds need it: the daemon that DOCKER_HOST names, containers that only wait, and images.

The Engine API of 20.10 and newer. The daemon has to be on this machine, because processes here move into its containers.
"""

from __future__ import annotations

import ctypes
import io
import os
import platform
import socket
import struct
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from emulator.errors import BedError, MachineError, NetworkError
from emulator.ledger import Ledger

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container as Found

LABEL = "tracebed.run"
_DEFAULT = "unix:///var/run/docker.sock"
_START = "sudo apt-get install -y docker.io && sudo systemctl start docker, or set DOCKER_HOST"
_WAITER = "tracebed-wait"
_CONFLICT, _REMOVAL_LIMIT_S = 409, 30
_WAIT_FOR_EVER = bytes.fromhex(
    "b822000000 0f05 ebf7"
)  # again: mov eax, 34 (pause, asm/unistd_64.h); syscall; jmp again
_WHERE = 0x400000
_EXECUTABLE, _X86_64, _LOAD, _READ_AND_RUN = 2, 62, 1, 5  # elf(5)
_NAMESPACES = 0x00020000 | 0x04000000 | 0x08000000 | 0x40000000  # mount, UTS, IPC, network: linux/sched.h


def daemon_address() -> str:
    """The daemon that this process is to use: DOCKER_HOST's, else the machine's."""
    return os.environ.get("DOCKER_HOST") or _DEFAULT


@contextmanager
def connected(address: str) -> Iterator[DockerClient]:
    """A connection to a daemon of this machine.

    Raises:
        MachineError: none answers there, or the address is not one of this machine's.
        BedError: it refused what it was asked, in its own words, or went away.
    """
    from docker import DockerClient
    from docker.errors import APIError, DockerException
    from requests import RequestException

    try:
        _knock(address)
        client = DockerClient(base_url=address)
    except (OSError, DockerException) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error).splitlines()[0]
        raise MachineError(f"no Docker daemon answers at {address}: {why}", mend=_START) from error
    try:
        yield client
    except APIError as error:
        raise BedError(f"Docker at {address}: {error.explanation or error}") from error
    except RequestException as error:
        raise BedError(f"Docker at {address} went away: {error}") from error
    finally:
        client.close()


def _knock(address: str) -> None:
    """Raises OSError where nobody listens: docker 7 leaves a socket open then, and says less."""
    kind, _, path = address.partition("://")
    if kind != "unix":
        raise MachineError(f"Docker at {address}: expected a daemon of this machine", mend="DOCKER_HOST=unix://SOCKET")
    with socket.socket(socket.AF_UNIX) as door:
        door.connect(path)


class Container:
    """A container that this run made, without a network and without capabilities. `close` removes it; twice is harmless.

    Its only process is ours and waits, whatever the image has or lacks: neither its entry point nor a shell is run.
    """

    def __init__(self, name: str, hostname: str, image: str, ledger: Ledger) -> None:
        """Raises MachineError, NetworkError (no such image) and BedError."""
        self.name = name
        self._ledger = ledger
        self._address = daemon_address()
        self._cgroups: tuple[Path, ...] = ()
        with connected(self._address) as client, ExitStack() as guards:
            self._claim = ledger.claim("container", f"{self._address} {name}")
            guards.callback(self._remove)
            self.pid = self._start(client, hostname, image)
            self._process = os.pidfd_open(self.pid)
            guards.callback(os.close, self._process)
            self._cgroups = tuple(_cgroups(self.pid))
            self._guards = guards.pop_all()

    def _start(self, client: DockerClient, hostname: str, image: str) -> int:
        """Make it and start it; its first process."""
        from docker.errors import ImageNotFound

        if platform.machine() != "x86_64":
            raise MachineError("containers as hosts need an x86-64 machine", mend="run with --bed netns")
        try:
            made = client.containers.create(
                image,
                entrypoint=[f"/{_WAITER}"],
                command=[],
                name=self.name,
                hostname=hostname,
                labels={LABEL: self._ledger.run_id},
                network_mode="none",
                cap_drop=["ALL"],
                stop_signal="SIGKILL",  # a first process is deaf to others that it has no handler for
                healthcheck={"test": ["NONE"]},
            )
        except ImageNotFound:
            raise _no_image(self._address, image) from None
        made.put_archive("/", _packed(_WAITER, _program()))
        made.start()
        return process_of(client.containers.get(self.name), self._address)

    def enter(self) -> None:
        """Move the calling process, of one thread, into the container: its cgroups, and its mounts, host name, IPC and network.

        It keeps its own process id and rights, and outlives the container. Raises BedError where that has ended.
        """
        libc = ctypes.CDLL(None, use_errno=True)
        try:
            for group in self._cgroups:
                (group / "cgroup.procs").write_text("0")
            if libc.setns(self._process, _NAMESPACES) != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        except (FileNotFoundError, ProcessLookupError):
            raise BedError(f"container {self.name} has ended") from None
        except OSError as error:
            raise BedError(f"can't enter container {self.name}: {error.strerror}") from error

    def close(self) -> None:
        self._guards.close()

    def _remove(self) -> None:
        remove_container(self._address, self.name)
        for group in self._cgroups:
            with suppress(FileNotFoundError):  # Docker leaves those of a container that ended before who had entered it
                group.rmdir()
        self._ledger.release(self._claim)


def process_of(container: Found, address: str) -> int:
    """The id of a container's first process. Raises MachineError where that is another machine's."""
    pid = int(container.attrs["State"]["Pid"])
    try:
        here = str(container.id) in Path(f"/proc/{pid}/cgroup").read_text()
    except FileNotFoundError:
        here = False
    if not here:
        raise MachineError(
            f"the processes of Docker at {address} are not to be seen here: its daemon runs on another machine, or this "
            "is a container",
            mend="run it where the daemon runs, with DOCKER_HOST unset, or with --bed netns",
        )
    return pid


def _cgroups(pid: int) -> Iterator[Path]:
    """The folders of a process's cgroups, those that are mounted here (cgroups(7)), but for the roots."""
    hierarchies = list(_hierarchies())
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        wanted = frozenset(controllers.split(",")) if controllers else frozenset()
        found = [folder for folder, has in hierarchies if (wanted <= has if wanted else not has)]
        if found and group != "/":
            yield found[0] / group.lstrip("/")


def _hierarchies() -> Iterator[tuple[Path, frozenset[str]]]:
    """Where each cgroup hierarchy is mounted, and its controllers: none for version 2's (proc(5), mountinfo)."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, source = line.partition(" - ")
        kind, _, options = source.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            controllers = options.split(",") if kind == "cgroup" else ()
            yield Path(mount.split(" ")[4]), frozenset(controllers)


def remove_container(address: str, name: str) -> bool:
    """End and remove a container and its volumes; False where there is none of that name. Raises as `connected` does."""
    from docker.errors import APIError, NotFound

    with connected(address) as client:
        try:
            found = client.containers.get(name)
            try:
                found.remove(force=True, v=True)
            except APIError as error:
                if error.status_code != _CONFLICT:
                    raise
                found.wait(timeout=_REMOVAL_LIMIT_S, condition="removed")  # somebody, who may be gone, has asked for it
        except NotFound:
            return False
        return True


def remove_image(address: str, name: str) -> bool:
    """Remove an image; False where there is none of that name. Raises as `connected` does."""
    from docker.errors import ImageNotFound

    with connected(address) as client:
        try:
            client.images.remove(name)
        except ImageNotFound:
            return False
        return True


class EmptyImage:
    """An image with nothing in it, which this run made. `close` removes it; twice is harmless."""

    def __init__(self, ledger: Ledger) -> None:
        """Raises as `connected` does."""
        self._address, self.name = daemon_address(), f"tracebed:{ledger.run_id}"
        self._ledger = ledger
        with connected(self._address) as client, ExitStack() as guards:
            self._claim = ledger.claim("image", f"{self._address} {self.name}")
            guards.callback(self._remove)
            client.api.import_image_from_data(bytes(tarfile.RECORDSIZE), repository="tracebed", tag=ledger.run_id)
            self._guards = guards.pop_all()

    def close(self) -> None:
        self._guards.close()

    def _remove(self) -> None:
        remove_image(self._address, self.name)
        self._ledger.release(self._claim)


def save_image(name: str, file: Path) -> None:
    """Write an image of the daemon's to a file, as `docker save` does.

    Raises:
        NetworkError: there is no such image.
        MachineError, BedError: as `connected`.
    """
    from docker.errors import ImageNotFound

    address = daemon_address()
    with connected(address) as client, file.open("wb") as output:
        try:
            for part in client.api.get_image(name):
                output.write(part)
        except ImageNotFound:
            raise _no_image(address, name) from None


def load_image(file: Path) -> None:
    """Give the daemon the image in a file, as `docker load` does. Raises as `connected` does."""
    with connected(daemon_address()) as client, file.open("rb") as archive:
        client.images.load(archive)


def _no_image(address: str, name: str) -> NetworkError:
    return NetworkError(f"Docker at {address} has no image '{name}'; mend: docker pull {name}")


def _packed(name: str, content: bytes) -> bytes:
    """A tar archive of one program."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        member = tarfile.TarInfo(name)
        member.size, member.mode = len(content), 0o755
        tar.addfile(member, io.BytesIO(content))
    return archive.getvalue()


def _program() -> bytes:
    """A static program that waits for ever (elf(5)), so that an image needs none: one header, one segment, the code."""
    size = 64 + 56 + len(_WAIT_FOR_EVER)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01",  # 64 bits, little end first
        _EXECUTABLE, _X86_64, 1, _WHERE + 64 + 56, 64, 0, 0, 64, 56, 1, 0, 0, 0,
    )  # fmt: skip
    return header + struct.pack("<IIQQQQQQ", _LOAD, _READ_AND_RUN, 0, _WHERE, _WHERE, size, size, 4096) + _WAIT_FOR_EVER
