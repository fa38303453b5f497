"""Fixtures that more than one package's tests use."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from emulator.kernel import build

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def corpus() -> Path:
    """The recorded traces: TRACEBED_CORPUS, else shared/traces beside the repository. CI must have them."""
    folder = Path(os.environ.get("TRACEBED_CORPUS", ROOT.parent / "shared" / "traces"))
    if not folder.is_dir():
        _not_run(f"no trace corpus at {folder} (set TRACEBED_CORPUS)")
    return folder


@pytest.fixture(scope="session")
def lab() -> Path:
    """The lab kernel, built where it is not yet. Only a machine that can't build it skips, and CI must build it."""
    if (kernel := build.find()) is not None:
        return kernel
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        _not_run("the lab kernel runs on x86-64 Linux only")
    if absent := build.missing_tools():
        _not_run(f"building the lab kernel needs {' '.join(absent)}")
    return build.build(lambda what, done, total: None)


@pytest.fixture(scope="session")
def root() -> None:
    """The tests run as root. CI must."""
    if os.geteuid() != 0:
        _not_run("needs root")


@pytest.fixture(scope="session")
def torch() -> None:
    """PyTorch is installed. CI must have it."""
    if importlib.util.find_spec("torch") is None:
        _not_run("needs torch: pip install -e '.[torch]'")


@pytest.fixture(scope="session")
def mpi() -> None:
    """mpi4py is installed, and an MPI with it. CI must have it."""
    if importlib.util.find_spec("mpi4py") is None or not (Path(sys.executable).parent / "mpiexec").exists():
        _not_run("needs mpi4py and mpich: pip install -e '.[mpi]'")


@pytest.fixture
def needs() -> Callable[..., None]:
    """`needs("iperf3", ...)`: skip where a program is missing. CI must have them all."""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))

    def check(*programs: str) -> None:
        if absent := [program for program in programs if shutil.which(program, path=path) is None]:
            _not_run(f"needs {' '.join(absent)}")

    return check


def _not_run(why: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI must run this: {why}")
    pytest.skip(f"not run: {why}")
