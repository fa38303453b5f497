"""What TCP's options do, in the lab kernel, against what is known of them. Times are virtual."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from statistics import median

import pytest

from tests.replay.network import trace_of
from tests.replay.runs import replayed, rows, step_times, written
from traces.program import Op, Recv, Send, StepMark, Trace, Wait

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab")]

MSS = 1448  # of 1500 bytes, with timestamps
HEADERS, FRAMING = 52, 14 + 24


def sends(nbytes: int, steps: int = 1) -> Trace:
    """A message of rank 0 to rank 1 in each step."""
    programs: dict[int, list[Op]] = {0: [], 1: []}
    for step in range(steps):
        programs[0] += [Send(1, nbytes), Wait(2 * step + step), StepMark(step)]
        programs[1] += [Recv(0, nbytes), Wait(2 * step + step), StepMark(step)]
    return trace_of(programs, steps=steps)


def sent(trace: Trace, settings: Mapping[str, str], folder: Path, fidelity: str = "auto") -> tuple[list[int], Path]:
    """The steps' times in ns on 1 Gbit/s, and the run folder, under `folder`."""
    folder = folder / " ".join(settings.values()).replace("/", "")
    folder.mkdir(exist_ok=True)
    _, run = replayed(written(trace, folder), "ethernet-1g", folder, settings, fidelity=fidelity)
    return step_times(run), run


def slow_start_ns(nbytes: int, first: int, round_trip_ns: int) -> float:
    """Rounds of `first` segments, 2 `first`, 4 `first`...; the last one's way takes half a round trip (RFC 5681)."""
    segments = -(-nbytes // MSS)
    rounds = math.ceil(math.log2(segments / first + 1))
    return (rounds - 0.5) * round_trip_ns


@pytest.mark.parametrize(("window", "first"), [("auto", 10), ("32", 32), ("100", 65535 // MSS)])
def test_a_larger_initial_window_saves_rounds(window: str, first: int, tmp_path: Path) -> None:
    """A receiver lets 64 KiB come at first, for a SYN has no scaled window (RFC 7323), so 100 are 45."""
    (took,), _ = sent(sends(500_000), {"link.delay": "12.5 ms", "tcp.initial_window": window}, tmp_path)
    expected = slow_start_ns(500_000, first, 50_000_000)
    print(window, took, expected)
    assert took == pytest.approx(expected, rel=0.02)


def test_a_small_initial_receive_window_costs_rounds(tmp_path: Path) -> None:
    """14 segments fit into 32, but not into 4."""
    settings = {"link.delay": "12.5 ms", "tcp.initial_window": "32"}
    (at_once,), _ = sent(sends(20_000), settings, tmp_path)
    (held,), _ = sent(sends(20_000), {**settings, "tcp.initial_receive_window": "4"}, tmp_path)
    print(at_once, held)
    assert at_once == pytest.approx(25_000_000, rel=0.02)
    assert held == pytest.approx(75_000_000, rel=0.02)


def test_nagle_waits_for_delayed_acknowledgements(tmp_path: Path) -> None:
    """Two small messages and an answer: the second waits for the first's acknowledgement, which waits 40 ms for the answer
    (TCP_DELACK_MIN). Without the delay it waits for a round trip, without Nagle's rule for nothing."""
    programs: dict[int, list[Op]] = {0: [], 1: []}
    for step in range(40):
        at = len(programs[0])
        programs[0] += [Send(1, 100), Send(1, 100), Recv(1, 100), *(Wait(at + op) for op in range(3)), StepMark(step)]
        programs[1] += [Recv(0, 100), Recv(0, 100), Wait(at), Wait(at + 1), Send(0, 100), Wait(at + 4), StepMark(step)]
    trace, took = trace_of(programs, steps=40), {}
    for name, settings in {
        "plain": {},
        "nagle": {"tcp.nodelay": "false"},
        "nagle, quick": {"tcp.nodelay": "false", "tcp.delayed_ack": "false"},
    }.items():
        steps, _ = sent(trace, {"link.delay": "1 ms", **settings}, tmp_path)
        took[name] = median(steps) / 1e6
    print(took)
    assert took["plain"] == pytest.approx(4, rel=0.02)
    assert took["nagle, quick"] == pytest.approx(8, rel=0.02)
    assert 40 < took["nagle"] < 56


@pytest.mark.parametrize("fidelity", ["burst", "packet"])
@pytest.mark.parametrize("mbit", [100, 500])
def test_pacing_caps_a_connection(mbit: int, fidelity: str, tmp_path: Path) -> None:
    steps, _ = sent(sends(20_000_000, steps=2), {"tcp.pacing": f"{mbit} mbit"}, tmp_path, fidelity)
    reached = 20_000_000 * 8 / steps[-1] * 1000
    print(reached)
    assert reached == pytest.approx(mbit, rel=0.02)


@pytest.mark.parametrize("mss", [500, 1000])
def test_smaller_segments_have_more_headers(mss: int, tmp_path: Path) -> None:
    steps, run = sent(sends(20_000_000, steps=2), {"tcp.mss": str(mss)}, tmp_path, "packet")
    payload = mss - 12  # timestamps are in it
    reached = 20_000_000 * 8 / steps[-1] * 1000
    expected = 1000 * payload / (payload + HEADERS + FRAMING)
    print(reached, expected)
    assert {flow["mss"] for flow in rows(run / "flows.csv")} == {str(payload)}
    assert reached == pytest.approx(expected, rel=0.005)


def test_a_buffer_bounds_what_is_under_way(tmp_path: Path) -> None:
    """Buffer over round trip, of which Linux takes some for itself: the kernel's own share, equal at any size (sk_buff's
    truesize counts against tcp_rmem, tcp(7))."""
    shares = {}
    for kib in (128, 512):
        settings = {"link.delay": "5 ms", "tcp.buffer": f"{kib} KiB"}
        steps, _ = sent(sends(20_000_000, steps=2), settings, tmp_path)
        shares[kib] = 20_000_000 / steps[-1] * 1e9 / ((kib << 10) / 0.020)
    print(shares)
    assert all(0.5 < share < 1 for share in shares.values())
    assert shares[128] == pytest.approx(shares[512], rel=0.05)


def test_more_connections_lose_less_to_a_loss(tmp_path: Path) -> None:
    """Mathis et al. (CCR 1997): MSS / RTT x sqrt(3/2) / sqrt(p) for one connection of Reno, so n times that for n."""
    settings = {"link.delay": "5 ms", "link.loss": "0.05%", "tcp.congestion": "reno"}
    one = MSS * 8 / 0.020 * math.sqrt(1.5) / math.sqrt(2 * 0.0005) / 1e6
    reached = {}
    for streams in (1, 4):
        (took,), run = sent(sends(80_000_000), {**settings, "tcp.streams": str(streams)}, tmp_path)
        reached[streams] = 80_000_000 * 8 / took * 1000
        assert [flow["number"] for flow in rows(run / "flows.csv")] == [str(number) for number in range(streams)] * 2
    print(reached, one)
    assert reached[1] == pytest.approx(one, rel=0.25)
    assert 3 < reached[4] / reached[1] < 4.5
