"""What each parameter of netem, and of a queue that marks, does to packets, measured in virtual time in bands that it would leave
if it were ignored. `qdisc.install` has read every one back from the kernel before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from tests.guest import run_guest
from tests.guests.trains import COUNT, OVERHEAD, TRAINS

Array = np.ndarray[Any, Any]
Trains = Mapping[str, Array]
NUMBER, AT, BITS, MARK = range(4)
MS = 10**6
RUNS = 200
"""As many runs of a model say how far chance goes."""
SIGMAS = 4

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab")]


@pytest.fixture(scope="module")
def trains(lab: Path, tmp_path_factory: pytest.TempPathFactory) -> Trains:
    return run(tmp_path_factory.mktemp("trains"))


def run(folder: Path, *names: str) -> Trains:
    return {name: np.load(folder / f"{name}.npy") for name in run_guest("trains", str(folder), *names)}


def test_a_netem_with_nothing_does_nothing(trains: Trains) -> None:
    assert trains["nothing"].tolist() == [[number, 0, 0, 0] for number in range(COUNT)]


def test_a_change_takes_back_everything_that_was_there(trains: Trains) -> None:
    assert trains["all taken back"].tolist() == trains["nothing"].tolist()


@pytest.mark.parametrize(("delay", "ns"), [("500 ns", 500), ("1.5 us", 1500), ("10 ms", 10 * MS)])
def test_delay_is_exact(trains: Trains, delay: str, ns: int) -> None:
    assert set(trains[f"delay {delay}"][:, AT]) == {ns}


@pytest.mark.parametrize("gbit", [1, 10, 35, 100, 200, 400, 800])
def test_each_packet_of_a_train_comes_when_its_rate_says_to_1_ns(trains: Trains, gbit: int) -> None:
    sent = (np.arange(COUNT) + 1) * (1514 + OVERHEAD) * 8
    assert trains[f"rate {gbit} gbit"][:, AT].tolist() == (sent // gbit).tolist()


def test_cells_are_sent_whole(trains: Trains) -> None:
    cells = -(-(114 - 14) // 48)  # what is left of a frame without its header, in ATM cells of 48 and 5 bytes
    sent = (np.arange(COUNT) + 1) * cells * 53 * 8 * 10**9
    assert trains["cells"][:, AT].tolist() == (sent // 155_520_000).tolist()


def test_limit_is_what_is_being_delayed(trains: Trains) -> None:
    assert trains["limit"][:, NUMBER].tolist() == list(range(50))


def happened(trains: Trains, name: str) -> Array:
    """To which packets of a train, in the order in which they were sent."""
    train, count = trains[name], TRAINS[name].count
    arrived = np.bincount(train[:, NUMBER], minlength=count)
    found = np.zeros(count, bool)
    match name.split()[0]:
        case "duplicate":
            return np.asarray(arrived == 2)
        case "corrupt":
            found[train[train[:, BITS] > 0, NUMBER]] = True
            return found
        case "reorder" | "gap":
            found[train[train[:, AT] == 0, NUMBER]] = True
            return found
        case _:
            return np.asarray(arrived == 0)


def share(events: Array) -> Array:
    return np.asarray(events.mean(axis=0))


def run_length(events: Array) -> Array:
    """How many in a row, in the mean."""
    begins = events[1:] & ~events[:-1]
    return np.asarray(events.sum(axis=0) / (begins.sum(axis=0) + events[0]))


def check(got: Array, model: Array) -> None:
    """Share and run length are as in many runs of the model, whose runs are longer than independent draws make them."""
    for statistic in (share, run_length):
        expected = statistic(model)
        assert abs(statistic(got) - expected.mean()) < SIGMAS * expected.std(), statistic.__name__
    lengths = run_length(model)
    assert lengths.mean() - SIGMAS * lengths.std() > 1 / (1 - share(model).mean())


@pytest.mark.parametrize("name", ["loss", "duplicate", "corrupt", "reorder"])
def test_an_event_is_as_likely_as_asked_and_independent_of_the_last(trains: Trains, name: str) -> None:
    events = happened(trains, f"{name} 10%")
    assert abs(events.sum() - 0.1 * COUNT) < SIGMAS * (0.1 * 0.9 * COUNT) ** 0.5
    assert run_length(events) == pytest.approx(1 / 0.9, abs=SIGMAS * 0.011)  # of 900 runs, each off by 0.1^(1/2) / 0.9


@pytest.mark.parametrize("name", ["loss", "duplicate", "corrupt", "reorder"])
def test_a_correlated_event_comes_in_runs(trains: Trains, name: str) -> None:
    """As get_crandom() in net/sched/sch_netem.c says: a draw is 40 % new, 60 % the last. So draws crowd at the middle, and
    what is asked to happen to 30 % happens to 9 %."""
    random = np.random.default_rng(1)
    draw, model = random.random(RUNS), np.empty((COUNT, RUNS), bool)
    for number in range(COUNT):
        draw = 0.4 * random.random(RUNS) + 0.6 * draw
        model[number] = draw < 0.3
    check(happened(trains, f"{name} correlated"), model)


@pytest.mark.parametrize(("name", "good", "bad"), [("Gilbert", 0, 1), ("Gilbert-Elliott", 0.01, 0.7)])
def test_gilbert_elliott_loses_in_bursts(trains: Trains, name: str, good: float, bad: float) -> None:
    random = np.random.default_rng(2)
    is_bad, model = np.zeros(RUNS, bool), np.empty((COUNT, RUNS), bool)
    for number in range(COUNT):
        model[number] = random.random(RUNS) < np.where(is_bad, bad, good)
        is_bad = np.where(is_bad, random.random(RUNS) >= 0.2, random.random(RUNS) < 0.02)
    check(happened(trains, name), model)
    if name == "Gilbert":  # of which it is known that 1 / (1 + 10) are lost, 5 in a row
        assert share(model).mean() == pytest.approx(1 / 11, rel=0.02)
        assert run_length(model).mean() == pytest.approx(5, rel=0.02)


def test_four_states_lose_in_bursts_with_holes_and_alone(trains: Trains) -> None:
    """Salsano et al.: from 1 to 3 2 %, to 4 1 %; from 3 to 1 20 %, to 2 10 %; from 2 to 3 30 %; from 4 to 1."""
    moves = np.array([[0.97, 0, 0.02, 0.01], [0, 0.7, 0.3, 0], [0.2, 0.1, 0.7, 0], [1, 0, 0, 0]]).cumsum(axis=1)
    random = np.random.default_rng(3)
    state, model = np.zeros(RUNS, int), np.empty((COUNT, RUNS), bool)
    for number in range(COUNT):
        state = (random.random(RUNS)[:, None] >= moves[state]).sum(axis=1)
        model[number] = state >= 2
    check(happened(trains, "four states"), model)


def test_a_gap_lets_one_of_every_five_overtake(trains: Trains) -> None:
    assert happened(trains, "gap").tolist() == [number % 5 == 4 for number in range(1000)]


def test_corruption_is_one_bit(trains: Trains) -> None:
    assert set(trains["corrupt 10%"][:, BITS]) == {0, 1}


def test_marks_take_the_place_of_losses_where_packets_can_be_marked(trains: Trains) -> None:
    marks, losses = trains["marks"], happened(trains, "can't be marked")
    assert len(marks) == COUNT
    assert marks[:, MARK].astype(bool).tolist() == losses.tolist()
    assert abs(losses.sum() - 0.2 * COUNT) < SIGMAS * (0.2 * 0.8 * COUNT) ** 0.5


def pareto(quantile: float) -> float:
    """Of shape 3, mean 0 and deviation 1."""
    return float(((1 - quantile) ** (-1 / 3) - 1.5) / 0.75**0.5)


QUANTILES: Mapping[str, Callable[[float], float]] = {
    "uniform": lambda quantile: 2 * quantile - 1,
    "normal": NormalDist().inv_cdf,
    "pareto": pareto,
    "paretonormal": lambda quantile: 0.25 * NormalDist().inv_cdf(quantile) + 0.75 * pareto(quantile),
}


@pytest.mark.parametrize("name", QUANTILES)
def test_delays_have_the_quantiles_of_their_distribution(trains: Trains, name: str) -> None:
    """And not those of another: the share of delays below each quantile is that quantile, to what chance allows."""
    delays = (trains[name][:, AT] - 10 * MS) / MS
    fits = {
        other: all(
            abs((delays < at(quantile)).mean() - quantile) < SIGMAS * (quantile * (1 - quantile) / COUNT) ** 0.5
            for quantile in (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
        )
        for other, at in QUANTILES.items()
    }
    assert [other for other, fit in fits.items() if fit] == [name]
    assert delays.min() >= -4
    assert delays.max() <= 4


def test_jitter_reorders_unless_there_is_a_rate(trains: Trains) -> None:
    assert trains["in order"][:, NUMBER].tolist() == list(range(COUNT))
    assert set(np.unique(np.diff(trains["in order"][:, AT]) >= 0)) == {True}
    assert (np.diff(trains["uniform"][:, NUMBER]) < 0).mean() > 0.3


def test_jitter_correlated_to_100_percent_is_one_delay_and_less_is_none(trains: Trains) -> None:
    """The kernel takes the low bits of the correlated draw (`rnd % dist->size` in tabledist()), in which nothing of the last
    one is left: what is less than 100 % is without effect."""
    assert len(set(trains["jitter correlated 100%"][:, AT])) == 1
    train = trains["jitter correlated 90%"]
    delays = train[train[:, NUMBER].argsort(), AT]
    assert abs(np.corrcoef(delays[1:], delays[:-1])[0, 1]) < SIGMAS / COUNT**0.5


def test_slots_hold_so_many_packets_or_bytes(trains: Trains) -> None:
    assert trains["slot of packets"][:, AT].tolist() == [MS * (number // 10 + 1) for number in range(1000)]
    # 600 bytes: a slot is closed by the packet that fills it, here the sixth of 100.
    assert trains["slot of bytes"][:, AT].tolist() == [MS * (number // 6 + 1) for number in range(1000)]


def test_slots_open_after_what_is_drawn(trains: Trains) -> None:
    between, drawn = (np.diff(trains[f"slot {kind}"][:, AT]) / MS for kind in ("between", "drawn"))
    count = len(between)
    assert between.min() >= 1
    assert between.max() <= 3
    assert abs(between.mean() - 2) < SIGMAS * (1 / 3 / count) ** 0.5
    assert between.std() == pytest.approx(3**-0.5, rel=0.05)
    assert abs(drawn.mean() - 5) < SIGMAS * (1 / count) ** 0.5
    assert drawn.std() == pytest.approx(1, rel=0.06)


def test_a_threshold_marks_what_finds_more_than_that_the_packet_being_sent_included(trains: Trains) -> None:
    """All come at one moment, so each finds as many as came before."""
    came = trains["threshold"]
    assert came[:, NUMBER].tolist() == list(range(100))
    assert came[:, MARK].tolist() == [number > 30 for number in range(100)]
    assert trains["threshold, can't be marked"][:, NUMBER].tolist() == list(range(31))


def test_a_ramp_marks_more_often_as_more_wait(trains: Trains) -> None:
    """Floyd and Jacobson 1993, section 4: evenly drawn 1 to 1/p packets apart, p from 0 to 10 %; above it, all."""
    marks = trains["ramp"][:, MARK].astype(bool)
    assert len(marks) == 2000
    assert not marks[:501].any()
    assert marks[1501:].all()
    random = np.random.default_rng(4)
    since, bound, model = np.zeros(RUNS), random.random(RUNS), np.empty((1000, RUNS), bool)
    for step in range(1000):
        since += 1
        model[step] = since * 0.1 * step / 1000 >= bound
        since[model[step]] = 0
        bound = np.where(model[step], random.random(RUNS), bound)
    for part in (slice(0, 500), slice(500, 1000)):
        expected = model[part].sum(axis=0)
        assert abs(marks[501:1501][part].sum() - expected.mean()) < SIGMAS * expected.std()
    assert marks[1001:1501].sum() > 2 * marks[501:1001].sum()


def test_a_seed_decides_all_but_where_correlated_draws_start(trains: Trains) -> None:
    assert trains["same seed"].tolist() == trains["loss 10%"].tolist()
    assert happened(trains, "other seed").tolist() != happened(trains, "loss 10%").tolist()
    once, again = (trains[f"jitter correlated 100%{which}"][0, AT] for which in ("", ", again"))
    assert once != again


def test_the_lab_kernel_repeats_what_no_seed_controls(tmp_path: Path) -> None:
    names = ("corrupt correlated", "jitter correlated 100%, again", "slot between")
    boots = []
    for boot in ("once", "again"):
        (tmp_path / boot).mkdir()
        boots.append(run(tmp_path / boot, *names))
    once, again = boots
    for name in names:
        assert once[name].tolist() == again[name].tolist()
