"""Each thread keeps what it set in its floating-point unit: across system calls, other threads, page faults, signals and forks."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import threading
import time

import numpy as np

from tests.guests.pair import report

MODES = {0x000: "nearest", 0x400: "downward", 0x800: "upward", 0xC00: "toward zero"}  # fenv.h of x86
ROUNDS = 300
_libm = ctypes.CDLL("libm.so.6")


def rounded() -> tuple[float, float]:
    """What tells the modes apart."""
    one, three = 1.0, 3.0
    return one / three, -one / three


def expected() -> dict[int, tuple[float, float]]:
    low, high = 0.3333333333333333, 0.33333333333333337
    return {0x000: (low, -low), 0x400: (low, -high), 0x800: (high, -low), 0xC00: (low, -low)}


def work(first: int, wrong: list[str]) -> None:
    ramp = np.arange(1 << 13, dtype=np.float64)
    for number in range(ROUNDS):
        mode = list(MODES)[(first + number) % len(MODES)]
        _libm.fesetround(mode)
        time.sleep(1e-6)
        if rounded() != expected()[mode] or _libm.fegetround() != mode:
            wrong.append(f"{MODES[mode]}: round {number}")
        with mmap.mmap(-1, ramp.nbytes) as fresh:  # its pages come while it is added up
            zeros = np.frombuffer(fresh, np.float64)
            if float(np.dot(zeros + 1, ramp)) != (1 << 13) * ((1 << 13) - 1) / 2:
                wrong.append(f"{MODES[mode]}: sum {number}")
            del zeros
        if number % 50 == 0:
            child = os.fork()
            if child == 0:
                time.sleep(1e-6)
                os._exit(rounded() != expected()[mode])
            if os.waitpid(child, 0)[1]:
                wrong.append(f"{MODES[mode]}: fork {number}")


def main() -> None:
    wrong: list[str] = []
    signal.signal(signal.SIGALRM, lambda *_: _libm.fesetround(0))
    threads = [threading.Thread(target=work, args=(first, wrong)) for first in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(ROUNDS):
        os.kill(os.getpid(), signal.SIGALRM)
        time.sleep(1e-6)
    for thread in threads:
        thread.join()
    report(wrong)


if __name__ == "__main__":
    main()
