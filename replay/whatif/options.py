"""The one reader of what a user writes behind a what-if's name: `VALUE[,KEY=VALUE...]`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

from emulator.errors import NetworkError
from emulator.units import Duration, Rate, Size
from traces.errors import TraceError

VALUE = ""
"""The key of the value itself, which has none."""

_RATIO = re.compile(r"([0-9]{0,12}\.?[0-9]{1,12})(%?)")
_RANGE = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7}))?")

T = TypeVar("T")
Choice = TypeVar("Choice", bound=str)


@dataclass(frozen=True, slots=True)
class Options:
    """What was written for one what-if: `said` is by key, the value's key is VALUE, and `text` is all of it.

    Each reader gives `default` where the key was not written, and TraceError where there is none or the text is wrong.
    """

    text: str
    said: Mapping[str, str]

    @classmethod
    def read(cls, text: str, form: str) -> Options:
        """Splits `text`, as `fusion=64MiB,cycle=5ms`. `form` says what it may hold: `fusion=SIZE,cycle=TIME`.

        Raises TraceError for a key that `form` has not, and for one that is written twice.
        """
        keys = [part.partition("=")[0] for part in form.split(",")[1:]]
        first, *rest = text.partition("=")[2].split(",")
        said = {VALUE: first}
        for part in rest:
            key, equals, value = part.partition("=")
            if not equals or key not in keys or key in said:
                raise TraceError(f"what-if {text!r}: {part!r} is not expected here", mend=f"write {form}")
            said[key] = value
        return cls(text, said)

    def __contains__(self, key: str) -> bool:
        return key in self.said

    def error(self, message: str, mend: str) -> TraceError:
        """An error that says which what-if is wrong."""
        return TraceError(f"what-if {self.text!r}: {message}", mend=mend)

    def no_model(self, lacks: str) -> TraceError:
        """The error where a model's description is needed and none is named; `lacks` says what is not known then."""
        return self.error(lacks, "add model=NAME, a shipped description or a file like them")

    def wrong_model(self, error: TraceError) -> TraceError:
        """The error where a model's description does not fit what was recorded."""
        return self.error(str(error), "model= names the description of what was trained")

    def choice(self, key: str, allowed: Collection[Choice], default: Choice | None = None) -> Choice:
        """One of `allowed`."""
        value = self._value(key, default, f"one of {', '.join(allowed)}")
        found = next((one for one in allowed if one == value), None)
        if found is None:
            raise self.error(f"{value!r} is not known", f"write one of {', '.join(allowed)}")
        return found

    def whole(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """A whole number from `low` to `high`."""
        wanted = f"a whole number from {low} to {high}"
        value = self._value(key, None if default is None else str(default), wanted)
        if not (value.isascii() and value.isdigit() and len(value) < 19 and low <= int(value) <= high):
            raise self.error(f"{value!r} is not {wanted}", f"write {key + '=' if key else ''}{low}, say")
        return int(value)

    def ratio(self, key: str, default: str | None = None) -> Fraction:
        """A number from 0 on, exactly as written: 0.01, 1%, 3."""
        value = self._value(key, default, "a number, as in 0.1 or 10%")
        found = _RATIO.fullmatch(value)
        if found is None:
            raise self.error(f"{value!r} is not a number from 0 on", "write a decimal (0.1) or a percentage (10%)")
        return Fraction(found[1]) / (100 if found[2] else 1)

    def duration(self, key: str, default: str | None = None) -> Duration:
        """A time in ns, written with its unit."""
        return self._quantity(key, default, Duration.parse, "a time, as in 5ms")

    def size(self, key: str, default: str | None = None) -> Size:
        """Bytes, written with their unit."""
        return self._quantity(key, default, Size.parse, "a size, as in 64MiB")

    def rate(self, key: str, default: str | None = None) -> Rate:
        """A rate in bit/s, written with its unit."""
        return self._quantity(key, default, Rate.parse, "a rate, as in 10gbit")

    def numbers(self, key: str, below: int) -> list[int]:
        """Different whole numbers below `below`, in the order in which they are written: 3, 0-3, 0+2+1+3."""
        wanted = f"numbers below {below}, as in 3, 0-3 or 0+2+1"
        value = self._value(key, None, wanted)
        made: list[int] = []
        for part in value.split("+"):
            found = _RANGE.fullmatch(part)
            first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, -1)
            if not first <= last < below:
                raise self.error(f"{part!r} in {value!r} is not known", f"write {wanted}")
            made += range(first, last + 1)
        if len(set(made)) < len(made):
            raise self.error(f"{value!r} has a number twice", f"write {wanted}")
        return made

    def _quantity(self, key: str, default: str | None, parse: Callable[[str], T], wanted: str) -> T:
        value = self._value(key, default, wanted)
        try:
            return parse(value)
        except NetworkError as error:
            raise self.error(str(error), f"write {wanted}") from None

    def _value(self, key: str, default: str | None, wanted: str) -> str:
        value = self.said.get(key, default)
        if value is None:
            raise self.error(f"{key} is missing", f"{key}= is {wanted}")
        return value
