"""Builds the lab kernel from the distribution's source, without root, and keeps it under the user's cache folder.

The cache key is the content of the options (`lab.config`) and of the patch (`lab.patch`). The distribution's own source
may get security fixes without changing the key; which source was built is written beside the kernel, and naming another
one builds again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from emulator.errors import MachineError

SOURCE_PACKAGE = "linux-source-6.12"
TOOLS = {  # what the build calls -> the Debian package that has it
    "gcc": "gcc", "make": "make", "flex": "flex", "bison": "bison",
    "bc": "bc", "xz": "xz-utils", "patch": "patch", "tar": "tar",
}  # fmt: skip
FROM_TARBALL = "tracebed kernel build --source linux-6.12.y.tar.xz (from kernel.org)"
BUILD_STEPS = 911  # lines make prints for these options; only the progress bar's length depends on it
_HERE = Path(__file__).parent

Progress = Callable[[str, int, int], None]
"""Called with what is being done, and how much of how much of it is done."""


def cache_folder() -> Path:
    """Where kernels are kept: XDG_CACHE_HOME or ~/.cache, then tracebed/kernel."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tracebed" / "kernel"


def _key() -> str:
    digest = hashlib.sha256()
    for part in (_HERE / "lab.config", _HERE / "lab.patch"):
        digest.update(part.read_bytes())
    return digest.hexdigest()[:16]


def find() -> Path | None:
    """The kernel built from today's options and patch, or None where it has not been built yet."""
    kernel = cache_folder() / _key() / "linux"
    return kernel if kernel.is_file() else None


def describe(kernel: Path) -> dict[str, str]:
    """What `kernel` was built from: source, version, key."""
    text = json.loads((kernel.parent / "build.json").read_text())
    return {str(name): str(value) for name, value in text.items()}


def require() -> Path:
    """The built kernel.

    Raises:
        MachineError: there is none; the mend builds it.
    """
    kernel = find()
    if kernel is None:
        raise MachineError("the lab kernel is not built", mend="tracebed kernel build")
    return kernel


def missing_tools() -> tuple[str, ...]:
    """Debian packages without which the kernel can't be built here."""
    absent = [package for tool, package in TOOLS.items() if shutil.which(tool) is None]
    if shutil.which("gcc") and not Path("/usr/include/stdio.h").exists():
        absent.append("libc6-dev")
    return tuple(absent)


def build(progress: Progress, source: Path | None = None) -> Path:
    """Build the kernel (about two and a half minutes on two cores) unless it is there, and say where it is.

    Args:
        progress: told what is going on.
        source: a Linux 6.12 tarball; by default the distribution's package is fetched.

    Raises:
        MachineError: a tool, the source or the right kind of machine is missing, or the build failed; with the mend.
    """
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        raise MachineError("the lab kernel runs on x86-64 Linux only", mend="use --on model, or such a machine")
    with _only_one():
        kernel = find()
        if kernel is not None and (source is None or describe(kernel)["source"] == _name(source)):
            return kernel
        if absent := missing_tools():
            raise MachineError(
                "tools are missing to build the lab kernel", mend=f"sudo apt-get install -y {' '.join(absent)}"
            )
        with tempfile.TemporaryDirectory(dir=cache_folder(), prefix="build-") as folder:
            return _build(Path(folder), source, progress)


@contextmanager
def _only_one() -> Iterator[None]:
    """Two commands that need the kernel at once build it once."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(work: Path, source: Path | None, progress: Progress) -> Path:
    progress("fetching the kernel's source", 0, 1)
    tarball, origin = (source, _name(source)) if source else _fetch(work)
    progress("unpacking the kernel's source", 0, 1)
    tree, out = work / "source", work / "out"
    tree.mkdir()
    _call(["tar", "-xf", str(tarball), "-C", str(tree), "--strip-components=1"], work, "unpack the source")
    with (_HERE / "lab.patch").open("rb") as patch:
        _call(["patch", "-p1", "--forward", "--quiet"], tree, "patch the source (is it Linux 6.12?)", stdin=patch)
    make = ["make", "-C", str(tree), "ARCH=um", f"O={out}"]
    _call([*make, f"KCONFIG_ALLCONFIG={_HERE / 'lab.config'}", "allnoconfig"], work, "configure the kernel")
    _check_options(out / ".config")
    _compile([*make, f"-j{os.cpu_count() or 1}", "linux"], work / "build.log", progress)
    version = _call([*make, "-s", "kernelrelease"], work, "read the kernel's version").strip().splitlines()[-1]
    kept = cache_folder() / _key()
    kept.mkdir(exist_ok=True)
    (kept / "build.json").write_text(json.dumps({"source": origin, "version": version, "key": kept.name}, indent=1))
    built = kept / "linux.new"
    shutil.copy2(out / "linux", built)
    built.rename(kept / "linux")
    return kept / "linux"


def _name(source: Path) -> str:
    """A tarball's name and what tells it from another of that name."""
    with source.open("rb") as file:
        return f"{source.name} sha256:{hashlib.file_digest(file, 'sha256').hexdigest()[:16]}"


def _fetch(work: Path) -> tuple[Path, str]:
    """The distribution's kernel source, out of its package without installing that; and its name with version."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise MachineError(
            "no apt here to fetch the kernel's source with", mend="tracebed kernel build --source linux-6.12.y.tar.xz"
        )
    try:
        _call(["apt-get", "download", "-q", SOURCE_PACKAGE], work, f"fetch {SOURCE_PACKAGE}")
    except MachineError as error:
        mend = f"sudo apt-get update, if {SOURCE_PACKAGE} exists here; else {FROM_TARBALL}"
        raise MachineError(str(error), mend=mend) from None
    package = next(work.glob(f"{SOURCE_PACKAGE}_*.deb"))
    _call(["dpkg-deb", "-x", str(package), str(work / "package")], work, "unpack the source's package")
    return next((work / "package" / "usr" / "src").glob(f"{SOURCE_PACKAGE}.tar.*")), package.stem


def _check_options(config: Path) -> None:
    """An option that the source does not know is dropped by kconfig in silence; here it is an error."""
    granted = set(config.read_text().splitlines())
    asked = [
        line
        for line in (_HERE / "lab.config").read_text().splitlines()
        if line.startswith("CONFIG_") and not line.endswith("=n")
    ]
    if refused := [line for line in asked if line not in granted]:
        raise MachineError(
            f"this source can't build with {' '.join(refused)}", mend="name a Linux 6.12 source with --source"
        )


def _compile(command: list[str], log: Path, progress: Progress) -> None:
    with (
        log.open("w") as kept,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as make,
    ):
        assert make.stdout is not None
        for done, line in enumerate(make.stdout, start=1):
            kept.write(line)
            progress("compiling the lab kernel", min(done, BUILD_STEPS), BUILD_STEPS)
    if make.returncode != 0:
        raise MachineError(f"the lab kernel did not compile: {_tail(log.read_text())}")


def _call(command: list[str], folder: Path, what: str, stdin: IO[bytes] | int = subprocess.DEVNULL) -> str:
    done = subprocess.run(command, cwd=folder, stdin=stdin, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise MachineError(f"could not {what}: {_tail(done.stderr or done.stdout)}")
    return done.stdout


def _tail(text: str) -> str:
    return " | ".join(text.strip().splitlines()[-5:])
