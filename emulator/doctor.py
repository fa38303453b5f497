"""What this machine can do, found out by trying it, and the line that mends what it can't."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass

from emulator import ledger
from emulator.errors import BedError, MachineError
from emulator.kernel import boot, build
from emulator.kernel.boot import Guest
from emulator.ledger import Ledger

GROUNDS = ("virtual", "host")
_BOOT_LIMIT_S = 30.0
_PROBE = {"hosts": ["a", "b"], "links": {"wire": {"ends": ["a", "b"], "rate": "1 gbit", "delay": "1 us"}}}


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was tried: `detail` is what was found; `mend` is the line that changes it, "" where it works."""

    name: str
    works: bool
    detail: str
    mend: str = ""


def examine() -> tuple[Check, ...]:
    """Try everything. Nothing is left behind, and nothing is installed or built."""
    return _python(), _virtual(), _host(), _docker(), _leftovers()


def a_ground_works(checks: tuple[Check, ...]) -> bool:
    """Whether a replay can run here at all."""
    return any(check.works for check in checks if check.name in GROUNDS)


def _python() -> Check:
    return Check("python", True, platform.python_version())


def _virtual() -> Check:
    """The lab kernel, by booting it."""
    kernel = build.find()
    if kernel is None:
        if absent := build.missing_tools():
            mend = f"sudo apt-get install -y {' '.join(absent)} && tracebed kernel build"
            return Check(
                "virtual", False, f"the lab kernel is not built, and its build needs {', '.join(absent)}", mend
            )
        return Check("virtual", False, "the lab kernel is not built", "tracebed kernel build")
    try:
        with Ledger(f"doctor-{os.getpid()}") as own:
            boot.run(Guest(("true",), silence_limit_s=_BOOT_LIMIT_S), own, on_output=lambda line: None)
    except BedError as error:
        return Check("virtual", False, str(error), f"rm -r {kernel.parent} && tracebed kernel build")
    return Check("virtual", True, f"the lab kernel, Linux {build.describe(kernel)['version']}, boots")


def _host() -> Check:
    """This machine's own kernel, by making a small bed of two namespaces and a link with rate and delay."""
    from emulator.beds.netns import NetnsBed
    from emulator.network import from_dict

    try:
        with Ledger(f"doctor-{os.getpid()}") as own, NetnsBed(from_dict(_PROBE), own):
            return Check("host", True, f"Linux {platform.release()} makes namespaces and has netem")
    except MachineError as error:
        return Check("host", False, str(error).removesuffix(f"; mend: {error.mend}"), error.mend)
    except BedError as error:
        return Check("host", False, str(error), "replay --on virtual")


def _docker() -> Check:
    """The Docker daemon, by asking it for its version."""
    import docker
    from docker.errors import DockerException

    try:
        client = docker.from_env(timeout=5)
    except DockerException as error:
        first = str(error).splitlines()[0]
        mend = "sudo apt-get install -y docker.io && sudo systemctl start docker, and be in group docker"
        return Check("docker", False, f"no daemon answers: {first}", mend)
    try:
        return Check("docker", True, f"Docker {client.version()['Version']} answers")
    finally:
        client.close()


def _leftovers() -> Check:
    dead = [left.path.stem for left in ledger.leftovers()]
    if dead:
        return Check(
            "leftovers", False, f"{len(dead)} dead runs left things behind: {', '.join(dead)}", "tracebed clean"
        )
    return Check("leftovers", True, "no dead run left anything behind")
