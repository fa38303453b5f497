"""Events while a job is replayed: its step times show them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.replay.runs import all_reduces, replayed, step_times, written

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab")]

NETWORK = "profile: ethernet-10g\ntopology: {star: {hosts: 2}}\n"


def steps_with(more: str, folder: Path) -> list[int]:
    trace = written(all_reduces(2, 10_000_000, steps=6), folder)
    network = folder / "net.yaml"
    network.write_text(NETWORK + more)
    _, run = replayed(trace, network, folder, fidelity="packet")
    return step_times(run)


def test_a_degraded_link_shows_in_the_steps_that_it_meets(tmp_path: Path) -> None:
    """The third step begins at 17 ms. It ends with what its bytes still need at a tenth of the rate; then all take ten times
    as long, until the link is whole again."""
    event = "events: [{degrade: {link: host1, way: up, at: 20 ms, for: 180 ms, rate: 1 gbit}}]\n"
    first, second, met, slow, last, plain = steps_with(event, tmp_path)
    assert second == pytest.approx(first, rel=0.02)
    assert slow == pytest.approx(10 * second, rel=0.02)
    began = first + second
    assert met == pytest.approx(20_000_000 - began + 10 * (began + second - 20_000_000), rel=0.02)
    healed = 200_000_000 - (began + met + slow)
    assert last == pytest.approx(healed + second - healed / 10, rel=0.05)
    assert plain == pytest.approx(second, rel=0.02)


def test_a_rate_trace_is_read_beside_its_network_and_holds_from_the_start(tmp_path: Path) -> None:
    (tmp_path / "rate.csv").write_text("seconds,mbit\n0,2500\n")
    traced = steps_with("events: [{rate_trace: {link: host1, way: up, file: rate.csv}}]\n", tmp_path)
    assert traced == pytest.approx(steps_with("links: {host1: {up: {rate: 2500 mbit}}}\n", tmp_path), rel=0.01)
