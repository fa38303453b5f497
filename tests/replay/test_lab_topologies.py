"""Whole replays where packets pass more than one switch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.replay.runs import all_reduces, replayed, rows, step_times, written

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab")]

RANKS, NBYTES, GBIT = 4, 20_000_000, 10
LEAF_SPINE = "{leaf-spine: {leaves: 2, spines: 2, hosts_per_leaf: 2, oversubscription: 2}}"


def network(folder: Path, topology: str) -> Path:
    path = folder / "net.yaml"
    path.write_text(f"profile: ethernet-10g\ntopology: {topology}\n")
    return path


def test_a_ring_all_reduce_on_a_ring_takes_what_its_bytes_and_links_need(tmp_path: Path) -> None:
    trace = written(all_reduces(RANKS, NBYTES, steps=2), tmp_path)
    _, folder = replayed(trace, network(tmp_path, "{ring: {}}"), tmp_path)
    needed = 2 * (RANKS - 1) * (NBYTES / RANKS * 8 / GBIT * 1538 / 1448 + 2_000)
    assert step_times(folder)[-1] == pytest.approx(needed, rel=0.01)


def test_a_replay_over_many_paths_repeats_itself(tmp_path: Path) -> None:
    """With seed 3 data and the acknowledgements of the other way's take different spines. With seed 1 or 2 they share an uplink,
    whose queue is unlimited: acknowledgements wait there behind data, and a step takes 7 % more."""
    trace = written(all_reduces(RANKS, NBYTES, steps=2), tmp_path)
    runs = [replayed(trace, network(tmp_path, LEAF_SPINE), tmp_path, {"seed": "3"})[1] for _ in range(2)]
    assert step_times(runs[0]) == step_times(runs[1])
    assert rows(runs[0] / "links.csv") == rows(runs[1] / "links.csv")
    # Each uplink has half of the host's rate, and one flow crosses each way.
    needed = 2 * (RANKS - 1) * (NBYTES / RANKS * 8 / (GBIT / 2) * 1538 / 1448)
    assert step_times(runs[0])[-1] == pytest.approx(needed, rel=0.01)
