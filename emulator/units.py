"""Exact quantities: `Rate` in bit/s, `Duration` in ns, `Size` in bytes, `Probability` in parts of 2**32 - 1.

Each is an `int` that knows its unit: it compares, hashes, packs and serialises as the integer it is. Arithmetic gives a
plain `int`, so whoever computes says what came out: `Duration(link.delay + jitter)`. `str` is exact, in the largest
unit that needs at most three decimals, and parses back to the same value. Text is read as decimal, never as float, and
what isn't a whole number of base units is refused.
"""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from typing import ClassVar, Self

from emulator.errors import NetworkError

_NUMBER = re.compile(r"([+-]?)([0-9]{1,30}(?:\.[0-9]{1,30})?(?:[eE][+-]?[0-9]{1,2})?)")


def _split(text: str, what: str, suffixes: str) -> tuple[Fraction, str]:
    """The number in front and what is left behind it."""
    found = _NUMBER.match(text.strip())
    if found is None:
        raise NetworkError(f"'{text}' is not a {what}: write a number and one of {suffixes}")
    if found[1] == "-":
        raise NetworkError(f"'{text}' is negative: a {what} can't be")
    return Fraction(found[2]), text.strip()[found.end() :].strip()


class _Quantity(int):
    """0 to 2**63 - 1 of one unit, as netlink takes it. `_suffixes` maps each unit to its size in base units, rising."""

    _what: ClassVar[str]
    _suffixes: ClassVar[dict[str, int]]

    def __new__(cls, value: int) -> Self:
        if not 0 <= value < 2**63:
            raise NetworkError(f"{value} is no {cls._what}: expected 0 to 2**63 - 1 {next(iter(cls._suffixes))}")
        return super().__new__(cls, value)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read "25 gbit", "1.5us" or "64 KiB"; only a bare 0 needs no unit. Suffixes are read in any case.

        Raises NetworkError for another unit (it lists the accepted ones), a negative value or one that isn't whole.
        """
        accepted = ", ".join(cls._suffixes)
        number, suffix = _split(text, cls._what, accepted)
        if not suffix and number == 0:
            return cls(0)
        factors = {name.lower(): factor for name, factor in cls._suffixes.items()}
        factor = factors.get(suffix.lower())
        if factor is None:
            raise NetworkError(f"'{text}' is not a {cls._what}: write a number and one of {accepted}")
        exact = number * factor
        if exact.denominator != 1:
            raise NetworkError(f"'{text}' is finer than 1 {next(iter(cls._suffixes))}: it can't be kept exactly")
        return cls(int(exact))

    def __str__(self) -> str:
        for suffix, factor in reversed(self._suffixes.items()):
            if factor == 1 or (self >= factor and self * 1000 % factor == 0):
                return f"{_plain(Decimal(int(self)) / factor)} {suffix}"
        raise AssertionError("the first suffix is the base unit")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({int(self)})"


def _plain(number: Decimal) -> str:
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


class Rate(_Quantity):
    """Bits per second. tc's "bps" means bytes and is therefore not accepted."""

    _what = "rate"
    _suffixes: ClassVar[dict[str, int]] = {
        "bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9, "tbit": 10**12,
    }  # fmt: skip


class Duration(_Quantity):
    """Nanoseconds."""

    _what = "duration"
    _suffixes: ClassVar[dict[str, int]] = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9}


class Size(_Quantity):
    """Bytes; kB is 1000 of them, KiB 1024."""

    _what = "size"
    _suffixes: ClassVar[dict[str, int]] = {
        "B": 1, "kB": 10**3, "KiB": 2**10, "MB": 10**6, "MiB": 2**20, "GB": 10**9, "GiB": 2**30,
    }  # fmt: skip


class Probability(int):
    """A probability as netem keeps it: 0 never, 2**32 - 1 always (include/uapi/linux/pkt_sched.h).

    A step is 2.3e-8 %. A percentage is rounded to the nearest step; one that would so become never or always is
    refused.
    """

    ALWAYS: ClassVar[int] = 2**32 - 1

    def __new__(cls, parts: int) -> Self:
        if not 0 <= parts <= cls.ALWAYS:
            raise NetworkError(f"{parts} is not a probability: expected 0 to {cls.ALWAYS} parts")
        return super().__new__(cls, parts)

    @classmethod
    def nearest(cls, fraction: Fraction) -> Self:
        """The step nearest to `fraction` (0 to 1)."""
        return cls(round(fraction * cls.ALWAYS))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read "0.1%" or "0.1 %"; a bare 0 needs no sign. Raises NetworkError outside 0 to 100 %."""
        number, suffix = _split(text, "probability", "%")
        if suffix != "%" and (suffix or number):
            raise NetworkError(f"'{text}' is not a probability: write a percentage, like 0.1%")
        if number > 100:
            raise NetworkError(f"'{text}' is more than 100%")
        rounded = cls.nearest(number / 100)
        if (rounded == 0) != (number == 0) or (rounded == cls.ALWAYS) != (number == 100):
            raise NetworkError(f"'{text}' is too fine: the kernel's step is 2.3e-8%")
        return rounded

    def __str__(self) -> str:
        percent = Fraction(int(self) * 100, self.ALWAYS)
        for digits in range(12):
            form = _plain(Decimal(round(percent * 10**digits)).scaleb(-digits))
            if Probability.nearest(Fraction(form) / 100) == self:
                return f"{form}%"
        raise AssertionError("twelve digits tell every step apart")

    def __repr__(self) -> str:
        return f"Probability({int(self)})"
