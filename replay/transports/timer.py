"""A timer that epoll can wait for, to the nanosecond: Python's own epoll timeout counts in milliseconds."""

from __future__ import annotations

import ctypes
import os
import time

_TFD_NONBLOCK = os.O_NONBLOCK
_TFD_CLOEXEC = os.O_CLOEXEC
_TFD_TIMER_ABSTIME = 1


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Setting(ctypes.Structure):
    _fields_ = (("interval", _Time), ("value", _Time))


class Timer:
    """One timerfd (timerfd_create(2)) on CLOCK_MONOTONIC. `fd` becomes readable at the time that was set last."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self._libc.timerfd_create(time.CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")

    def set(self, at_ns: int) -> None:
        """Expires at `at_ns` of CLOCK_MONOTONIC, at once if that has passed."""
        # A value of zero would disarm it.
        seconds, nanoseconds = divmod(max(at_ns, 1), 10**9)
        setting = _Setting(value=_Time(seconds, nanoseconds))
        if self._libc.timerfd_settime(self.fd, _TFD_TIMER_ABSTIME, ctypes.byref(setting), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def close(self) -> None:
        """Gives the descriptor back."""
        os.close(self.fd)
