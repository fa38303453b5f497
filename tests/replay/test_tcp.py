"""The TCP transport over loopback: its rules on one pair of sockets, then whole jobs with forked workers."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from emulator.errors import BedError, MachineError
from emulator.transport import Costs
from emulator.units import Duration, Rate
from replay import control
from replay.costs import OwnWork, RankCosts
from replay.plan import Stream, lower
from replay.transports.endpoint import PeerLostError
from replay.transports.events import ControlReady, Received, Sent, TimerExpired
from replay.transports.tcp import TcpTransport
from replay.transports.tcp_connection import HEADER
from replay.transports.tcp_options import TcpOptions
from replay.worker import WorkerOptions, monotonic
from tests.replay.job import bye, connect, free_addresses, gather, go, run_job, times, workers
from tests.replay.network import everywhere, trace_of
from traces.program import ROOTED, Collective, CollectiveKind, Compute, DType, Group, Op, Recv, Send, StepMark, Wait

TO_1, TO_0 = Stream(1, 0, False), Stream(0, 0, False)


def pair(keep: bool = False, options: TcpOptions | None = None) -> Iterator[tuple[TcpTransport, TcpTransport]]:
    addresses = free_addresses([0, 1])
    options = options or TcpOptions()
    with (
        TcpTransport(0, [TO_1], addresses, options, keep=keep) as low,
        TcpTransport(1, [TO_0], addresses, options, keep=keep) as high,
        ThreadPoolExecutor(1) as pool,
    ):
        accepted = pool.submit(high.connect)
        low.connect()
        accepted.result()
        yield low, high


@pytest.fixture
def ends() -> Iterator[tuple[TcpTransport, TcpTransport]]:
    yield from pair()


@pytest.fixture
def real_ends() -> Iterator[tuple[TcpTransport, TcpTransport]]:
    yield from pair(keep=True)


def pump(sender: TcpTransport, receiver: TcpTransport) -> tuple[list[object], list[object]]:
    """What both see until the receiver has an event; for messages that outgrow the socket's buffers."""
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(sender.wait)
        received = receiver.wait()
        return list(sent.result()), list(received)


@pytest.mark.parametrize("nbytes", [0, 1, 16 << 10, (16 << 10) + 1, 9_999_999])
def test_a_message_arrives_whole(ends: tuple[TcpTransport, TcpTransport], nbytes: int) -> None:
    low, high = ends
    high.post(TO_0, 7, nbytes, None)
    low.send(TO_1, 7, nbytes, None)
    assert pump(low, high) == ([Sent(TO_1, 7)], [Received(TO_0, 7)])


@pytest.mark.parametrize("nbytes", [0, 1, 70_000, 5_000_000])
def test_real_bytes_arrive_as_they_were(real_ends: tuple[TcpTransport, TcpTransport], nbytes: int) -> None:
    low, high = real_ends
    data, into = os.urandom(nbytes), bytearray(nbytes)
    high.post(TO_0, 1, nbytes, memoryview(into))
    low.send(TO_1, 1, nbytes, memoryview(data))
    pump(low, high)
    assert into == data


def test_a_message_that_is_posted_later_is_kept(real_ends: tuple[TcpTransport, TcpTransport]) -> None:
    """It lies ahead of the one that is waited for, so it is read, and handed over when it is asked for."""
    low, high = real_ends
    low.send(TO_1, 1, 3, memoryview(b"abc"))
    low.send(TO_1, 2, 3, memoryview(b"xyz"))
    first, second = bytearray(3), bytearray(3)
    high.post(TO_0, 2, 3, memoryview(second))
    assert high.wait() == [Received(TO_0, 2)]
    high.post(TO_0, 1, 3, memoryview(first))
    assert high.wait() == [Received(TO_0, 1)]
    assert (first, second) == (b"abc", b"xyz")


