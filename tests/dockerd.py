"""Docker for tests: a daemon of the test's own, on this machine or in the lab kernel, and images made here, of files of
this machine, for there is no registry to pull from."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from emulator.dockerd import own_daemon
from emulator.ledger import Ledger


@contextmanager
def daemon() -> Iterator[str]:
    """A daemon that answers, at the address that is yielded and that DOCKER_HOST has meanwhile."""
    before = os.environ.get("DOCKER_HOST")
    with Ledger(f"test-docker-{uuid.uuid4().hex[:8]}") as ledger, own_daemon(ledger) as address:
        os.environ["DOCKER_HOST"] = address
        try:
            yield address
        finally:
            os.environ.pop("DOCKER_HOST")
            if before is not None:
                os.environ["DOCKER_HOST"] = before


def docker(*arguments: str, data: bytes = b"") -> str:
    """What `docker ARGUMENTS` says, given `data` to read."""
    done = subprocess.run(["docker", *arguments], input=data, capture_output=True)
    assert done.returncode == 0, f"docker {' '.join(arguments)}: {(done.stderr or done.stdout).decode()}"
    return done.stdout.decode().strip()


def make_image(name: str, files: Mapping[str, Path] | None = None, links: Mapping[str, str] | None = None) -> None:
    """An image of `files` of this machine and symbolic `links`, both by their path in it, without the first slash.

    None of either makes an empty one, for containers that mount what they need, as /usr and /lib, from this machine.
    """
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for path, source in (files or {}).items():
            tar.add(source, path)
        for path, target in (links or {}).items():
            link = tarfile.TarInfo(path)
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
    docker("import", "-", name, data=archive.getvalue())
