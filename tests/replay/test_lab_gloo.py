"""Our ring all-reduce against the one of unmodified PyTorch, on the same emulated network."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from tests.guest import run_guest
from tests.replay.runs import all_reduces, replayed, step_times, written

pytestmark = [pytest.mark.lab, pytest.mark.torch, pytest.mark.usefixtures("lab", "torch")]

RANKS, NBYTES, TIMES = 4, 100_000_000, 3


@pytest.mark.parametrize("fidelity", ["packet", "burst"])
@pytest.mark.parametrize("profile", ["ethernet-10g", "ethernet-100g"])
def test_torch_on_gloo_takes_as_long_as_our_ring(profile: str, fidelity: str, tmp_path: Path) -> None:
    """The first of each is left out: it holds TCP's start."""
    ends = run_guest("gloo", profile, fidelity, str(RANKS), str(NBYTES), str(TIMES))
    theirs = [after - before for before, after in pairwise(max(moments) for moments in zip(*ends, strict=True))]
    _, folder = replayed(written(all_reduces(RANKS, NBYTES, TIMES), tmp_path), profile, tmp_path, fidelity=fidelity)
    _, *ours = step_times(folder)
    assert len(theirs) == len(ours) == TIMES - 1
    assert theirs == pytest.approx(ours, rel=0.05)