@pytest.mark.parametrize("nbytes", [0, 70_000, 131_072, 5_000_001])
def test_a_message_goes_over_all_connections_in_parts_and_arrives_as_it_was(nbytes: int) -> None:
    for low, high in pair(keep=True, options=TcpOptions(streams=3)):
        data, into = os.urandom(nbytes), bytearray(nbytes)
        low.send(TO_1, 2, nbytes, memoryview(data))
        high.post(TO_0, 2, nbytes, memoryview(into))
        assert pump(low, high) == ([Sent(TO_1, 2)], [Received(TO_0, 2)])
        assert into == data
        assert sum(flow.bytes_sent > 100 for flow in low.flows()) == min(3, nbytes // (64 << 10))


@pytest.mark.parametrize("streams", [1, 3])
def test_a_large_message_that_is_to_be_held_is_sent_when_the_other_end_has_it(streams: int) -> None:
    """The send buffer takes all of it; the receive buffer only a part, until something is read."""
    nbytes = 200_000  # as much as a send buffer may have on any machine
    for low, high in pair(options=TcpOptions(streams=streams, send_buffer=208 << 10, recv_buffer=8 << 10)):
        low.send(TO_1, 1, nbytes, None)
        assert low.wait() == [Sent(TO_1, 1)]
        low.send(TO_1, 2, nbytes, None, held=True)
        low.set_timer(monotonic() + 20_000_000)
        assert low.wait() == [TimerExpired()]
        high.post(TO_0, 1, nbytes, None)
        high.post(TO_0, 2, nbytes, None)
        with ThreadPoolExecutor(1) as pool:
            sent = pool.submit(low.wait)
            received = high.wait()
            while len(received) < 2:
                received += high.wait()
        assert received == [Received(TO_0, 1), Received(TO_0, 2)]
        assert sent.result() == [Sent(TO_1, 2)]


def test_a_small_message_is_sent_when_the_kernel_has_it_however_it_is_to_be_held() -> None:
    for low, high in pair(options=TcpOptions(send_buffer=208 << 10, recv_buffer=8 << 10)):
        low.send(TO_1, 1, 64 << 10, None, held=True)
        assert low.wait() == [Sent(TO_1, 1)]
        high.post(TO_0, 1, 64 << 10, None)
        assert high.wait() == [Received(TO_0, 1)]


@pytest.mark.parametrize("copy", [Rate(8 * 10**8), Rate(10**15)], ids=["10 ns a byte", "nothing"])
def test_a_header_may_come_in_parts_while_what_came_before_is_copied(copy: Rate) -> None:
    addresses = free_addresses([0, 1])
    costs = RankCosts(Costs(Duration(0), copy, None, None), frozenset({1}), OwnWork(), OwnWork())
    with TcpTransport(1, [TO_0], addresses, TcpOptions(), costs=costs) as high, ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(high.connect)
        with socket.create_connection(addresses[1]) as sender:
            sender.sendall(struct.pack("<4sIiHH", b"TBED", 0, 0, 0, 0))
            accepted.result()
            for key in (1, 2):
                high.post(TO_0, key, 100_000, None)
            second = HEADER.pack(2, 100_000)
            sender.sendall(HEADER.pack(1, 100_000) + bytes(100_000) + second[:7])
            assert high.wait() == [Received(TO_0, 1)]
            high.set_timer(monotonic() + 20_000_000)
            assert high.wait() == [TimerExpired()]
            sender.sendall(second[7:] + bytes(100_000))
            high.set_timer(monotonic() + 5_000_000_000)
            assert high.wait() == [Received(TO_0, 2)]


def test_nothing_is_read_before_it_is_posted() -> None:
    """So the sender is held back: of a message far larger than both buffers, the kernel takes only a part."""
    for low, high in pair(options=TcpOptions(send_buffer=64 << 10, recv_buffer=64 << 10)):
        low.send(TO_1, 5, 50_000_000, None)
        high.set_timer(monotonic() + 20_000_000)
        assert high.wait() == [TimerExpired()]
        low.set_timer(monotonic())
        assert low.wait() == [TimerExpired()]
        assert high.flows()[0].bytes_received < 5_000_000
        high.post(TO_0, 5, 50_000_000, None)
        assert pump(low, high) == ([Sent(TO_1, 5)], [Received(TO_0, 5)])


def test_a_small_message_is_heard_after_a_large_one(ends: tuple[TcpTransport, TcpTransport]) -> None:
    """While the large one came, epoll was told to wait for more than the small one has."""
    low, high = ends
    for key, nbytes in ((1, 9_999_999), (2, 0)):
        high.post(TO_0, key, nbytes, None)
        low.send(TO_1, key, nbytes, None)
        assert pump(low, high) == ([Sent(TO_1, key)], [Received(TO_0, key)])


def test_a_wrong_size_is_named(ends: tuple[TcpTransport, TcpTransport]) -> None:
    low, high = ends
    high.post(TO_0, (3 << 24) | 2, 10, None)
    low.send(TO_1, (3 << 24) | 2, 11, None)
    with pytest.raises(BedError, match="rank 1: message 2 of operation 3 from rank 0 has 11 bytes, expected 10"):
        high.wait()


def test_a_peer_that_is_gone_is_named(ends: tuple[TcpTransport, TcpTransport]) -> None:
    low, high = ends
    high.post(TO_0, 1, 10, None)
    low.close()
    with pytest.raises(PeerLostError, match="rank 1 lost its connection to rank 0"):
        high.wait()


def test_the_timer_is_exact_and_fires_once(ends: tuple[TcpTransport, TcpTransport]) -> None:
    low, _ = ends
    for at in (monotonic() + 3_000_000, monotonic() + 1_500_000, monotonic() - 5):
        low.set_timer(at)
        assert low.wait() == [TimerExpired()]
        assert monotonic() >= at


def test_the_watched_socket_is_reported(ends: tuple[TcpTransport, TcpTransport]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ends[0].watch(ours)
        theirs.send(b"!")
        assert ends[0].wait() == [ControlReady()]


def test_options_reach_the_socket() -> None:
    for low, high in pair(options=TcpOptions(congestion="reno")):
        assert low.flows()[0].congestion == high.flows()[0].congestion == "reno"
    with pytest.raises(MachineError, match=r"'warp' can't be used.*mend:"):
        TcpTransport(0, [], free_addresses([0]), TcpOptions(congestion="warp"))


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = taken.getsockname()
        with pytest.raises(BedError, match=f"rank 0 can't listen at 127.0.0.1:{address[1]}"):
            TcpTransport(0, [], {0: address}, TcpOptions())


def test_a_rank_that_does_not_listen_is_named() -> None:
    addresses = free_addresses([0, 1])
    with (
        TcpTransport(0, [TO_1], addresses, TcpOptions()) as low,
        pytest.raises(PeerLostError, match="rank 0 can't connect to rank 1 at 127"),
    ):
        low.connect()


def test_a_stranger_is_refused() -> None:
    addresses = free_addresses([0, 1])
    with TcpTransport(1, [TO_0], addresses, TcpOptions()) as high, socket.create_connection(addresses[1]) as stranger:
        stranger.sendall(b"GET / HTTP/1.0\r\nHost: example\r\n\r\n")
        with pytest.raises(BedError, match="connected, which is no rank that is expected"):
            high.connect()


def every_collective(rank: int, size: int) -> list[Collective]:
    """Each kind, uneven and empty; all-to-all also with splits of its own for each pair, some of them 0."""
    calls = [Collective(CollectiveKind.BARRIER, 0, 0)]
    for kind in CollectiveKind:
        root = size - 1 if kind in ROOTED else -1
        if kind is not CollectiveKind.BARRIER:
            even = size if kind is CollectiveKind.ALL_TO_ALL else 1
            calls += [Collective(kind, 0, count * even, DType.FLOAT32, root=root) for count in (3001, 1, 0)]
    send, recv = (tuple(abs(a - b) * 100 + a for a, b in pairs(rank, size)) for pairs in (to_each, from_each))
    return [
        *calls,
        Collective(CollectiveKind.ALL_TO_ALL, 0, sum(send), DType.INT64, send_splits=send, recv_splits=recv),
    ]


def to_each(rank: int, size: int) -> list[tuple[int, int]]:
    return [(rank, peer) for peer in range(size)]


def from_each(rank: int, size: int) -> list[tuple[int, int]]:
    return [(peer, rank) for peer in range(size)]


@pytest.mark.parametrize(("size", "verify"), [(2, True), (3, True), (5, True), (8, True), (3, False)])
def test_a_job_of_every_collective(size: int, verify: bool) -> None:
    """On two lanes at once, in a sub-group, and with a ring of sends; then what every result must hold."""
    everyone = tuple(range(size))
    groups = (Group(0, "world", everyone, 0), Group(1, "lane", everyone[::-1], 1), Group(2, "pair", (1, 0), 2))
    aside = Collective(CollectiveKind.ALL_REDUCE, 1, 50_000, DType.BFLOAT16)
    inner = Collective(CollectiveKind.ALL_GATHER, 2, 77, DType.FLOAT16)
    programs: dict[int, list[Op]] = {}
    for rank in everyone:
        ops: list[Op] = [aside]
        for collective in [*every_collective(rank, size), *([inner] if rank < 2 else [])]:
            ops += [Compute(100_000), collective, Wait(len(ops) + 1)]
        ops += [Wait(0), StepMark(0)]
        ring = (Send((rank + 1) % size, 999, DType.INT64), Recv((rank - 1) % size, 999, DType.INT64))
        programs[rank] = [*ops, *ring, Wait(len(ops)), Wait(len(ops) + 1), StepMark(1)]
    results, progress = run_job(lower(trace_of(programs, groups, steps=2), segment=4096), WorkerOptions(verify=verify))
    assert sorted((p.rank, p.step) for p in progress) == [(rank, step) for rank in everyone for step in range(2)]
    for result in results.values():
        issued, began, ended = times(result.issued), times(result.began), times(result.ended)
        assert all(0 <= a <= b <= c <= result.finished_ns for a, b, c in zip(issued, began, ended, strict=True))
        assert ended[1] == 100_000
        for lane in (0, 1):
            assert sum(flow.bytes_sent for flow in result.flows if flow.lane == lane) > 50_000
        assert (result.verified > 60_000) if verify else (result.verified == 0)


def test_a_worker_that_fails_says_why() -> None:
    def refuse() -> None:
        raise BedError("its host is not there")

    plan = lower(everywhere(Collective(CollectiveKind.BARRIER, 0, 0), 2))
    with workers(plan, lambda rank: WorkerOptions(setup=refuse if rank else None)) as started:
        assert control.from_worker(started[1].control) == control.Failed(1, "BedError", "its host is not there")
        assert control.from_worker(started[0].control) == control.Listening(0)


def test_a_killed_rank_is_named_by_its_peers_and_status_is_answered() -> None:
    """Rank 1 computes for an hour, so rank 0 waits for it; then it is killed."""
    op = Collective(CollectiveKind.ALL_REDUCE, 0, 1000, name="x")
    programs = {0: (op, Wait(0)), 1: (Compute(3600 * 10**9), op, Wait(1))}
    with workers(lower(trace_of(programs)), WorkerOptions()) as started:
        connect(started)
        go(started, delay_ns=0)
        control.send(started[0].control, control.Ask())
        status = control.from_worker(started[0].control)
        assert isinstance(status, control.Status)
        assert status.text in (
            "rank 0 waits for message 0 of all_reduce 'x' from rank 1",
            "rank 0 has not started",
        )
        os.kill(started[1].pid, signal.SIGKILL)
        failed = control.from_worker(started[0].control)
        assert isinstance(failed, control.Failed)
        assert failed.kind == "PeerLostError"
        assert failed.text.startswith("rank 0 lost its connection to rank 1")


def test_workers_end_with_their_coordinator() -> None:
    """A coordinator that is gone closes the control channels: `workers` would wait for ever for one that stays."""
    with workers(lower(everywhere(Collective(CollectiveKind.BARRIER, 0, 0), 2)), WorkerOptions()) as started:
        connect(started)
    assert all(worker.control.fileno() == -1 for worker in started.values())


def test_gather_sees_results_and_bye_ends_it() -> None:
    plan = lower(everywhere(Collective(CollectiveKind.BARRIER, 0, 0), 2))
    with workers(plan, WorkerOptions()) as started:
        connect(started)
        go(started)
        last, _ = gather(started)
        assert {type(message) for message in last.values()} == {control.Result}
        control.send(started[0].control, control.Ask())
        status = control.from_worker(started[0].control)
        assert isinstance(status, control.Status)
        assert (status.text, status.finished, status.computing) == ("rank 0 has finished", True, False)
        assert status.connections == (control.Connection(1, 0, False, started=1, posted=1, received=1),)
        bye(started)
        poll = select.poll()
        poll.register(started[0].control, select.POLLIN)
        assert poll.poll(10_000)
