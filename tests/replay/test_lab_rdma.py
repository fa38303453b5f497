"""The RDMA-like transport in the lab kernel: rings, goodput against loss, losslessness, DCQCN. Times are virtual."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from replay.results import Run
from tests.replay.network import trace_of
from tests.replay.runs import all_reduces, replayed, rows, step_times, written
from traces.program import Op, Recv, Send, StepMark, Trace, Wait

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab")]

PAYLOAD, WIRE = 4096, 4140 + 14 + 24
PLAIN = {"rdma.lossless": "false", "rdma.congestion": "none"}
MESSAGE = 1_000_000


def transfers(ranks: int, flows: Mapping[tuple[int, int], int]) -> Trace:
    """One step in which all flows, (from, to): messages of 1 MB, go at once."""
    programs: dict[int, list[Op]] = {rank: [] for rank in range(ranks)}
    for (source, target), messages in flows.items():
        for _ in range(messages):
            programs[source].append(Send(target, MESSAGE))
            programs[target].append(Recv(source, MESSAGE))
    for ops in programs.values():
        ops += [*(Wait(index) for index in range(len(ops))), StepMark(0)]
    return trace_of(programs, steps=1)


def moved(trace: Trace, network: str, settings: Mapping[str, str], folder: Path) -> tuple[Run, Path]:
    folder.mkdir()
    return replayed(written(trace, folder), network, folder, settings)


def last_received(folder: Path, rank: int) -> int:
    """When (ns) the last message that `rank` received was there."""
    with np.load(folder / "ops.npz") as ops:
        return int(ops["ended"][(ops["rank"] == rank) & (ops["kind"] == "recv")].max())


def test_a_ring_takes_what_its_bytes_need(tmp_path: Path) -> None:
    trace = written(all_reduces(4, 20_000_000, steps=2), tmp_path)
    _, folder = replayed(trace, "roce-100", tmp_path, fidelity="packet")
    needed = 6 * (5_000_000 * 8 / 100 * WIRE / PAYLOAD + 300)
    print(needed, step_times(folder))
    for took in step_times(folder):
        assert 0 <= took / needed - 1 < 0.02


@pytest.mark.parametrize("recovery", ["go-back-n", "selective-repeat"])
def test_every_element_is_right_on_links_that_lose_and_the_same_again(recovery: str, tmp_path: Path) -> None:
    trace = written(all_reduces(3, 600_000, steps=2), tmp_path)
    settings = {**PLAIN, "link.loss": "1%", "rdma.recovery": recovery}
    (run, once), (_, again) = (replayed(trace, "roce-100", tmp_path, settings, verify=True) for _ in range(2))
    assert run.summary is not None
    assert run.summary.verified == 3 * 2 * 150_000
    assert run.summary.retransmits > 0
    for name in ("steps.csv", "ops.npz", "links.csv", "flows.csv"):
        assert (once / name).read_bytes() == (again / name).read_bytes(), name


def test_goodput_against_loss(tmp_path: Path) -> None:
    """25 Gbit/s, a round trip of 200 us. Go-back-N sends a round trip's packets again for each loss, and where what was sent
    again is lost too waits for its timer; selective repeat sends again what is missing."""
    share: dict[tuple[str, str], float] = {}
    for recovery in ("go-back-n", "selective-repeat"):
        for loss in ("0%", "0.01%", "0.1%", "1%", "5%"):
            settings = {
                **PLAIN, "link.rate": "25 gbit", "link.delay": "50 us", "rdma.recovery": recovery,
                **({} if loss == "0%" else {"links.host0.up.loss": loss}),
            }  # fmt: skip
            messages = 2 if (recovery, loss) == ("go-back-n", "5%") else 12
            _, folder = moved(transfers(2, {(0, 1): messages}), "roce-25", settings, tmp_path / f"{recovery}{loss}")
            share[recovery, loss] = messages * MESSAGE * 8 / last_received(folder, 1) / (25 * PAYLOAD / WIRE)
    print(*(f"{recovery:17} {loss:6} {part:.3f}" for (recovery, loss), part in share.items()), sep="\n")
    packets = 200_000 * 25 / 8 / WIRE
    for loss in (0.0001, 0.001, 0.01):
        expected = (1 - loss) / (1 - loss + loss * packets)
        assert share["go-back-n", f"{100 * loss:g}%"] < 1.3 * expected
    assert share["go-back-n", "5%"] < 0.15
    assert share["go-back-n", "0%"] > 0.9
    for loss in (0.0, 0.0001, 0.001, 0.01, 0.05):
        assert 0.75 * (1 - loss) < share["selective-repeat", f"{100 * loss:g}%"] <= 1 - 0.9 * loss


def test_a_lossless_incast_drops_nothing_and_holds_up_a_victim(tmp_path: Path) -> None:
    """Eight hosts send to one; one of them to an idle host as well."""
    victim, incast = {(1, 9): 4}, {(source, 0): 4 for source in range(1, 9)}
    settings = {"link.queue": "1 MB", "rdma.congestion": "none"}
    _, alone = moved(transfers(10, victim), "roce-100", settings, tmp_path / "alone")
    _, beside = moved(transfers(10, victim | incast), "roce-100", settings, tmp_path / "beside")
    lossy = {**settings, "link.queue": "300 kB", "rdma.lossless": "false"}
    _, drops = moved(transfers(10, victim | incast), "roce-100", lossy, tmp_path / "lossy")
    counted = {
        folder: sum(int(row["drops"]) for row in rows(folder / "links.csv")) for folder in (alone, beside, drops)
    }
    print(counted, last_received(alone, 9), last_received(beside, 9), last_received(drops, 9))
    assert counted[alone] == counted[beside] == 0
    assert last_received(beside, 9) > 3 * last_received(alone, 9)


def test_dcqcn_shares_a_marking_port_fairly(tmp_path: Path) -> None:
    network = tmp_path / "marking.yaml"
    network.write_text(
        "profile: roce-25\nlink: {rate: 10 gbit, queue: {limit: 4 MB, ecn: 30 kB}}\nrdma: {lossless: false}\n"
    )
    _, folder = moved(transfers(3, {(1, 0): 100, (2, 0): 100}), str(network), {}, tmp_path / "fair")
    with np.load(folder / "ops.npz") as ops:
        ended = [int(ops["ended"][(ops["rank"] == rank) & (ops["kind"] == "send")].max()) for rank in (1, 2)]
    flows = rows(folder / "flows.csv")
    print(ended, [(row["rank"], row["cnps"], row["delivered_ce"]) for row in flows])
    assert sum(int(row["cnps"]) for row in flows) > 0
    assert {row[name] for row in flows for name in ("rtt_us", "lost", "ssthresh", "busy_us")} == {""}  # TCP knows these
    assert max(ended) / min(ended) < 1.1
