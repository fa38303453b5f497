"""What this machine can do, found out by trying it, and the line that mends what it can't."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path

from emulator import ledger
from emulator.errors import BedError, MachineError
from emulator.kernel import boot, build
from emulator.kernel.boot import Guest
from emulator.ledger import Ledger
from emulator.trials import kernel as kernel_trials

GROUNDS = ("virtual", "host")
_BOOT_LIMIT_S = 30.0
_CLOCK, _CLOCKS = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource"), "available_clocksource"
_GOOD_CLOCKS = ("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page")  # read without a system call
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
    return _python(), _processors(), _clock(), _virtual(), _host(), *_kernel(), _docker(), _compose(), _leftovers()


def a_ground_works(checks: tuple[Check, ...]) -> bool:
    """Whether a replay can run here at all."""
    return any(check.works for check in checks if check.name in GROUNDS)


def _python() -> Check:
    return Check("python", True, platform.python_version())


def _processors() -> Check:
    count = len(os.sched_getaffinity(0))
    return Check("processors", True, f"{count}: as many runs in virtual time side by side")


def _clock() -> Check:
    """Real time is only as good as the clock that it is read from; virtual time doesn't read it."""
    now, others = (path.read_text().split() if path.exists() else [] for path in (_CLOCK, _CLOCK.with_name(_CLOCKS)))
    if not now:
        return Check("clock", True, "this kernel doesn't say what its clock is")
    better = [name for name in others if name in _GOOD_CLOCKS]
    if now[0] in _GOOD_CLOCKS or not better:
        return Check("clock", True, now[0])
    return Check("clock", False, f"{now[0]}, which is slow to read", f"echo {better[0]} | sudo tee {_CLOCK}")


def _kernel() -> tuple[Check, ...]:
    """What beds on this machine's own kernel are made of, each by making one."""
    try:
        trials = kernel_trials()
    except MachineError as error:
        return (Check("kernel", False, f"not tried: {error.why}", error.mend),)
    return tuple(
        Check(trial.name, not trial.why, trial.why or f"works ({trial.purpose})", trial.mend()) for trial in trials
    )


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
        return Check("host", False, error.why, error.mend)
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


def _compose() -> Check:
    """docker-compose 1.29 or the compose plugin, by asking it for its version."""
    for command in (("docker-compose", "version", "--short"), ("docker", "compose", "version", "--short")):
        try:
            said = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=30)
        except (FileNotFoundError, PermissionError, subprocess.TimeoutExpired):
            continue
        if said.returncode == 0:
            return Check("compose", True, f"{' '.join(command[:-2])} {said.stdout.strip()}")
    return Check(
        "compose", False, "neither docker-compose nor docker's plugin answers", "sudo apt-get install -y docker-compose"
    )


def _leftovers() -> Check:
    dead = [left.path.stem for left in ledger.leftovers()]
    if dead:
        return Check(
            "leftovers", False, f"{len(dead)} dead runs left things behind: {', '.join(dead)}", "tracebed clean"
        )
    return Check("leftovers", True, "no dead run left anything behind")
