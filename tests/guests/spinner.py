"""A program that spins on memory, without a system call, until another, which sleeps, has written there."""

from __future__ import annotations

import mmap
import os
import time

from tests.guests.pair import report

if __name__ == "__main__":
    shared = mmap.mmap(-1, 1)
    if os.fork() == 0:
        time.sleep(0.001)
        shared[0] = 1
        os._exit(0)
    began = time.monotonic_ns()
    while not shared[0]:
        pass
    report({"spun_ns": time.monotonic_ns() - began})
