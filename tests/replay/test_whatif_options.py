"""How what-ifs are written, and the table of all there are."""

from __future__ import annotations

from fractions import Fraction

import pytest

from replay.whatif.options import VALUE, Options
from replay.whatif.registry import known
from tests.replay.runs import tracebed
from traces.errors import TraceError

FORM = "name=SIZE|off,wait=TIME,rate=RATE,part=RATIO,how=a|b,times=N"


def read(text: str) -> Options:
    return Options.read(text, FORM)


def test_every_kind_of_value_is_read_exactly() -> None:
    options = read("name=64 MiB,wait=1.5us,rate=10gbit,part=0.1%,how=b,times=12")
    assert options.size(VALUE) == 64 << 20
    assert options.duration("wait") == 1500
    assert options.rate("rate") == 10**10
    assert options.ratio("part") == Fraction(1, 1000)
    assert options.choice("how", ("a", "b")) == "b"
    assert options.whole("times", 1, 12) == 12


def test_what_is_left_out_has_its_default() -> None:
    options = read("name=0")
    assert "wait" not in options
    assert options.duration("wait", "5ms") == 5_000_000
    assert options.ratio("part", "0.5") == Fraction(1, 2)
    assert options.whole("times", 1, 9, 3) == 3
    assert options.choice("how", ("a", "b"), "a") == "a"


@pytest.mark.parametrize("text", ["name=1,speed=2", "name=1,wait", "name=1,how=a,how=b", "name=1,"])
def test_keys_that_are_not_expected_are_named(text: str) -> None:
    with pytest.raises(TraceError, match=r"what-if '.*': '.*' is not expected here \(write name=SIZE\|off,wait=TIME"):
        read(text)


def test_wrong_values_are_named_with_their_mend() -> None:
    options = read("name=64,wait=5,rate=fast,part=-1,how=c,times=0")
    for reader, mend in (
        (lambda: options.size(VALUE), "write a size, as in 64MiB"),
        (lambda: options.duration("wait"), "write a time, as in 5ms"),
        (lambda: options.rate("rate"), "write a rate, as in 10gbit"),
        (lambda: options.ratio("part"), "write a decimal"),
        (lambda: options.choice("how", ("a", "b")), "write one of a, b"),
        (lambda: options.whole("times", 1, 9), "write times=1, say"),
    ):
        with pytest.raises(TraceError, match=f"what-if 'name=64,.*{mend}"):
            reader()


def test_a_key_without_default_is_asked_for() -> None:
    with pytest.raises(TraceError, match=r"rate is missing \(rate= is a rate, as in 10gbit\)"):
        read("name=1").rate("rate")


def test_the_table_has_every_what_if_and_needs_no_trace() -> None:
    shown = tracebed("replay", "--what-if", "list", env={"COLUMNS": "200"})
    assert (shown.returncode, shown.stderr) == (0, "")
    for one in known():
        assert one.name + "=" in shown.stdout
