"""Which fidelity a run has, and what is said of bursts; in the lab, that the small messages of a job are not held back."""

from __future__ import annotations

from pathlib import Path

import pytest

from emulator.network import load
from replay.fidelity import BURST_BYTES, fidelity_of, held_back, in_bursts
from replay.plan import Plan, lower
from tests.replay.network import trace_of
from tests.replay.runs import replayed, step_times, written
from traces.program import Collective, CollectiveKind, Op, Recv, Send, StepMark, Trace, Wait

NETWORK = "ethernet-10g"


def job(*sizes: int, ranks: int = 8) -> Trace:
    ops: list[Op] = []
    for size in sizes:
        ops += [Collective(CollectiveKind.ALL_REDUCE, 0, size), Wait(len(ops))]
    return trace_of({rank: (*ops, StepMark(0)) for rank in range(ranks)}, steps=1)


def plan(*sizes: int) -> Plan:
    return lower(job(*sizes))


def test_a_part_is_held_back_by_a_burst_at_most() -> None:
    assert held_back(plan(8 * BURST_BYTES)) == 1
    assert held_back(plan(8 * BURST_BYTES // 4)) == 1
    assert held_back(plan(8 * BURST_BYTES * 50)) == pytest.approx(1 / 50)
    assert held_back(plan(8 * BURST_BYTES, 8 * BURST_BYTES * 9)) == pytest.approx(2 / 10)
    assert held_back(plan()) == 0


def test_a_message_is_held_back_whole() -> None:
    programs: dict[int, tuple[Op, ...]] = {
        0: (Send(1, 10 * BURST_BYTES), Wait(0), StepMark(0)),
        1: (Recv(0, 10 * BURST_BYTES), Wait(0), StepMark(0)),
    }
    assert held_back(lower(trace_of(programs, steps=1))) == pytest.approx(1 / 10)


def test_bursts_are_taken_where_they_change_nothing_and_said() -> None:
    clean, lossy = load(NETWORK, ranks=8), load(NETWORK, ranks=8, overrides={"link.loss": "1%"})
    small, large = plan(1 << 20), plan(100_000_000)
    assert fidelity_of("auto", clean, held_back(large)) == "burst"
    assert fidelity_of("auto", clean, held_back(small)) == "packet"
    assert fidelity_of("auto", lossy, held_back(large)) == "packet"
    assert fidelity_of("burst", clean, held_back(small)) == "burst"
    (said,) = in_bursts("burst", held_back(small))
    assert "by up to 50.0% of what messages take" in said
    assert not in_bursts("packet", held_back(small))
    assert not in_bursts("burst", held_back(plan()))


@pytest.mark.lab
@pytest.mark.usefixtures("lab")
def test_small_messages_take_what_the_wire_needs(tmp_path: Path) -> None:
    """A ring's 14 steps of 128 KiB each at 10 Gbit/s, headers counted, over two links and a switch that holds a packet: within
    2 % as it is run by default. In bursts the switch holds 64 KiB."""
    ops: list[Op] = []
    for step in range(6):
        ops += [Collective(CollectiveKind.ALL_REDUCE, 0, 1 << 20), Wait(len(ops)), StepMark(step)]
    trace = written(trace_of(dict.fromkeys(range(8), tuple(ops)), steps=6), tmp_path)
    took = {}
    for fidelity in ("auto", "burst"):
        settings = {"link.delay": "2 us", "tcp.congestion": "reno"}
        run, folder = replayed(trace, NETWORK, tmp_path / fidelity, settings, fidelity=fidelity)
        took[fidelity] = step_times(folder)[-1]
        assert any("held back" in line or "holds back" in line for line in run.assumed) == (fidelity == "burst")

    packet_ns = 0.8 * 1538
    formula = 14 * (packet_ns * ((1 << 17) + 16) / 1448 + 2 * 2_000 + packet_ns)
    print(f"formula {formula / 1e6:.3f} ms, by default {took['auto'] / 1e6:.3f}, in bursts {took['burst'] / 1e6:.3f}")
    assert took["auto"] == pytest.approx(formula, rel=0.02)
    assert took["burst"] > 1.2 * formula
