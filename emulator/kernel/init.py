"""The guest's first process: makes the guest a usable machine, runs one command, writes its exit status, powers off.

Runs inside the lab kernel only. It uses system calls, not mount(8) or poweroff(8), which a container image may lack.
"""

from __future__ import annotations

import ctypes
import json
import os
import stat
import sys
import termios
import traceback
from pathlib import Path

MOUNTS = (  # what, where, type
    ("proc", "/proc", "proc"),
    ("sysfs", "/sys", "sysfs"),
    ("cgroup2", "/sys/fs/cgroup", "cgroup2"),
    ("tmpfs", "/run", "tmpfs"),
    ("tmpfs", "/dev/shm", "tmpfs"),
    ("devpts", "/dev/pts", "devpts"),
)
PROGRESS_DEVICE = "/run/progress"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_TTY1 = (4, 1)
_ALLOWED, _AVAILABLE = (
    Path(f"/proc/sys/net/ipv4/tcp_{which}_congestion_control") for which in ("allowed", "available")
)
_POWER_OFF = 0x4321FEDC


def main(job_file: str) -> None:
    """Run the job that `emulator.kernel.boot` wrote: `{"argv", "cwd", "env", "status"}`. Never returns."""
    job = json.loads(Path(job_file).read_text())
    report: dict[str, int | str]
    try:
        _furnish()
        report = {"exit": _run(job["argv"], job["cwd"], {"PATH": PATH, **job["env"]})}
    except Exception:  # the guest has no one to raise to: the report is how the caller learns of it
        report = {"error": traceback.format_exc(limit=3)}
    Path(job["status"]).write_text(json.dumps(report))
    os.sync()
    ctypes.CDLL(None).reboot(_POWER_OFF)


def _furnish() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    for what, where, kind in MOUNTS:
        if Path(where).is_dir() and libc.mount(what.encode(), where.encode(), kind.encode(), 0, None) != 0:
            raise OSError(ctypes.get_errno(), f"mount {kind}", where)
    # dctcp may else not be the default of a namespace, and a program that asks for nothing would use another (net/ipv4/tcp_cong.c).
    _ALLOWED.write_text(_AVAILABLE.read_text())
    os.mknod(PROGRESS_DEVICE, stat.S_IFCHR | 0o600, os.makedev(*_TTY1))
    for terminal in (1, os.open(PROGRESS_DEVICE, os.O_WRONLY | os.O_NOCTTY)):
        attributes = termios.tcgetattr(terminal)
        attributes[1] &= ~termios.OPOST  # lines reach the caller as they were written
        termios.tcsetattr(terminal, termios.TCSANOW, attributes)


def _run(argv: list[str], folder: str, environment: dict[str, str]) -> int:
    """Run `argv` to its end, reaping whatever else ends in the meantime, as the first process must."""
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            os.chdir(folder)
            os.execvpe(argv[0], argv, environment)
        except OSError as error:
            print(f"{argv[0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(127)
    while True:
        ended, status = os.wait()
        if ended == child:
            return os.waitstatus_to_exitcode(status)
