"""A program that is run with a library's calls: a library whose operations take given times, on a clock of the test's own."""

from __future__ import annotations

import sys
from array import array

import pytest
from msgspec import structs

from emulator.errors import MachineError, NetworkError
from emulator.network import Network, load
from replay.engine import NEVER, Records, StepDone
from replay.library.choice import check_library, statement
from replay.library.program import End, Runner, World
from replay.plan import Transfer, lower
from replay.request import LIBRARIES, Request
from tests.replay.network import trace_of
from traces.errors import TraceError
from traces.program import Collective, CollectiveKind, Compute, Group, Op, Recv, Send, StepMark, Wait


class Pretended:
    """A clock, and a library of which each operation takes as many ns as it has bytes, and each start `call_ns`."""

    def __init__(self, call_ns: int = 0, late_ns: int = 0) -> None:
        self.now = 0
        self.marks: list[StepDone] = []
        self._call_ns, self._late_ns = call_ns, late_ns

    def connect(self) -> None:
        return

    def start(self, transfer: Transfer) -> End:
        self.now += self._call_ns
        ends = self.now + transfer.op.count
        return lambda: self._to(ends)

    def sleep_until(self, at_ns: int) -> None:
        self._to(at_ns + self._late_ns)

    def _to(self, at_ns: int) -> None:
        self.now = max(self.now, at_ns)

    def run(self, ops: list[Op], begin: int = 0) -> tuple[Runner, Records]:
        plan = lower(trace_of({0: ops, 1: ops})).ranks[0]
        runner = Runner(plan, self, lambda: self.now, self.sleep_until, self.marks.append)
        runner.run(begin)
        return runner, runner.times


def reduce(nbytes: int) -> Collective:
    return Collective(CollectiveKind.ALL_REDUCE, 0, nbytes)


def test_what_is_hidden_under_compute_is_not_exposed() -> None:
    """30 of the first operation's 100 ns are behind the compute; the second has ended by then."""
    pretended = Pretended()
    runner, times = pretended.run(
        [reduce(100), Compute(70), reduce(20), Wait(0), StepMark(0), Wait(2), StepMark(1)], 1000
    )
    assert times.issued == array("q", [1000, 1000, 1070, 1070, 1100, 1100, 1100])
    assert times.ended == array("q", [1100, 1070, 1100, 1100, 1100, 1100, 1100])
    assert [times.began[index] for index in (0, 2)] == [NEVER, NEVER]
    assert pretended.marks == [StepDone(0, 1100, 30), StepDone(1, 1100, 0)]
    assert runner.finished
    assert runner.blocked() == "rank 0 has finished"


def test_what_nobody_waits_for_ends_the_program() -> None:
    _, times = Pretended().run([reduce(500), StepMark(0)])
    assert list(times.ended) == [500, 0]


def test_a_second_wait_is_over_at_once() -> None:
    _, times = Pretended().run([reduce(50), Wait(0), Compute(5), Wait(0)])
    assert list(times.ended) == [50, 50, 55, 55]


def test_late_timers_do_not_add_up_and_are_told() -> None:
    runner, times = Pretended(late_ns=3).run([Compute(10), Compute(10), Compute(10)])
    assert list(times.ended) == [10, 20, 30]
    assert runner.late_ns == 4 * 3  # with the begin


def test_a_call_that_takes_its_time_delays_what_follows() -> None:
    _, times = Pretended(call_ns=7).run([reduce(1), Compute(10), StepMark(0)])
    assert list(times.issued) == [0, 7, 17]


def test_a_rank_says_what_it_waits_for() -> None:
    said = []

    class Asked(Pretended):
        def start(self, transfer: Transfer) -> End:
            said.append((runner.blocked(), runner.computing))
            return lambda: said.append((runner.blocked(), runner.computing))

    asked, ops = Asked(), [Collective(CollectiveKind.ALL_REDUCE, 0, 1, name="bucket"), Wait(0)]
    runner = Runner(
        lower(trace_of({0: ops, 1: ops})).ranks[0], asked, lambda: asked.now, asked.sleep_until, asked.marks.append
    )
    assert (runner.blocked(), runner.computing) == ("rank 0 computes", True)
    runner.run(0)
    assert said == [("rank 0 starts an operation", False), ("rank 0 waits for all_reduce 'bucket'", False)]


