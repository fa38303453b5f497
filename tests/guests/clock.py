"""What reading the clock costs, in ns of it: for a program that reads it now and then, and for one that spins on it."""

from __future__ import annotations

import time

from tests.guests.pair import report

SPIN_NS = 1_000_000


def read(times: int) -> int:
    """The time that `times` reads of the clock take, on a program that has just blocked."""
    time.sleep(0.001)
    began = time.monotonic_ns()
    for _ in range(times - 2):
        time.monotonic_ns()
    return time.monotonic_ns() - began


def spin() -> int:
    """How far past its deadline a program gets that only reads the clock until then."""
    deadline = time.monotonic_ns() + SPIN_NS
    while (now := time.monotonic_ns()) < deadline:
        pass
    return now - deadline


if __name__ == "__main__":
    report({"reads_ns": [read(50) for _ in range(3)], "late_ns": spin()})
