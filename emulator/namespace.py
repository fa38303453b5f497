"""Network namespaces: a guard for each one made, and code that runs inside one.

Named as ip-netns(8) does it, under /run/netns, so that `ip netns exec` finds them while they are up.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from emulator.errors import BedError, MachineError
from emulator.ledger import Ledger

FOLDER = Path("/var/run/netns")
_NOT_FOUND = 127  # as sh(1) says it
_CLONE_NEWNET, _CLONE_NEWNS = 0x40000000, 0x20000  # linux/sched.h
_MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE, _MS_SHARED = 0x20, 0x1000, 0x4000, 0x40000, 0x100000  # linux/mount.h


class Namespace:
    """A named network namespace that this run made. `close` removes it and all that is in it; twice is harmless.

    With `of`, a file as /proc/PID/ns/net, it is not made but is that one by another name, and `close` removes the name.
    """

    def __init__(self, name: str, ledger: Ledger, of: Path | None = None) -> None:
        """Raises MachineError where this user may not make one."""
        self.name = name
        self._ledger = ledger
        self._claim = ledger.claim("netns", name)
        try:
            _make(FOLDER / name) if of is None else _bind(of, FOLDER / name)
        except OSError as error:
            ledger.release(self._claim)
            why = f"can't make a network namespace: {error.strerror or error}"
            raise MachineError(why, mend="run as root, or with --on virtual") from error
        self._open = True

    def close(self) -> None:
        if self._open:
            self._open = False
            remove_named(self.name)
            self._ledger.release(self._claim)


def _make(name: Path) -> None:
    """By visiting it: a process of its own, as pyroute2 and ip-netns(8) take, costs twenty times as much."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        if _libc().unshare(_CLONE_NEWNET) != 0:
            raise _refusal("unshare")
        try:
            _bind(Path("/proc/thread-self/ns/net"), name)
        finally:
            _set(home)
    finally:
        os.close(home)


def _bind(namespace: Path, name: Path) -> None:
    name.parent.mkdir(exist_ok=True)
    shared = _MS_SHARED | _MS_REC
    try:
        _mount(Path("none"), name.parent, shared)
    except OSError:
        # Nothing is mounted there yet. As ip-netns(8) does before its first name: done later, it would hide this one.
        _mount(name.parent, name.parent, _MS_BIND | _MS_REC)
        _mount(Path("none"), name.parent, shared)
    name.touch(exist_ok=False)
    try:
        _mount(namespace, name, _MS_BIND)
    except OSError:
        name.unlink()
        raise


def _mount(what: Path, where: Path, flags: int) -> None:
    if _libc().mount(bytes(what), bytes(where), b"none", flags, None) != 0:
        raise _refusal(str(what))


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _refusal(what: str) -> OSError:
    return OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), what)


def remove_named(name: str) -> bool:
    """Remove a named namespace; False where there is none of that name."""
    from pyroute2 import netns

    if not (FOLDER / name).exists():
        return False
    netns.remove(name)
    return True


def enter(name: str) -> None:
    """Move this thread into a namespace for good, by its name or a file as /proc/PID/ns/net.

    Raises:
        BedError: there is no such namespace.
    """
    try:
        handle = os.open(FOLDER / name, os.O_RDONLY)
    except FileNotFoundError:
        raise BedError(f"network namespace {name} is gone") from None
    try:
        _set(handle)
    finally:
        os.close(handle)


@contextmanager
def inside(name: str) -> Iterator[None]:
    """Run a block of code of this thread inside a namespace, by its name or a file as `enter` takes it."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        enter(name)
        try:
            yield
        finally:
            _set(home)
    finally:
        os.close(home)


def run_inside(name: str, command: Sequence[str], output: int | None = None) -> int:
    """Run a command inside a namespace to its end; its exit status, negative where a signal ended it, 127 where there is none.

    `output`: a file descriptor for what it prints and for its errors; None leaves both as they are.
    """
    with inside(name):
        try:
            errors = None if output is None else subprocess.STDOUT
            return subprocess.run(command, stdout=output, stderr=errors).returncode
        except OSError as error:
            print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
            return _NOT_FOUND


def set_attributes(names: Iterable[str], device: str, attribute: str, value: str) -> None:
    """Write /sys/class/net/DEVICE/ATTRIBUTE of each of these namespaces.

    A sysfs shows the devices of the namespace in which it was mounted, so this takes a thread with mounts of its own.

    Raises:
        BedError: the kernel refuses.
    """

    def write() -> None:
        libc = _libc()
        if libc.unshare(_CLONE_NEWNS) != 0 or libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None) != 0:
            raise _refusal("/")
        for name in names:
            enter(name)
            if libc.mount(b"sysfs", b"/sys", b"sysfs", 0, None) != 0:
                raise _refusal("/sys")
            try:
                # A container's is read-only, and stays so where the container sees it: its mount is, too.
                libc.mount(b"none", b"/sys", None, _MS_REMOUNT, None)
                (Path("/sys/class/net") / device / attribute).write_text(value)
            finally:
                libc.umount2(b"/sys", 0)

    with ThreadPoolExecutor(max_workers=1) as thread:
        try:
            thread.submit(write).result()
        except OSError as error:
            why = f"can't set {attribute} of {device} to {value}: {error.strerror}"
            raise BedError(f"a network namespace: {why}") from error


def sysctl(key: str, value: str, *, may_refuse: bool = False) -> None:
    """Set a setting of this thread's network namespace.

    `may_refuse`: a namespace may not be free to choose among its kernel's congestion controls; each socket then asks.
    """
    setting = Path("/proc/sys/net") / key
    if not setting.exists():
        return
    try:
        setting.write_text(value)
    except OSError:
        if not may_refuse:
            raise


def writable_settings() -> None:
    """Let this process's container change settings of network namespaces: Docker mounts /proc/sys read-only there.

    Raises:
        MachineError: the container may not mount.
    """
    if _libc().mount(None, b"/proc/sys", None, _MS_REMOUNT | _MS_BIND, None) != 0:
        why = os.strerror(ctypes.get_errno())
        raise MachineError(f"can't make /proc/sys writable: {why}", mend="give the container SYS_ADMIN")


def _set(handle: int) -> None:
    if _libc().setns(handle, _CLONE_NEWNET) != 0:
        raise BedError(f"can't enter a network namespace: {os.strerror(ctypes.get_errno())}")
