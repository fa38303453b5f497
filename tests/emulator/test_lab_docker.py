"""Docker in the lab kernel: containers whose port is shaped from outside, in real and in virtual time."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest

from tests.guest import run_guest

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab")]


@pytest.mark.parametrize("virtual", [True, False])
def test_containers_ping_over_netem(needs: Callable[..., None], virtual: bool) -> None:
    needs("dockerd", "docker", "busybox", "nsenter", "tc")
    said = run_guest("containers", virtual=virtual)
    first, *others = [float(found) for line in said["pings"] for found in re.findall(r"time=([\d.]+) ms", line)]
    late = 0 if virtual else math.inf  # in real time the machine may be busy
    assert 40 <= first <= 40 + late  # it asked for the address as well
    assert len(others) == 2
    assert all(20 <= other <= 20 + late for other in others)
    assert said["kind"] == "overlay2 on cgroup v2"
