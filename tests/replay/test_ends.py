"""Runs that can't come to their end: a deadlock, a link that stays down. They say so at once, with the rank and the operation."""

from __future__ import annotations

from pathlib import Path

import pytest

from emulator.errors import BedError
from replay.session import load_network, new_folder, read_job, replay
from tests.replay.network import trace_of
from tests.replay.runs import computing, rows, run_json, tracebed, written
from traces.program import Compute, Op, Recv, Send, StepMark, Trace, Wait

LARGE = 256 << 20  # more than sockets hold


def facing() -> Trace:
    """After a step, each sends to the other and waits for that before it receives: what MPI calls unsafe, for it hangs where
    the library does not hold the message."""

    def ops(rank: int) -> list[Op]:
        peer = 1 - rank
        return [
            Compute(1_000), StepMark(0),
            Send(peer, LARGE, name="there"), Wait(2), Recv(peer, LARGE, name="back"), Wait(4), StepMark(1),
        ]  # fmt: skip

    return trace_of({rank: ops(rank) for rank in (0, 1)}, steps=2)


def fails(trace: Path, network: Path, base: Path, ground: str) -> tuple[str, Path]:
    job = read_job(trace)
    resolved = load_network(str(network), job, {})
    folder = new_folder(base, job, resolved)
    with pytest.raises(BedError) as caught:
        replay(job, resolved, folder, ground=ground)
    run = run_json(folder)
    assert (run.status, run.error) == ("failed", str(caught.value))
    return str(caught.value), folder


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    path = tmp_path / "bare.yaml"
    path.write_text("topology: {star: {}}\nlink: {rate: unlimited}\n")
    return path


STUCK = (
    "the ranks wait for each other for ever: rank 0 waits for room to send message 0 of send 'there' to rank 1; "
    "rank 1 waits for room to send message 0 of send 'there' to rank 0"
)


@pytest.mark.lab
def test_a_deadlock_in_the_lab_kernel(lab: Path, bare: Path, tmp_path: Path) -> None:
    """`tracebed check` can't decide this one, for it depends on what sockets hold; it warns."""
    trace = written(facing(), tmp_path)
    assert tracebed("check", trace).returncode == 0
    error, folder = fails(trace, bare, tmp_path, "virtual")
    assert error == STUCK
    assert [row["step"] for row in rows(folder / "steps.csv")] == ["0"]


@pytest.mark.root
def test_a_deadlock_on_this_machine(root: None, bare: Path, tmp_path: Path) -> None:
    error, folder = fails(written(facing(), tmp_path), bare, tmp_path, "host")
    assert error == STUCK
    assert [row["step"] for row in rows(folder / "steps.csv")] == ["0"]


@pytest.mark.lab
def test_a_link_that_stays_down(lab: Path, tmp_path: Path) -> None:
    """It is named, with a rank and the operation that hangs on it. In virtual time the wait takes none."""
    network = tmp_path / "cut.yaml"
    network.write_text("profile: ethernet-1g\nevents: [{down: {link: host1, at: 350 ms}}]\n")
    trace = written(computing(3, 100_000_000, steps=10), tmp_path)
    error, folder = fails(trace, network, tmp_path, "virtual")
    assert error.startswith("nothing has moved for 900 s, link host1 is down: rank 0 waits for message")
    assert "of barrier (operation 3) from rank" in error
    assert len(rows(folder / "steps.csv")) == 3


@pytest.mark.lab
def test_a_link_that_comes_back_in_time_is_no_end(lab: Path, tmp_path: Path) -> None:
    """It is away for 20 s, which TCP takes. With a limit of 10 s the run is given up, with what it was at."""
    network = tmp_path / "cut.yaml"
    network.write_text("profile: ethernet-1g\nevents: [{down: {link: host1, at: 350 ms, for: 20 s}}]\n")
    trace = written(computing(3, 100_000_000, steps=10), tmp_path)
    job = read_job(trace)
    resolved = load_network(str(network), job, {})
    run = replay(job, resolved, new_folder(tmp_path, job, resolved))
    assert run.summary is not None
    assert run.summary.steps == 10
    said = tracebed("replay", trace, "--network", network, "--stall", "10", "-o", tmp_path / "runs")
    assert said.returncode == 1
    assert (
        "cut: nothing has moved for 10 s, link host1 is down: rank 0 waits for message" in said.stderr.splitlines()[-1]
    )


@pytest.mark.lab
def test_a_step_that_takes_longer_than_the_limit_is_no_end(lab: Path, tmp_path: Path) -> None:
    """A rank that computes for an hour is not stuck, nor is one that waits for it."""
    trace = written(
        trace_of({rank: [Compute(3600 * 10**9), *step] for rank, step in exchange().items()}, steps=1), tmp_path
    )
    job = read_job(trace)
    network = load_network("ethernet-1g", job, {})
    run = replay(job, network, new_folder(tmp_path, job, network))
    assert run.summary is not None
    assert run.summary.step_mean_ns > 3600e9


def exchange() -> dict[int, list[Op]]:
    return {0: [Send(1, 8), Wait(1), StepMark(0)], 1: [Recv(0, 8), Wait(1), StepMark(0)]}
