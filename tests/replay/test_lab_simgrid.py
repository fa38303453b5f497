"""One job in the lab kernel and in SimGrid: a packet network and a fluid model, told the same, say the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from replay.export import export
from tests.replay.runs import all_reduces, replayed, step_times, written
from tests.replay.simgrid import simulated_s
from tests.traces.test_commands import SAMPLE
from traces import archive
from traces.files import Opened
from traces.formats import smpi
from traces.program import Trace

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab")]

# A ring of whole chunks (lr), as ours is, and links without the factors that SMPI's model puts on them.
AS_HERE = ("smpi/allreduce:lr", "network/model:CM02", "network/crosstraffic:0")
HEADERS = (1500 + 14 + 24) / (1500 - 52)  # on the wire, for each payload byte
TOLERANCE = 0.01


def both_s(job: Trace, folder: Path) -> tuple[float, float]:
    """(in the lab kernel, in SimGrid), on links of 10 Gbit/s."""
    _, run = replayed(written(job, folder), "ethernet-10g", folder, fidelity="burst")
    rate = round(10e9 / 8 / HEADERS)
    return sum(step_times(run)) / 1e9, simulated_s(job, folder, *AS_HERE, rate=rate, delay_us=2)


def test_all_reduces(tmp_path: Path, needs: Callable[..., None]) -> None:
    needs("smpirun")
    ours, simulated = both_s(all_reduces(4, 100_000_000, steps=2), tmp_path)

    assert ours == pytest.approx(simulated, rel=TOLERANCE)


def test_a_recorded_job(tmp_path: Path, needs: Callable[..., None]) -> None:
    """ResNet-50's four steps as SMPI has them: no overlap."""
    needs("smpirun")
    data, _ = export(archive.read(SAMPLE), "smpi-ti")
    assert isinstance(data, bytes)
    ours, simulated = both_s(smpi.read([Opened("job.txt", data, "", True)]), tmp_path)

    assert ours == pytest.approx(simulated, rel=TOLERANCE)
