"""A job made larger replays as the same job recorded at that size does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.replay.runs import all_reduces, replayed, step_times, tracebed, written

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab")]


def test_a_scaled_trace_replays_as_the_job_of_that_size(tmp_path: Path) -> None:
    """Two ranks and two steps, made four ranks and three steps of the last: the same step times, to the ns."""
    small = written(all_reduces(2, 4_000_000, steps=2), tmp_path)
    scaled = tmp_path / "scaled.trace"
    done = tracebed("scale", small, "--ranks", "4", "--drop-warm-up", "1", "--repeat", "3", "-o", scaled)
    assert (done.returncode, done.stderr) == (0, "")
    native = written(all_reduces(4, 4_000_000, steps=3), tmp_path)

    run, folder = replayed(scaled, "ethernet-10g", tmp_path / "scaled", verify=True)
    _, other = replayed(native, "ethernet-10g", tmp_path / "native", verify=True)
    assert run.summary is not None
    assert len(step_times(folder)) == 3
    assert step_times(folder) == step_times(other)
