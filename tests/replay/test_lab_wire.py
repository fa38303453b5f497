"""Jobs replayed in the lab kernel, found again in the captures of their links, and replayed from those."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.replay.network import trace_of
from tests.replay.runs import step_times
from tests.replay.test_lab_capture import run
from traces.importer import import_files
from traces.program import Collective, CollectiveKind, Compute, DType, Op, Recv, Send, StepMark, Trace, Wait

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab")]

NETWORK = "profile: ethernet-10g\ntopology: {star: {hosts: 4}}\n"
LOSSY = NETWORK + "link: {loss: 0.1%, queue: 1 MB}\n"
LINKS = ("host0", "host1", "host2", "host3")
HEADER = 16  # bytes that our transport puts ahead of each message
COUNT = 1_000_000


def of_one_kind(kind: CollectiveKind, steps: int) -> Trace:
    ops: list[Op] = []
    for step in range(steps):
        ops += [Compute(5_000_000), Collective(kind, 0, COUNT, DType.FLOAT32), Wait(len(ops) + 1), StepMark(step)]
    return trace_of(dict.fromkeys(range(4), ops), steps=steps)


def serving(steps: int) -> Trace:
    """Rank 0 gets from each of three, and gives each, 2 MB."""
    server: list[Op] = []
    worker: list[Op] = []
    for step in range(steps):
        at, server_at = len(worker), len(server)
        worker += [
            Compute(4_000_000),
            Send(0, 2 * COUNT),
            Wait(at + 1),
            Recv(0, 2 * COUNT),
            Wait(at + 3),
            StepMark(step),
        ]
        server += [*(Recv(peer, 2 * COUNT) for peer in (1, 2, 3)), *(Wait(server_at + n) for n in range(3))]
        server += [Compute(1_000_000), *(Send(peer, 2 * COUNT) for peer in (1, 2, 3))]
        server += [*(Wait(server_at + 7 + n) for n in range(3)), StepMark(step)]
    return trace_of({0: server, 1: worker, 2: worker, 3: worker}, steps=steps)


def there_and_back(job: Trace, network: str, folder: Path, *links: str) -> tuple[list[int], Trace, list[int]]:
    """Step times of the job, the trace that is imported from the captures, and its step times."""
    for name in ("first", "again"):
        (folder / name).mkdir()
    first = run(folder / "first", job, network, *(links or LINKS))
    found = import_files(sorted(first.glob("*.pcap")))
    return step_times(first), found, step_times(run(folder / "again", found, network))


def said(trace: Trace, code: str) -> str:
    return " ".join(finding.message for finding in trace.findings if finding.code == code)


def collectives(trace: Trace, rank: int) -> list[tuple[CollectiveKind, int]]:
    return [(op.kind, op.count) for op in trace.programs[rank].ops if isinstance(op, Collective)]


def test_a_ring_all_reduce(tmp_path: Path) -> None:
    """Of 4 MB; each of 6 messages has its header. The first step's compute is ahead of the first packet."""
    before, found, after = there_and_back(of_one_kind(CollectiveKind.ALL_REDUCE, 3), NETWORK, tmp_path)

    for rank in range(4):
        assert collectives(found, rank) == [(CollectiveKind.ALL_REDUCE, 4 * COUNT + 4 * HEADER)] * 3
    assert "ring of ranks 0 1 2 3" in said(found, "recognised")
    assert "confidence 1.000" in said(found, "recognised")
    assert found.step_count == 3
    assert after[1:] == pytest.approx(before[1:], rel=0.02)


def test_an_all_to_all(tmp_path: Path) -> None:
    before, found, after = there_and_back(of_one_kind(CollectiveKind.ALL_TO_ALL, 3), NETWORK, tmp_path)

    for rank in range(4):
        assert collectives(found, rank) == [(CollectiveKind.ALL_TO_ALL, 3 * (COUNT + HEADER))] * 3
    assert after[1:] == pytest.approx(before[1:], rel=0.02)


def test_a_parameter_server(tmp_path: Path) -> None:
    """All of it passes the server's link, so that one's capture is enough."""
    before, found, after = there_and_back(serving(3), NETWORK, tmp_path, "host0")

    assert "parameter server: rank 0 serves 3 workers" in said(found, "recognised")
    sent = [(op.peer, op.count) for op in found.programs[0].ops if isinstance(op, Send)]
    assert sorted(sent) == sorted((peer, 2 * COUNT + HEADER) for peer in (1, 2, 3) for _ in range(3))
    assert after[1:] == pytest.approx(before[1:], rel=0.02)


def test_a_ring_with_loss(tmp_path: Path) -> None:
    """One packet in a thousand is lost on each link: what is sent again counts once, stalls or not."""
    _, found, _ = there_and_back(of_one_kind(CollectiveKind.ALL_REDUCE, 6), LOSSY, tmp_path)

    assert collectives(found, 2) == [(CollectiveKind.ALL_REDUCE, 4 * COUNT + 4 * HEADER)] * 6
    assert found.step_count == 6
    assert int(said(found, "resent").split()[0]) > 20
    assert not said(found, "missing-packets")
