"""Guests that end well, badly and not at all, and who may run them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from emulator.errors import BedError, MachineError
from emulator.kernel import boot, build
from emulator.kernel.boot import Guest
from emulator.ledger import Ledger
from tests.guest import ROOT

pytestmark = pytest.mark.lab

NOBODY = 65534
CORRUPT_INIT = """
maps = [line.split()[:2] for line in open("/proc/1/maps")]
memory = open("/proc/1/mem", "r+b", 0)
for first, last in (span.split("-") for span, allowed in maps if "w" in allowed):
    memory.seek(int(first, 16))
    memory.write(bytes(int(last, 16) - int(first, 16)))
"""
NETEM_PING = """
id -u
ip netns add far
ip link add near0 type veth peer name far0 netns far
ip addr add 10.9.0.1/24 dev near0 && ip link set near0 up
ip -n far addr add 10.9.0.2/24 dev far0 && ip -n far link set far0 up
tc qdisc add dev near0 root netem delay 20ms
ping -q -c 2 10.9.0.2
"""
BOOT = """
import sys
from pathlib import Path
from emulator.kernel.boot import Guest, run
from emulator.ledger import Ledger
with Ledger("nobody") as ledger:
    sys.exit(run(Guest(("sh", "-ec", sys.argv[1]), cwd=Path("/")), ledger, on_output=print))
"""


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    """The ledger of a run, in a place of its own; empty afterwards, however the guest ended."""
    monkeypatch.setenv("TRACEBED_STATE", str(tmp_path))
    with Ledger("boot") as made:
        yield made
    assert not list(tmp_path.iterdir())


def python(code: str, **settings: object) -> Guest:
    return Guest((sys.executable, "-c", code), **settings)  # type: ignore[arg-type]


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize("virtual", [True, False])
def test_output_and_exit_status_reach_the_caller(ledger: Ledger, virtual: bool) -> None:
    said: list[str] = []
    code = "import sys; print('out'); print('err', file=sys.stderr); print('no end', end=''); sys.exit(7)"
    assert boot.run(python(code, virtual=virtual), ledger, on_output=said.append) == 7
    assert said == ["out", "err", "no end"]


@pytest.mark.usefixtures("lab")
def test_a_command_that_a_signal_ends(ledger: Ledger) -> None:
    code = "import os; os.kill(os.getpid(), 15)"
    assert boot.run(python(code), ledger, on_output=print) == -signal.SIGTERM


@pytest.mark.usefixtures("lab")
def test_a_command_that_does_not_exist(ledger: Ledger) -> None:
    said: list[str] = []
    assert boot.run(Guest(("/no/such/program",)), ledger, on_output=said.append) == 127
    assert said == ["/no/such/program: No such file or directory"]


@pytest.mark.usefixtures("lab")
def test_progress_has_a_channel_of_its_own(ledger: Ledger) -> None:
    said: list[str] = []
    progress: list[str] = []
    code = "open('/run/progress', 'w').write('half\\nall\\n'); print('done')"
    assert boot.run(python(code), ledger, on_output=said.append, on_progress=progress.append) == 0
    assert (said, progress) == (["done"], ["half", "all"])


@pytest.mark.usefixtures("lab")
def test_the_guest_has_the_folder_and_environment_it_was_given(
    ledger: Ledger, tmp_path_factory: pytest.TempPathFactory
) -> None:
    said: list[str] = []
    folder = tmp_path_factory.mktemp("a folder")
    guest = python("import os; print(os.getcwd(), os.environ['COLOUR'])", cwd=folder, env={"COLOUR": "blue"})
    boot.run(guest, ledger, on_output=said.append)
    assert said == [f"{folder} blue"]


@pytest.mark.usefixtures("lab")
def test_a_panic_is_an_error_with_the_kernels_own_words(ledger: Ledger) -> None:
    with pytest.raises(BedError, match=r"killed by signal 6.*Kernel panic - not syncing: Attempted to kill init!"):
        boot.run(python(CORRUPT_INIT), ledger, on_output=lambda line: None)


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize(("virtual", "code"), [(True, "while True: pass"), (False, "import time; time.sleep(1000)")])
def test_a_guest_that_hangs_is_stopped(ledger: Ledger, virtual: bool, code: str) -> None:
    guest = python(f"print('last words', flush=True)\n{code}", virtual=virtual, silence_limit_s=1)
    with pytest.raises(BedError, match="nothing for 1 s and was stopped; its last lines: last words"):
        boot.run(guest, ledger, on_output=print)


@pytest.mark.usefixtures("lab")
def test_a_kernel_that_is_killed_takes_its_programs_with_it(ledger: Ledger, tmp_path: Path) -> None:
    kernels: list[int] = []

    def kill(_: str) -> None:
        kernels.append(_kernel_of(tmp_path))
        os.kill(kernels[0], signal.SIGKILL)

    code = "print('up', flush=True)\nwhile True: pass"
    with pytest.raises(BedError, match="killed by signal 9 before its command did; its last lines: up"):
        boot.run(python(code), ledger, on_output=kill)
    deadline = time.monotonic() + 5
    while left := _processes_of_session(kernels[0]):  # the helper is told of its parent's death: that takes a moment
        assert time.monotonic() < deadline, left


@pytest.mark.usefixtures("lab")
def test_an_ordinary_user_boots_it_and_has_netem(needs: Callable[..., None]) -> None:
    needs("setpriv", "ip", "tc", "ping")
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        shutil.copytree(ROOT / "emulator", folder / "emulator")
        shutil.copytree(build.require().parent, folder / "tracebed" / "kernel" / build.require().parent.name)
        command = [_shared_python(), "-c", BOOT, NETEM_PING]
        if os.geteuid() == 0:
            _give(folder)
            command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *command]
        environment = {"HOME": home, "XDG_CACHE_HOME": home, "PYTHONPATH": home, "PATH": os.environ["PATH"]}
        done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    user, *lines = done.stdout.splitlines()
    assert user == "0"  # inside; outside it is the caller
    assert "rtt min/avg/max/mdev = 20.000/30.000/40.000/10.000 ms" in lines  # the first asked for the address as well


def test_without_a_kernel_the_error_says_how_to_get_one(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("empty")))
    with pytest.raises(MachineError, match="mend: tracebed kernel build"):
        boot.run(Guest(("true",)), ledger, on_output=print)


def _kernel_of(state: Path) -> int:
    """The process that the ledger says a run has."""
    claims = json.loads(next(state.glob("*.json")).read_text())["claims"]
    return next(int(name.split()[0]) for kind, name in claims if kind == "process")


def _processes_of_session(session: int) -> list[str]:
    """Names of living processes of a session, by field 6 of proc(5) stat."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = entry.read_text().rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended since the folder was listed
        state, _, _, its_session, *_ = rest.split()
        if int(its_session) == session and state != "Z":
            found.append(name)
    return found


def _shared_python() -> str:
    """A Python that other users can run: this one may be in somebody's home."""
    system = shutil.which("python3", path="/usr/bin")
    return system if os.geteuid() == 0 and system else sys.executable


def _give(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
