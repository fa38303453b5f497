"""The lab kernel has what links, hosts and Docker need, and keeps every qdisc as it was asked for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.emulator.test_qdisc_netem import EXAMPLES
from tests.guest import run_guest
from tests.guests.qdiscs import OTHERS

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab")]


def test_every_example_is_installed_changed_and_read_back() -> None:
    assert run_guest("qdiscs") == [*EXAMPLES, *OTHERS]


def test_nothing_that_its_users_count_on_is_missing(needs: Callable[..., None]) -> None:
    needs("ip", "tc")
    assert run_guest("features") == []


def test_programs_keep_their_floating_point_units() -> None:
    """The kernel leaves them in the processes that run the programs as long as it can."""
    assert run_guest("floats") == []
