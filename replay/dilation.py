"""`--dilate K` on real-time grounds: the job and its network run K times slower, and what was measured is divided by K."""

from __future__ import annotations

import re
from array import array
from dataclasses import replace
from fractions import Fraction

import msgspec

from emulator.dilation import UNSCALED
from emulator.errors import NetworkError
from replay import control
from replay.coordinator import Measurement

_NUMBER = re.compile(r"[0-9]{1,6}(\.[0-9]{1,9})?")
_TIMES = ("issued", "began", "ended")
_FLOW_TIMES = ("rtt_us", "rtt_var_us", "min_rtt_us", "busy_us", "receiver_limited_us", "buffer_limited_us")


def read_dilation(text: str, ground: str) -> Fraction:
    """The factor that `--dilate` says: a number of more than 0.

    Raises:
        NetworkError: it is none, or the ground's time is virtual.
    """
    if not _NUMBER.fullmatch(text) or Fraction(text) == 0:
        raise NetworkError(f"--dilate {text}: expected a number of more than 0, as 10 or 2.5")
    if ground == "virtual" and Fraction(text) != 1:
        raise NetworkError(
            f"--dilate {text}: not needed on virtual, where CPU work takes no time, so any rate is carried as it is; "
            "use it with --on host"
        )
    return Fraction(text)


def statement(factor: Fraction) -> str:
    """What whoever reads the result has to know."""
    return f"dilated by {float(factor):g}: rates divided, times multiplied, results divided; not scaled: {UNSCALED}"


def step_mark(said: control.Progress, factor: Fraction) -> control.Progress:
    """A step mark in the network's own time."""
    return msgspec.structs.replace(said, at_ns=_own(said.at_ns, factor), exposed_ns=_own(said.exposed_ns, factor))


def measurement(measured: Measurement, factor: Fraction) -> Measurement:
    """A measurement in the network's own time: every time in it divided by `factor`, to the nearest unit."""
    results = {rank: _result(result, factor) for rank, result in measured.results.items()}
    return replace(measured, results=results)


def _result(result: control.Result, factor: Fraction) -> control.Result:
    return msgspec.structs.replace(
        result,
        finished_ns=_own(result.finished_ns, factor),
        **{name: _column(getattr(result, name), factor) for name in _TIMES},
        messages=_messages(result.messages, factor),
        flows=None if result.flows is None else tuple(_flow(flow, factor) for flow in result.flows),
    )


def _column(times: bytes, factor: Fraction) -> bytes:
    """-1 is no time, and stays."""
    return array("q", [at if at < 0 else _own(at, factor) for at in array("q", times)]).tobytes()


def _messages(messages: bytes, factor: Fraction) -> bytes:
    numbers = array("q", messages)
    numbers[2::3] = array("q", [_own(at, factor) for at in numbers[2::3]])
    return numbers.tobytes()


def _flow(flow: control.Flow, factor: Fraction) -> control.Flow:
    times = {name: getattr(flow, name) for name in _FLOW_TIMES}
    known = {name: _own(time, factor) for name, time in times.items() if time is not None}
    return msgspec.structs.replace(flow, **known)


def _own(time: int, factor: Fraction) -> int:
    return round(time / factor)