def test_all_ranks_have_the_same_groups_and_tags() -> None:
    """Also ranks that take no part: to make a group is an operation of all."""
    groups = [Group(0, "all", (0, 1, 2), 0), Group(5, "pair", (2, 0), 1)]
    pair = Collective(CollectiveKind.ALL_REDUCE, 5, 8)
    plan = lower(
        trace_of({0: [pair, Send(1, 4, tag=9)], 1: [Recv(0, 4, tag=9), Send(2, 4)], 2: [pair, Recv(1, 4)]}, groups)
    )
    world = World.of(plan)
    assert world == World((0, 1, 2), {5: (2, 0)}, {(0, 0): 0, (0, 9): 1})


ASKED = Request("job.trace", "", {}, library="gloo")
FREE = load("ethernet-10g", ranks=2, overrides={"costs": "none"})


def refusal(request: Request, network: Network = FREE, servers: bool = False, ordered: bool = False) -> str:
    with pytest.raises((TraceError, NetworkError)) as caught:
        check_library(request, network, servers=servers, ordered=ordered)
    return str(caught.value)


@pytest.mark.torch
@pytest.mark.usefixtures("torch")
def test_what_a_library_does_not_go_with() -> None:
    check_library(ASKED, FREE, servers=False, ordered=False)
    verified, chosen = (structs.replace(ASKED, **change) for change in ({"verify": True}, {"algorithms": ("ring",)}))
    assert refusal(verified).startswith("--verify does not go with --library gloo: ")
    assert refusal(chosen).startswith("--algorithm does not go with --library gloo: ")
    assert refusal(ASKED, ordered=True).startswith("--what-if priority does not go with --library gloo: ")
    assert refusal(ASKED, servers=True).startswith("a what-if that adds servers does not go with --library gloo: ")
    rdma = load("roce-100", ranks=2, overrides={"costs": "none"})
    assert refusal(ASKED, rdma) == "roce-100: --library gloo has TCP, not transport rdma; try --set transport=tcp"
    paced = load("ethernet-10g", ranks=2, overrides={"costs": "none", "tcp.pacing": "1 gbit"})
    assert "so tcp.pacing can't be set" in refusal(ASKED, paced)


@pytest.mark.torch
@pytest.mark.usefixtures("torch")
def test_costs_are_refused_where_they_would_be_applied() -> None:
    """In real time hosts take what they take."""
    costly = load("ethernet-10g", ranks=2)
    assert refusal(ASKED, costly).endswith("; try --set costs=none")
    check_library(structs.replace(ASKED, ground="host"), costly, servers=False, ordered=False)


def test_a_library_that_is_missing_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "replay.library.gloo", raising=False)
    with pytest.raises(MachineError, match=r"--library gloo can't be used: .*torch.*pip install 'tracebed\[torch\]'"):
        check_library(ASKED, FREE, servers=False, ordered=False)


@pytest.mark.usefixtures("mpi")
def test_another_mpi_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others ask whoever starts their ranks in another way."""
    from mpi4py import MPI

    monkeypatch.setattr(MPI, "Get_library_version", lambda: "Open MPI v4.1.4")
    monkeypatch.delitem(sys.modules, "replay.library.mpi", raising=False)
    with pytest.raises(MachineError, match=r"--library mpi can't be used: mpi4py has found Open MPI v4.1.4, not MPICH"):
        check_library(structs.replace(ASKED, library="mpi"), FREE, servers=False, ordered=False)


@pytest.mark.torch
@pytest.mark.usefixtures("torch", "mpi")
def test_every_library_says_what_its_results_rest_on() -> None:
    for library, name in zip(LIBRARIES, ("gloo of torch ", "MPICH "), strict=True):
        (said,) = statement(library)
        assert said.startswith(f"operations by {name}")
