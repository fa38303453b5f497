"""Compose files brought up by a daemon on this machine, in real time, on links that need no netem."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.composed import IMAGE, argv, compose, environment, exit_statuses, make_nothing, use_this_machine
from tests.dockerd import daemon, docker
from tests.replay.runs import computing, overlapping, rows, run_json, tracebed, written
from traces.program import Trace

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("root")]

LIMIT_S = 60
UNLIMITED = "topology: {star: {}}\nlink: {rate: unlimited}\n"
PAIRED = """\
hosts: {left: {ranks: [0, 1]}, right: {ranks: [2]}}
switches: [s]
links: {one: {ends: [left, s], rate: 200 mbit}, two: {ends: [right, s], rate: 200 mbit}}
"""


@pytest.fixture
def own_daemon(needs: Callable[..., None]) -> Iterator[None]:
    needs("dockerd", "docker", "docker-compose")
    with daemon():
        make_nothing()
        yield


def made(folder: Path, trace: Trace, network: str) -> Path:
    """The folder of a compose file, FOLDER/bed."""
    folder.mkdir()
    (folder / "net.yaml").write_text(network)
    said = tracebed(
        "compose", written(trace, folder), "--network", folder / "net.yaml", "--image", IMAGE, "-o", folder / "bed"
    )
    assert said.returncode == 0, said.stderr
    use_this_machine(folder / "bed")
    return folder / "bed"


def only_run(bed: Path) -> Path:
    (found,) = (bed / "runs").iterdir()
    return found


@pytest.mark.usefixtures("own_daemon")
def test_a_killed_rank_fails_its_run_and_no_other(tmp_path: Path) -> None:
    """Two projects of one name's folders at once; one loses a rank in the middle."""
    beds = [
        made(tmp_path / name, computing(3, 100_000_000, steps), UNLIMITED) for name, steps in (("a", 600), ("b", 20))
    ]
    ups = [
        subprocess.Popen(argv("up", "--no-color"), cwd=bed, env=environment(), stdout=subprocess.PIPE, text=True)
        for bed in beds
    ]
    doomed, other = beds
    deadline = time.monotonic() + LIMIT_S
    while not [row for steps in (doomed / "runs").glob("*/steps.csv") for row in rows(steps)]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    docker("kill", compose(doomed, "ps", "-q", "host1").stdout.strip())
    said = [up.communicate(timeout=LIMIT_S)[0] for up in ups]
    assert exit_statuses(doomed) == {"tracebed": 1, "host0": 1, "host1": 137, "host2": 1}
    assert "rank 1's process on host1 ended without a word" in said[0]
    failed = run_json(only_run(doomed))
    assert failed.status == "failed"
    assert failed.error.startswith("rank 1's process on host1 ended without a word")
    whole = run_json(only_run(other))
    assert whole.status == "complete"
    assert exit_statuses(other) == {"tracebed": bool(whole.doubts), "host0": 0, "host1": 0, "host2": 0}, said[1]


@pytest.mark.usefixtures("own_daemon")
def test_two_ranks_in_one_container_leave_a_whole_run_to_who_owns_the_folder(tmp_path: Path) -> None:
    bed = made(tmp_path / "a", overlapping(3, 300_000, steps=2), PAIRED)
    (bed / "runs").chmod(0o755)
    subprocess.run(["chown", "-R", "1234:1234", str(bed)], check=True)
    up = compose(bed, "up", "--no-color")
    run = only_run(bed)
    assert exit_statuses(bed) == {"tracebed": bool(run_json(run).doubts), "left": 0, "right": 0}, up.stdout
    assert "critical path" in up.stdout
    files = {"run.json", "steps.csv", "ops.npz", "links.csv", "flows.csv", "totals.json"}
    assert {path.name for path in run.iterdir()} >= files
    assert {(path.stat().st_uid, path.stat().st_gid) for path in (run, *run.iterdir())} == {(1234, 1234)}
    assert len(rows(run / "steps.csv")) == 2
    summary = run_json(run).summary
    assert summary is not None
    # Two collectives of 300 kB and 100 kB between hosts at 200 Mbit/s take milliseconds, where these need none of the wire.
    assert summary.step_mean_ns > summary.ideal_step_ns + 5_000_000
    down = compose(bed, "down", "--volumes")
    assert down.returncode == 0, down.stderr
    assert docker("volume", "ls", "-q") == ""
