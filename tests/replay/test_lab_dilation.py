"""A dilated run in real time, in the lab kernel, which can't carry the rate as it is."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from tests.guest import run_guest
from tests.replay.runs import all_reduces, replayed, rows, step_times, written
from tests.replay.test_lab_capture import packets

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab")]

NETWORK = """profile: ethernet-10g
traffic:
  - constant: {from: host0, to: host1, rate: 100 mbit, for: 2 ms}
"""


def test_a_dilated_run_says_what_the_network_itself_would_take(tmp_path: Path) -> None:
    """A busy machine may be slower, never faster: so the upper bound is a loose one, which 100 times as long would not meet."""
    trace = written(all_reduces(2, 2_000_000, steps=3), tmp_path)
    network = tmp_path / "net.yaml"
    network.write_text(NETWORK)
    _, virtual = replayed(trace, network, tmp_path)
    dilated = tmp_path / "dilated"
    assumed, *_ = run_guest("dilated", str(trace), str(network), str(dilated), "100", virtual=False)
    assert assumed.startswith("dilated by 100: rates divided, times multiplied, results divided; not scaled: TCP's")
    for took, needed in zip(step_times(dilated), step_times(virtual), strict=True):
        assert 0.95 * needed < took < 10 * needed
    (exact,), (carried,) = (rows(folder / "traffic.csv") for folder in (virtual, dilated))
    assert exact["sent_bytes"] == carried["sent_bytes"]
    stamps = [packet.at_ns for packet in packets(dilated / "host0.pcap")]
    assert all(before <= after for before, after in pairwise(stamps))
    assert 0 <= stamps[0] < stamps[-1] < 2 * int(rows(dilated / "steps.csv")[-1]["end_ns"])
