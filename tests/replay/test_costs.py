"""What hosts take besides the wire: who does which work when. Model time."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from emulator.network import load
from emulator.transport import NO_COSTS, Costs
from emulator.units import Duration, Rate
from replay.costs import Copying, Handling, OwnWork, RankCosts, SharedWork, copying, costs_of, statement
from replay.plan import Stream
from replay.transports.alarms import Alarms
from replay.transports.events import Event, Received, TimerExpired
from replay.transports.handled import Handled

NEAR, FAR = Stream(1, 0, False), Stream(2, 0, False)
COSTS = Costs(Duration(1001), Rate(8 * 10**9), Rate(4 * 10**9), Rate(2 * 10**9))


def of(costs: Costs) -> RankCosts:
    """Of rank 0, on whose machine rank 1 is too."""
    return RankCosts(costs, frozenset({0, 1}), OwnWork(), OwnWork())


def test_a_thread_handles_one_message_after_the_other_and_each_direction_has_its_own() -> None:
    handling = Handling(of(COSTS))
    assert [handling.send(FAR, 0), handling.send(FAR, 0), handling.send(FAR, 5000)] == [500, 1000, 5500]
    assert [handling.receive(FAR, 0, 0), handling.receive(FAR, 0, 0)] == [501, 1002]  # both halves make 1001


def test_what_stays_in_a_machine_takes_nothing_but_adding_up() -> None:
    handling = Handling(of(COSTS))
    assert handling.send(NEAR, 7) == 7
    assert handling.receive(NEAR, 0, 7) == 7
    assert handling.receive(NEAR, 100, 7) == 7 + 200
    assert copying(of(COSTS), NEAR) is None
    assert copying(of(replace(COSTS, copy=None, stream=None)), FAR) is None
    assert copying(None, FAR) is None


def test_adding_up_follows_the_thread_and_does_not_hold_it() -> None:
    handling = Handling(of(COSTS))
    assert handling.receive(FAR, 1000, 0) == 501 + 2000
    assert handling.receive(FAR, 0, 0) == 1002
    assert handling.receive(FAR, 1000, 0) == 501 + 2 * 2000


def test_a_connection_has_a_core_and_a_machine_is_shared() -> None:
    machine = SharedWork()
    one, other = (Copying(Rate(2 * 10**9), machine, Rate(3 * 10**9)) for _ in range(2))
    assert one.take(0, 300) == 1200  # its core's pace
    assert other.take(0, 300) == 1600  # both: 600 bytes at the machine's
    assert one.take(1200, 300) == 2400


def test_shared_work_is_shared_with_forked_processes() -> None:
    work = SharedWork()
    pid = os.fork()
    if not pid:
        work.take(0, 1000)
        os._exit(0)
    os.waitpid(pid, 0)
    assert work.take(0, 1) == 1001


def test_ranks_of_an_island_and_of_a_host_are_one_machine(tmp_path: Path) -> None:
    path = tmp_path / "net.yaml"
    pods = "profile: ethernet-100g\ntopology: {star: {hosts: 2, ranks_per_host: 2%s}}\n"
    for island in (", island: nvlink-a100", ""):
        path.write_text(pods % island)
        costs = costs_of(load(path))
        assert [sorted(costs[rank].near) for rank in range(4)] == [[0, 1], [0, 1], [2, 3], [2, 3]]
        assert costs[0].out is costs[1].out is not costs[2].out
        assert costs[0].out is not costs[0].into
    assert costs_of(replace(load(path), costs=NO_COSTS)) == {}


@pytest.mark.parametrize(
    ("network", "applied", "said"),
    [
        (
            "ethernet-10g",
            True,
            "timed work: 13.8 us a message, half on each host, copying 40 gbit a host each way, 16.5 gbit a",
        ),
        ("roce-100", True, "host costs, as timed work: 530 ns a message, half on each host"),
        ("ethernet-10g", False, "host costs are not applied: they are in virtual time"),
    ],
)
def test_what_is_said(network: str, applied: bool, said: str) -> None:
    assert said in statement(load(network), applied)[0]
    cards = load("ethernet-10g", overrides={"transport": "rdma"})
    assert statement(cards, True)[0].endswith("half on each host, copying nothing, for with rdma the card does")
    assert statement(load("nvlink-a100"), applied) == ()


def test_alarms_ring_in_order_and_set_the_timer_to_the_earliest() -> None:
    asked: list[int] = []
    rung: list[tuple[str, int]] = []
    alarms = Alarms(asked.append)
    alarms.add(20, lambda now: rung.append(("late", now)))
    alarms.add(10, lambda now: (rung.append(("early", now)), alarms.add(15, lambda at: rung.append(("made", at))))[0])
    alarms.add(10, lambda now: rung.append(("next", now)))
    assert asked == [20, 10]
    alarms.ring(12)
    assert (rung, asked) == ([("early", 12), ("next", 12)], [20, 10, 15])
    alarms.ring(30)
    assert rung[2:] == [("made", 30), ("late", 30)]


class Wire:
    """A transport of which the test says what happens."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.timers: list[int] = []
        self.coming: list[list[Event]] = []

    def send(self, stream: Stream, key: int, nbytes: int, data: memoryview | None, *, held: bool = False) -> None:
        self.sent.append(key)

    def post(self, stream: Stream, key: int, nbytes: int, data: memoryview | None) -> None:
        return

    def set_timer(self, at_ns: int) -> None:
        self.timers.append(at_ns)

    def wait(self) -> list[Event]:
        return self.coming.pop(0)


def test_a_handled_transport_sends_and_tells_when_the_threads_are_done() -> None:
    wire, times = Wire(), iter([0, 500, 600, 1101])
    handled = Handled(wire, Handling(of(COSTS)), lambda stream, key: 0, lambda: next(times))
    handled.send(FAR, 7, 10, None)
    handled.send(NEAR, 8, 10, None)
    handled.set_timer(900)
    assert (wire.sent, wire.timers) == ([8], [500])
    wire.coming = [[TimerExpired()], [Received(FAR, 9)], [TimerExpired()]]
    assert handled.wait() == [TimerExpired(), Received(FAR, 9)]
    assert (wire.sent, wire.timers) == ([8, 7], [500, 900])
