"""DCQCN's reaction point: the rate of one sender, by what it hears of congestion (Zhu et al., SIGCOMM 2015, section 3.1).

Parameters are the paper's (section 5.2): g = 1/256, timers of 55 us, byte counter of 10 MB, F = 5 steps of fast recovery,
additive increase of 40 Mbit/s. The step of hyper increase is ten of those: the paper names none, and ten is what cards
have by default (rpg_hai_rate and rpg_ai_rate of mlx5). The least rate is a card's, 1 Mbit/s (rpg_min_rate).
"""

from __future__ import annotations

TIMER_NS = 55_000
BYTES = 10_000_000
GAIN = 1 / 256
RECOVERY_STEPS = 5
ADDITIVE = 40e6
HYPER = 400e6
LEAST = 1e6


class Dcqcn:
    """`rate` in bit/s; a sender starts at the line's, and is not limited (no timer runs) while it is at it.

    `deadline`: when (ns) `expire` wants to be called; None while nothing limits.
    """

    def __init__(self, line: float) -> None:
        self.rate = line
        self.deadline: int | None = None
        self._line = line
        self._target = line
        self._alpha = 1.0
        self._cut_at: int | None = None
        self._timers = 0
        self._counters = 0
        self._bytes = 0

    def notified(self, now: int) -> None:
        """A CNP has come: cut the rate by alpha / 2."""
        if self._cut_at is not None:
            # Alpha decays each 55 us without a CNP; nobody looks at it before the next one.
            self._alpha *= (1 - GAIN) ** ((now - self._cut_at) // TIMER_NS)
        self._target = self.rate
        self.rate = max(LEAST, self.rate * (1 - self._alpha / 2))
        self._alpha = (1 - GAIN) * self._alpha + GAIN
        self._cut_at = now
        self._timers = self._counters = self._bytes = 0
        self.deadline = now + TIMER_NS

    def sent(self, nbytes: int) -> None:
        """So many bytes were handed over."""
        if self.deadline is None:
            return
        self._bytes += nbytes
        while self._bytes >= BYTES:
            self._bytes -= BYTES
            self._counters += 1
            self._increase()

    def expire(self, now: int) -> None:
        """Time has gone on; does what is due."""
        while self.deadline is not None and self.deadline <= now:
            self.deadline += TIMER_NS
            self._timers += 1
            self._increase()

    def _increase(self) -> None:
        if min(self._timers, self._counters) > RECOVERY_STEPS:
            self._target += HYPER
        elif max(self._timers, self._counters) >= RECOVERY_STEPS:
            self._target += ADDITIVE
        self._target = min(self._target, self._line)
        self.rate = min(self._line, (self._target + self.rate) / 2)
        if self._target == self._line and self.rate > 0.999 * self._line:
            self.rate, self.deadline = self._line, None
