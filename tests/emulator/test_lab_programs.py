"""Unmodified programs in virtual time: they measure the network, and those that spin on the clock end as well."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.guest import run_guest

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab")]

LINK = json.dumps({"rate": "10 gbit", "delay": "5 us"})
MAX_CHARGE_NS = 8192  # emulator/kernel/lab.patch: what one question costs at most
TICK_NS = 4_000_000


def test_iperf3_reports_the_rate_less_what_headers_take(needs: Callable[..., None]) -> None:
    needs("iperf3")
    said = run_guest("iperf", LINK, "--time", "1")
    assert said["sum_received"]["bits_per_second"] == pytest.approx(10e9 * 1448 / 1538, rel=0.01)
    assert said["sum_sent"]["retransmits"] == 0


def test_iperf3_paces_itself_by_polling_the_clock_and_ends(needs: Callable[..., None]) -> None:
    needs("iperf3")
    said = run_guest("iperf", LINK, "--time", "3", "--bitrate", "500M")
    assert said["sum_received"]["bits_per_second"] == pytest.approx(500e6, rel=0.01)
    assert said["sum_received"]["seconds"] == pytest.approx(3, abs=0.01)


def test_reading_the_clock_is_free_until_a_program_spins_on_it() -> None:
    found = run_guest("clock")
    assert found["reads_ns"] == [0, 0, 0]
    assert 0 <= found["late_ns"] <= MAX_CHARGE_NS


def test_a_program_that_spins_on_memory_lets_the_others_go_on() -> None:
    spun = run_guest("spinner")["spun_ns"]
    assert spun % TICK_NS == 0  # time moved only by what it was charged
    assert spun >= TICK_NS
