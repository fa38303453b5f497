"""What a run owns is written down before it exists, and removed when the run is dead: that, and nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from emulator.cleaning import clean, remove
from emulator.errors import BedError
from emulator.ledger import Claim, Ledger, leftovers, process_name, state_folder, written

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder of this test's own."""
    monkeypatch.setenv("TRACEBED_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that does nothing, and is gone afterwards."""
    with subprocess.Popen(SLEEPER) as process:
        yield process
        process.kill()


def run_that_dies(code: str) -> str:
    """Run `code` with a ledger called `own`, then kill -9 the run; what it printed."""
    script = "\n".join(
        (
            "import os, signal, subprocess, sys",
            "from pathlib import Path",
            "from emulator.ledger import Ledger",
            "with Ledger('dead') as own:",
            textwrap.indent(textwrap.dedent(code), "    "),
            "    sys.stdout.flush()",
            "    os.kill(os.getpid(), signal.SIGKILL)",
        )
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return done.stdout


def ledger_of_the_dead(state: Path, *claims: tuple[str, str]) -> Path:
    """A ledger whose owner has ended: it has this process's id, and another start time."""
    state.mkdir(exist_ok=True)
    path = state / "tracebed-gone.json"
    path.write_text(json.dumps({"owner": f"{os.getpid()} 1", "claims": claims}))
    return path


def test_a_claim_is_on_disk_when_it_is_made_and_the_file_goes_with_the_last(state: Path) -> None:
    with Ledger("run") as own:
        folder = own.claim("folder", "/a/folder")
        netns = own.claim("netns", "a-namespace")
        (path,) = state.iterdir()
        assert json.loads(path.read_text())["claims"] == [["folder", "/a/folder"], ["netns", "a-namespace"]]
        own.release(folder)
        own.release(netns)
    assert not list(state.iterdir())


def test_what_is_not_released_stays_written_down(state: Path) -> None:
    with Ledger("run") as own:
        own.claim("folder", "/a/folder")
    assert [path.name for path in state.iterdir()] == ["tracebed-run.json"]


def test_clean_removes_what_a_killed_run_owned_and_nothing_else(tmp_path: Path, state: Path) -> None:
    owned, foreign = tmp_path / "owned", tmp_path / "foreign"
    foreign.mkdir()
    code = f"""
        own.claim("folder", {str(owned)!r})
        Path({str(owned)!r}).mkdir()
        Path({str(owned / "file")!r}).write_text("x")
        child = subprocess.Popen({SLEEPER!r}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        print(own.claim_process(child.pid).name)
    """
    process = run_that_dies(code).strip()
    pid = int(process.split()[0])
    assert process_name(pid) == process
    assert clean() == (Claim("process", process), Claim("folder", str(owned)))
    assert process_name(pid) is None
    assert not owned.exists()
    assert foreign.is_dir()
    assert not list(state.iterdir())


def test_clean_leaves_a_living_run_alone(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    folder = tmp_path / "owned"
    folder.mkdir()
    with Ledger("alive") as own:
        claims = [own.claim("folder", str(folder)), own.claim_process(sleeper.pid)]
        assert clean() == ()
        assert list(leftovers()) == []
        assert folder.is_dir()
        assert sleeper.poll() is None
        for claim in claims:
            assert claim is not None
            own.release(claim)


def test_a_process_id_that_was_given_to_somebody_else_is_not_killed(
    state: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    ledger_of_the_dead(state, ("process", f"{sleeper.pid} 1"))
    assert clean() == ()
    assert sleeper.poll() is None
    assert not list(state.iterdir())


def test_what_is_gone_already_is_no_error(tmp_path: Path, state: Path) -> None:
    ledger_of_the_dead(state, ("folder", str(tmp_path / "never made")), ("process", "4194999 5"), ("netns", "tb-never"))
    assert clean() == ()
    assert clean() == ()


def test_a_process_that_has_ended_is_not_claimed() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie now
    with Ledger("run") as own:
        assert own.claim_process(child.pid) is None
        child.wait()
        assert own.claim_process(child.pid) is None


def test_the_place_can_be_chosen(monkeypatch: pytest.MonkeyPatch, state: Path) -> None:
    assert state_folder() == state
    monkeypatch.delenv("TRACEBED_STATE")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert state_folder() == Path("/cache/tracebed/runs")


def test_what_is_kept_on_purpose_is_left_alone_when_its_maker_is_dead(tmp_path: Path, state: Path) -> None:
    folder = tmp_path / "owned"
    code = f"""
        own.claim("folder", {str(folder)!r})
        Path({str(folder)!r}).mkdir()
        own.keep({{"any": "description"}})
    """
    run_that_dies(code)
    assert clean() == ()
    assert folder.is_dir()
    (kept,) = written()
    assert (kept.run_id, kept.kept) == ("dead", {"any": "description"})
    assert remove(kept) == (Claim("folder", str(folder)),)
    assert not list(state.iterdir())


def test_a_run_id_is_taken_once_and_a_dead_runs_claims_are_not_overwritten(state: Path) -> None:
    ledger_of_the_dead(state, ("netns", "tb-never"))
    with pytest.raises(BedError, match="tracebed clean"), Ledger("gone"):
        pass
    (dead,) = leftovers()
    assert dead.claims == (Claim("netns", "tb-never"),)
    assert [path.name for path in state.iterdir()] == ["tracebed-gone.json"]
