"""When a run in real time is not to be trusted: by what was seen of paths, ranks and the machine; and one real run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from emulator.network import load
from emulator.probe import Finding, Report
from replay.control import Strain
from replay.results import Run, read_evidence
from replay.truth import MOST_BUSY, MOST_DELAYED, MOST_LATE, MOST_STOLEN, Evidence, doubts, to_probe
from tests.replay.runs import overlapping, rows, run_json, tracebed, written

SECOND = 10**9
CALM = Strain(lasted_ns=SECOND, cpu_ns=SECOND // 10, delayed_ns=1_000_000, late_ns=1_000_000)
RIGHT = Finding("rate, bit/s", 1e9, 0.99e9, 0.05e9, "yes")
SEEN = Evidence(
    probed=(Report("host0", "host1", (RIGHT,)),), unprobed=0, busy=0.5, stolen=0.0, ranks={0: CALM, 1: CALM, 2: CALM}
)


def strained(rank: int, **parts: float) -> Evidence:
    ranks = dict(SEEN.ranks)
    ranks[rank] = msgspec.structs.replace(CALM, **{f"{name}_ns": round(part * SECOND) for name, part in parts.items()})
    return msgspec.structs.replace(SEEN, ranks=ranks)


def test_a_calm_machine_is_believed() -> None:
    assert doubts(SEEN) == ()
    assert doubts(Evidence((), 0, 1.0, 0.0, {})) == ()  # busy with what does not hold the ranks back


@pytest.mark.parametrize(
    ("name", "limit", "words"),
    [
        ("late", MOST_LATE, "rank 1: its timers were late for 3.0% of its time"),
        ("delayed", MOST_DELAYED, "rank 1: it had to wait for a processor for 3.0% of its time"),
        ("cpu", MOST_BUSY, "rank 1: it was busy itself for 96.0% of its time"),
    ],
)
def test_a_rank_that_was_held_back_is_named(name: str, limit: float, words: str) -> None:
    assert doubts(strained(1, **{name: limit})) == ()
    assert doubts(strained(1, **{name: limit + 0.01})) == (words,)


def test_of_many_ranks_the_worst_is_named() -> None:
    seen = strained(0, late=0.05)
    seen = msgspec.structs.replace(seen, ranks={**seen.ranks, 2: msgspec.structs.replace(CALM, late_ns=SECOND // 2)})
    assert doubts(seen) == ("rank 2: its timers were late for 50.0% of its time, and of 1 more ranks",)


def test_a_hypervisor_that_takes_its_share_is_named() -> None:
    assert doubts(msgspec.structs.replace(SEEN, stolen=MOST_STOLEN)) == ()
    (said,) = doubts(msgspec.structs.replace(SEEN, stolen=0.25))
    assert said == "the machine's hypervisor gave 25.0% of its time to others"


def test_a_path_that_is_otherwise_than_asked_is_named() -> None:
    wrong = replace(RIGHT, got=0.5e9, verdict="no")
    lost = Finding("loss", 0.0, None, 0.0, "no")
    seen = msgspec.structs.replace(SEEN, probed=(*SEEN.probed, Report("host1", "host2", (wrong, lost))))
    assert doubts(seen) == ("from host1 to host2 asked for rate, bit/s 1e+09, got 5e+08, and 1 more",)
    unchecked = replace(RIGHT, asked=None, verdict="not checked")
    assert doubts(msgspec.structs.replace(SEEN, probed=(Report("host0", "host1", (unchecked,)),))) == ()


def test_as_many_paths_are_probed_as_are_quick() -> None:
    assert len(to_probe(load("ethernet-10g", ranks=4))) == 4
    assert 20 < len(to_probe(load("ethernet-10g", ranks=128))) < 128
    assert 0 < len(to_probe(load("wan-transatlantic", ranks=16))) < 16
    assert to_probe(load("ethernet-10g", ranks=1)) == []


@pytest.mark.root
def test_a_run_on_this_machine_says_whether_it_kept_up(root: None, tmp_path: Path) -> None:
    """Whatever the machine does meanwhile, the verdict is that of what was seen, in the file, the table and the exit status."""
    network = tmp_path / "bare.yaml"
    network.write_text("topology: {star: {}}\nlink: {rate: 200 mbit, queue: 256 KiB}\n")
    trace = written(overlapping(2, 300_000, steps=3), tmp_path)
    done = tracebed("replay", trace, "--network", network, "--on", "host", "-o", tmp_path / "runs")
    (folder,) = (tmp_path / "runs").iterdir()
    run, seen = run_json(folder), read_evidence(folder)
    assert run.doubts == doubts(seen)
    assert done.returncode == bool(run.doubts), done.stderr
    assert (" bare, untrusted" in done.stdout) == bool(run.doubts)
    assert ("which kept up" in done.stdout) == (not run.doubts)
    assert all(doubt in done.stdout for doubt in run.doubts)
    assert [(each.source, each.target) for each in seen.probed] == [("host0", "host1"), ("host1", "host0")]
    for strain in seen.ranks.values():
        assert 0 < strain.cpu_ns < strain.lasted_ns
        assert strain.late_ns > 0
    # What was probed before is not in what links carried: 300 kB each way a step, three times, and half for the all-to-all.
    for link in rows(folder / "links.csv"):
        assert 1_300_000 < int(link["bytes"]) < 1_600_000
    assert msgspec.json.decode((folder / "run.json").read_bytes(), type=Run) == run
