"""The same bed and seed give the same run, to the byte and the nanosecond, whatever else the machine does."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.guest import run_guest

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab")]

LOSSY = json.dumps(
    {"rate": "10 gbit", "delay": "50 us", "jitter": "2 us", "loss": "0.5%", "up": {"queue": "200 packets"}}
)
BUSY = "import time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass"


def transfer(seed: int) -> Any:
    """When a transfer of 20,000 packets began and ended on the bed's clock, and what it met on the way."""
    return run_guest("bulk", LOSSY, "28960000", "packet", str(seed))


@contextmanager
def busy_processors(count: int) -> Iterator[None]:
    load = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in load:
            process.kill()
            process.wait()


def test_a_lossy_transfer_repeats_to_the_nanosecond_also_on_a_busy_machine() -> None:
    quiet = transfer(seed=7)
    with busy_processors(2):
        assert transfer(seed=7) == quiet
    assert quiet["up"]["drops"] > 0
    assert quiet["down"]["drops"] > 0


def test_another_seed_loses_other_packets() -> None:
    drops = [(found["up"]["drops"], found["down"]["drops"], found["end"]) for found in map(transfer, (7, 8))]
    assert drops[0] != drops[1]
