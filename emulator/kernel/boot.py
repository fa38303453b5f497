"""Boots the lab kernel, runs one command in it, and brings back what it printed and how it ended.

The guest's root is this machine's file system; its user is root inside, and the caller outside. In virtual time CPU
work takes no time and the clock jumps to the next timer, so what a program measures depends on the network alone.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from emulator.errors import BedError
from emulator.kernel import build
from emulator.ledger import Ledger

MEMORY = "4G"  # of address space, taken as it is touched; fixed, because TCP derives its limits from it
_TAIL = 12
_LAST_WORDS = "reboot: Power down"
_PANIC = "Kernel panic"
_LAUNCHER = """
import ctypes, os, signal, sys
parent, processor, *kernel = sys.argv[1:]
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: the kernel dies with the command that booted it
if os.getppid() != int(parent):
    sys.exit(1)
os.sched_setaffinity(0, {int(processor)})
os.execv(kernel[0], kernel)
"""
_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Guest:
    """A command to run in the lab kernel.

    `silence_limit_s`: seconds of wall-clock time without a line from the guest after which it is given up.
    """

    argv: tuple[str, ...]
    virtual: bool = True
    cwd: Path = field(default_factory=Path.cwd)
    env: Mapping[str, str] = field(default_factory=dict)
    silence_limit_s: float = 300.0


def run(
    guest: Guest,
    ledger: Ledger,
    *,
    on_output: Callable[[str], None],
    on_progress: Callable[[str], None] = lambda line: None,
) -> int:
    """Boot, run `guest.argv`, power off.

    Args:
        guest: what to run.
        ledger: where the kernel's process and folder are written down while they exist.
        on_output: called with each line the command printed.
        on_progress: called with each line it wrote to `emulator.kernel.init.PROGRESS_DEVICE`.

    Returns:
        The command's exit status; negative where a signal ended it.

    Raises:
        MachineError: the kernel is not built.
        BedError: the kernel died or went silent; with the console's last lines.
    """
    kernel = build.require()
    tail: deque[str] = deque(maxlen=_TAIL)

    def keep(line: str) -> None:
        if line == _LAST_WORDS:
            return
        said = line.removesuffix(_LAST_WORDS)  # which follow at once on a last line that the command did not end
        if not any(_PANIC in earlier for earlier in tail):  # what follows on a panic is a dump of the kernel's stack
            tail.append(said)
        on_output(said)

    with own_folder(ledger) as job, _a_processor() as processor:
        progress_in, progress_out = os.pipe()
        try:
            uml = _start(kernel, guest, job, processor, progress_out)
        finally:
            os.close(progress_out)
        claim = ledger.claim_process(uml.pid)
        assert uml.stdout is not None
        try:
            _relay({uml.stdout.fileno(): keep, progress_in: on_progress}, guest.silence_limit_s, tail)
            uml.wait()
        finally:
            if uml.poll() is None:
                os.killpg(uml.pid, signal.SIGKILL)
                uml.wait()
            uml.stdout.close()
            os.close(progress_in)
            if claim:
                ledger.release(claim)
        return _exit_status(job / "status.json", uml.returncode, tail)


def _start(kernel: Path, guest: Guest, job: Path, processor: int, progress: int) -> subprocess.Popen[bytes]:
    arguments = [
        f"mem={MEMORY}", "rootfstype=hostfs", "rw", f"init={_write_job(job, guest)}", "quiet",
        "con=null", "con0=null,fd:1", f"con1=null,fd:{progress}", f"uml_dir={job}", "umid=lab",
        *(["time-travel=inf-cpu", "time-travel-start=1", "rng-seed=1"] if guest.virtual else []),
    ]  # fmt: skip
    environment = {"TMPDIR": str(_memory_folder()), "HOME": str(job), "PATH": os.environ.get("PATH", "")}
    # A process of its own sets this up and becomes the kernel: code between fork and exec is not safe beside threads.
    return subprocess.Popen(
        [sys.executable, "-ISc", _LAUNCHER, str(os.getpid()), str(processor), str(kernel), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        pass_fds=(progress,),
        start_new_session=True,
    )


@contextmanager
def own_folder(ledger: Ledger) -> Iterator[Path]:
    """A folder for one boot, written down. Its name has no spaces: the kernel's command line splits at them."""
    folder = Path(tempfile.gettempdir()) / f"tracebed-lab-{uuid.uuid4().hex[:12]}"
    claim = ledger.claim("folder", str(folder))
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
        ledger.release(claim)


def _write_job(job: Path, guest: Guest) -> Path:
    """What to run, and the init script that the kernel starts."""
    description = {
        "argv": list(guest.argv),
        "cwd": str(guest.cwd),
        "env": dict(guest.env),
        "status": str(job / "status.json"),
    }
    (job / "job.json").write_text(json.dumps(description))
    init = job / "init"
    init.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(_ROOT)!r})\n"
        f"from emulator.kernel.init import main\nmain({str(job / 'job.json')!r})\n"
    )
    init.chmod(0o755)
    return init


def _memory_folder() -> Path:
    """Where the guest's memory file goes (it is unlinked at once): shared memory, unless a container cut that short."""
    shared = Path("/dev/shm")
    if shared.is_dir() and os.access(shared, os.W_OK) and shutil.disk_usage(shared).free >= 1 << 30:
        return shared
    return Path(tempfile.gettempdir())


@contextmanager
def _a_processor() -> Iterator[int]:
    """A processor that no other lab kernel has, while there is one.

    Guest programs are processes of the host that the kernel's process starts and stops at each system call: on one
    processor that costs 5 us, across two 80 us (measured on the CI machine).
    """
    processors = sorted(os.sched_getaffinity(0))
    for number in processors:
        lock = build.cache_folder() / f"processor-{number}.lock"
        with lock.open("w") as held:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            yield number
            return
    yield processors[os.getpid() % len(processors)]


def _relay(sinks: Mapping[int, Callable[[str], None]], silence_limit_s: float, tail: Sequence[str]) -> None:
    """Hand each stream's lines to its sink until the first stream, the console, ends."""
    console = next(iter(sinks))
    parts = dict.fromkeys(sinks, b"")
    while True:
        ready, _, _ = select.select(list(sinks), [], [], silence_limit_s)
        if not ready:
            raise BedError(
                f"the lab kernel printed nothing for {silence_limit_s:.0f} s and was stopped; its last lines: {_quote(tail)}"
            )
        for stream in sorted(ready, reverse=True):
            data = os.read(stream, 1 << 16)
            *lines, parts[stream] = (parts[stream] + data).split(b"\n")
            for line in lines if data else ([parts[stream]] if parts[stream] else []):
                sinks[stream](line.decode(errors="replace").rstrip("\r"))
            if not data and stream == console:
                return


def _exit_status(report: Path, kernel_status: int, tail: Sequence[str]) -> int:
    if not report.exists():
        how = f"was killed by signal {-kernel_status}" if kernel_status < 0 else f"ended with status {kernel_status}"
        raise BedError(f"the lab kernel {how} before its command did; its last lines: {_quote(tail)}")
    said = json.loads(report.read_text())
    if "error" in said:
        raise BedError(f"the lab kernel could not set itself up: {said['error'].strip().splitlines()[-1]}")
    return int(said["exit"])


def _quote(tail: Sequence[str]) -> str:
    return " | ".join(tail) or "(none)"
