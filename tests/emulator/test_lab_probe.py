"""A probe of a bed in virtual time: a right setting is found right, a wrong one wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.guest import run_guest

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab")]

LINK: dict[str, Any] = {"rate": "1 gbit", "delay": "1 ms"}
WHAT = ("round trip, ns", "rate, bit/s", "loss", "reordering")


def verdicts(built: dict[str, Any], asked: dict[str, Any]) -> list[str]:
    """What a probe says of the way from `a` to `b`."""
    forth, _ = run_guest("probe", json.dumps(built), json.dumps(asked))
    assert (forth["source"], forth["target"]) == ("a", "b")
    assert tuple(finding["what"] for finding in forth["findings"]) == WHAT
    return [finding["verdict"] for finding in forth["findings"]]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"up": {"queue": "20 packets"}},
        {"up": {"queue": "100 KiB", "loss": "1%"}},
        {"up": {"loss": {"gilbert_elliott": {"good_to_bad": "1%", "bad_to_good": "20%"}}, "reorder": "2%"}},
        {"down": {"loss": "20%", "duplicate": "5%"}},
        {"rate": "100 gbit", "delay": "5 us"},
        {"rate": "1 mbit"},
    ],
)
def test_what_is_as_asked_is_found_so(more: dict[str, Any]) -> None:
    link = {**LINK, **more}
    assert verdicts(link, link) == ["yes"] * 4


def test_jitter_widens_the_bands_as_they_say() -> None:
    link = {**LINK, "jitter": "100 us", "distribution": "normal"}
    assert verdicts(link, link) == ["yes"] * 4


@pytest.mark.parametrize(
    ("built", "wrong"),
    [
        ({"up": {"delay": "1.002 ms"}}, ["no", "yes", "yes", "yes"]),
        ({"rate": "990 mbit"}, ["yes", "no", "yes", "yes"]),
        ({"up": {"loss": "1%"}}, ["yes", "yes", "no", "yes"]),
        ({"up": {"reorder": "2%"}}, ["yes", "yes", "yes", "no"]),
        ({"up": {"loss": "100%"}}, ["no", "no", "no", "yes"]),
    ],
)
def test_what_is_otherwise_than_asked_is_found_so(built: dict[str, Any], wrong: list[str]) -> None:
    assert verdicts({**LINK, **built}, LINK) == wrong
