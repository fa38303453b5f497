"""What holds the steps of real replays: the link that was made slow, and the step that there would be without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from replay.critical import Holder
from replay.results import Run, read_holders
from tests.replay.network import everywhere
from tests.replay.runs import all_reduces, computing, replayed, rows, step_times, written
from tests.replay.test_critical import straggling
from traces.program import Collective, CollectiveKind, Trace

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab")]

RANKS, NBYTES = 4, 20_000_000


def by_kind(run: Run) -> dict[str, Holder]:
    assert run.summary is not None
    return {holder.kind: holder for holder in run.summary.held}


@pytest.mark.parametrize(
    "setting",
    [{"links.host2.rate": "2 gbit"}, {"links.host2.up.rate": "2 gbit"}, {"links.host2.loss": "0.3%"}],
    ids=["slow", "slow one way", "lossy"],
)
def test_a_ring_with_one_bad_link_names_it(setting: dict[str, str], tmp_path: Path) -> None:
    """What the step would gain without it is, within 10 %, what it gains where that link is like the others."""
    trace = written(all_reduces(RANKS, NBYTES, steps=3), tmp_path)
    run, bad = replayed(trace, "ethernet-10g", tmp_path, setting, fidelity="packet")
    _, good = replayed(trace, "ethernet-10g", tmp_path, fidelity="packet")
    assert run.summary is not None
    link, operation = by_kind(run)["link"], by_kind(run)["operation"]
    usual = sum(step_times(good)) / 3
    said = f"step {run.summary.step_mean_ns:.0f}, {link}, as the others {usual:.0f}"
    assert link.name == "host2", said
    assert link.path_ns > 0.6 * run.summary.step_mean_ns, said
    gained = run.summary.step_mean_ns - link.free_step_ns
    assert gained == pytest.approx(run.summary.step_mean_ns - usual, rel=0.1), said
    assert operation.path_ns == pytest.approx(run.summary.step_mean_ns)
    assert operation.free_step_ns == 0
    assert {holder.kind for holder in read_holders(bad)} == {"operation", "link"}  # no process is ever late


def test_a_link_that_an_event_slows_is_named(tmp_path: Path) -> None:
    path = tmp_path / "net.yaml"
    path.write_text("profile: ethernet-10g\nevents: [{degrade: {link: host1, at: 0 ms, for: 1 s, rate: 1 gbit}}]\n")
    trace = written(all_reduces(RANKS, NBYTES // 4, steps=2), tmp_path)
    run, folder = replayed(trace, path, tmp_path)
    assert by_kind(run)["link"].name == "host1"
    used = {(row["link"], row["source"]): float(row["utilisation"]) for row in rows(folder / "links.csv")}
    assert 0.5 < used["host1", "host1"] < 1
    assert used["host1", "host1"] == pytest.approx(
        10 * used["host0", "host0"], rel=0.05
    )  # as many bytes at a tenth of the rate


def incast() -> Trace:
    return everywhere(Collective(CollectiveKind.GATHER, 0, 2_000_000, root=0), 5)


def test_a_queue_that_overflows_was_seen_full_and_no_other_held_anything(tmp_path: Path) -> None:
    """Readings 2 ms apart see it nearly so, never more than it holds; packet by packet, so that no burst goes in at once."""
    settings = {"link.queue": "200 kB"}
    _, folder = replayed(written(incast(), tmp_path), "ethernet-10g", tmp_path, settings, fidelity="packet")
    links = {(row["link"], row["source"]): row for row in rows(folder / "links.csv")}
    peaks = {end: int(row["peak_bytes"]) for end, row in links.items()}
    full = links["host0", "switch"]
    assert int(full["drops"]) > 0
    assert 100_000 < peaks["host0", "switch"] <= 200_000, peaks
    assert max(peak for end, peak in peaks.items() if end != ("host0", "switch")) < 100_000, peaks
    assert int(full["readings"]) >= 3  # one each 2 ms of what 8 MB take at 10 Gbit/s


def test_an_incast_names_the_link_that_all_cross(tmp_path: Path) -> None:
    """All send to rank 0 at once, each over a link of its own to the one of rank 0."""
    run, _ = replayed(written(incast(), tmp_path), "ethernet-10g", tmp_path)
    link = by_kind(run)["link"]
    assert run.summary is not None
    assert link.name == "host0"
    assert link.path_ns > 0.8 * run.summary.step_mean_ns
    assert link.free_step_ns < 0.45 * run.summary.step_mean_ns  # a quarter, and what the others need by themselves


def test_a_straggler_is_named(tmp_path: Path) -> None:
    run, _ = replayed(written(straggling(RANKS, slow=2, extra=5_000_000), tmp_path), "ethernet-10g", tmp_path)
    usual, _ = replayed(written(straggling(RANKS, slow=2, extra=0), tmp_path), "ethernet-10g", tmp_path)
    assert run.summary is not None
    assert usual.summary is not None
    compute = by_kind(run)["compute"]
    assert compute.name == "rank 2"
    assert compute.path_ns > 0.9 * run.summary.step_mean_ns
    assert compute.free_step_ns == pytest.approx(usual.summary.step_mean_ns, rel=0.1)


def test_where_only_compute_is_on_the_path_no_link_is(tmp_path: Path) -> None:
    run, _ = replayed(written(computing(2, 10_000_000, steps=2), tmp_path), "ethernet-100g", tmp_path)
    assert run.summary is not None
    assert by_kind(run)["compute"].path_ns > 0.99 * run.summary.step_mean_ns
    assert by_kind(run)["link"].path_ns < 0.01 * run.summary.step_mean_ns


def test_bandwidths_are_those_that_nccl_tests_would_say(tmp_path: Path) -> None:
    """All-reduce: bytes by time, and 2 (N - 1) / N of that on the bus (nccl-tests, doc/PERFORMANCE.md)."""
    trace = written(all_reduces(RANKS, NBYTES, steps=2), tmp_path)
    _, folder = replayed(trace, "ethernet-10g", tmp_path)
    (row,) = rows(folder / "collectives.csv")
    assert (row["kind"], row["ranks"], float(row["bytes"]), row["count"]) == ("all_reduce", "4", NBYTES, "2")
    steps = step_times(folder)
    assert float(row["mean_ns"]) == pytest.approx(sum(steps) / 2)
    assert float(row["algorithm_gb_s"]) == pytest.approx(2 * NBYTES / sum(steps))
    assert float(row["bus_gb_s"]) == pytest.approx(1.5 * 2 * NBYTES / sum(steps))
