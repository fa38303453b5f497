"""What a ring all-reduce takes in the lab kernel, against what its bytes and its hops need."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.replay.runs import all_reduces, replayed, step_times, written

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab")]

NBYTES = 100_000_000
MTU, HEADERS, FRAMING = 1500, 52, 14 + 24  # IP and TCP with timestamps; Ethernet's own, preamble and gap included
ONE_WAY_NS = {10: 2 * 2_000, 100: 2 * 500}  # both links of the profiles ethernet-10g and ethernet-100g
OVER, ISSUE = 0.005, {10: 0.02, 100: 0.04}


def needed_ns(ranks: int, gbit: int) -> float:
    """2(N-1) hops, each of S/N bytes with their headers at the wire's rate, and the way there (Patarasuk and Yuan, 2009)."""
    share = (MTU + FRAMING) / (MTU - HEADERS)
    return 2 * (ranks - 1) * (NBYTES / ranks * 8 / gbit * share + ONE_WAY_NS[gbit])


@pytest.mark.parametrize("fidelity", ["packet", "burst"])
@pytest.mark.parametrize("gbit", [10, 100])
@pytest.mark.parametrize("ranks", [4, 8])
def test_a_ring_takes_what_its_bytes_and_hops_need(ranks: int, gbit: int, fidelity: str, tmp_path: Path) -> None:
    """No step takes less than needed, nor 0.5 % more: the first, which holds TCP's start, up to 0.35 % more as measured, the
    second up to 0.13 %.

    That is of ranks that start together. Where one starts tens of us later, the acknowledgements that it sends wait behind
    its data, its peer's HyStart takes that for a full path and ends slow start early, and the first step may take 12 % more.
    """
    trace = written(all_reduces(ranks, NBYTES, steps=2), tmp_path)
    run, folder = replayed(trace, f"ethernet-{gbit}g", tmp_path, fidelity=fidelity)
    for took in step_times(folder):
        assert 0 <= took / needed_ns(ranks, gbit) - 1 < OVER < ISSUE[gbit]
    assert run.summary is not None
    assert run.summary.drops == run.summary.retransmits == 0
