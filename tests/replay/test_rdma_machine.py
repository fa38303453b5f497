"""The RDMA-like transport's state machine on packet traces: every message arrives whole and in order, whatever the network does."""

from __future__ import annotations

import heapq
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.transport import RECOVERIES, Recovery
from replay.transports.rdma.dcqcn import TIMER_NS, Dcqcn
from replay.transports.rdma.packets import (
    ACK,
    ASKS,
    CNP,
    FIRST,
    HEADER_BYTES,
    NAK,
    Reply,
    data_header,
    decode_reply,
    encode_reply,
    read_header,
    unwrap,
)  # fmt: skip
from replay.transports.rdma.receiver import CNP_GAP_NS, Receiver
from replay.transports.rdma.sender import Limits, Sender

DELAY, PACKET = 50_000, 330
LIMITS = Limits(window=320, ask_every=32, retry_ns=400_000)


def transfer(
    recovery: Recovery,
    messages: list[int],
    loss: float,
    *,
    seed: int = 1,
    shuffle: int = 0,
    twice: float = 0,
    first: int = 0,
) -> tuple[int, Sender, int]:
    """`messages` (packets each) over a link of one packet in 330 ns and 50 us either way that loses with probability `loss`,
    repeats with `twice` and delays by up to `shuffle` ns: when (ns) all were acknowledged, and the packets sent."""
    draw = random.Random(seed)
    sender, receiver = Sender(recovery, LIMITS, first), Receiver(recovery, notify=False, first=first)
    for key, count in enumerate(messages):
        sender.queue(key, count)
    events: list[tuple[int, int, str, object]] = []
    got: list[tuple[int, int]] = []
    done: list[int] = []
    now = free = turn = sent = 0

    def put(at: int, kind: str, what: object) -> None:
        nonlocal turn
        for _ in range(2 if draw.random() < twice else 1):
            if draw.random() >= loss:
                turn += 1
                heapq.heappush(events, (at + (draw.randrange(shuffle) if shuffle else 0), turn, kind, what))

    while len(done) < len(messages):
        while free <= now and (train := sender.take(8, now)) is not None:
            free = max(free, now)
            for place in range(train.count):
                flags = (FIRST if train.index + place == 0 else 0) | (
                    ASKS if train.asks and place == train.count - 1 else 0
                )
                free += PACKET
                sent += 1
                put(
                    free + DELAY, "data", (train.first + place, (flags, train.key * 10_000 + train.index + place, None))
                )
        waits = [events[0][0]] if events else []
        waits += [sender.deadline] if sender.deadline is not None else []
        now = max(now, min([*waits, *([free] if free > now else [])]))
        if sender.deadline is not None and sender.deadline <= now:
            sender.expire(now)
        while events and events[0][0] <= now:
            _, _, kind, what = heapq.heappop(events)
            if kind == "data":
                count, payload = what  # type: ignore[misc]
                ready, replies = receiver.receive(unwrap(count & 0xFFFFFF, receiver.expected), payload, False, now)
                got += [divmod(size, 10_000) for _, size, _ in ready]
                for reply in replies:
                    put(now + DELAY, "reply", encode_reply(7, reply))
            else:
                done += sender.heard(decode_reply(memoryview(what), sender.acknowledged), now)  # type: ignore[arg-type]
    assert got == [(key, place) for key, count in enumerate(messages) for place in range(count)]
    assert done == list(range(len(messages)))
    assert sender.under_way == 0
    assert sender.deadline is None
    return now, sender, sent


@settings(max_examples=60, deadline=None)
@given(
    recovery=st.sampled_from(RECOVERIES),
    messages=st.lists(st.integers(1, 300), min_size=1, max_size=8),
    loss=st.sampled_from([0.0, 0.01, 0.2]),
    twice=st.sampled_from([0.0, 0.1]),
    shuffle=st.sampled_from([0, 2_000]),
    seed=st.integers(0, 1000),
    first=st.sampled_from([0, (1 << 24) - 5, (1 << 25) - 100]),
)
def test_all_arrives_once_and_in_order(
    recovery: Recovery, messages: list[int], loss: float, twice: float, shuffle: int, seed: int, first: int
) -> None:
    transfer(recovery, messages, loss, seed=seed, twice=twice, shuffle=shuffle, first=first)


@pytest.mark.parametrize("recovery", RECOVERIES)
def test_without_loss_the_wire_is_full(recovery: Recovery) -> None:
    took, sender, sent = transfer(recovery, [4000, 4000], 0)
    assert took == 8000 * PACKET + 2 * DELAY
    assert (sender.retransmitted, sender.naks, sender.timeouts, sent) == (0, 0, 0, 8000)


def test_selective_repeat_sends_again_little_more_than_was_lost() -> None:
    took, _sender, sent = transfer("selective-repeat", [245] * 40, 0.05)
    assert sent < 1.5 * 9800  # of the acknowledgements 5 % are lost as well, and what one told is sent again
    assert took < 1.5 * 9800 * PACKET


def test_one_loss_costs_go_back_n_a_window_and_selective_repeat_a_packet() -> None:
    sender, receiver = Sender("go-back-n", LIMITS), Receiver("go-back-n", notify=False)
    sender.queue(1, 10)
    train = sender.take(10, 0)
    assert train is not None
    assert train.count == 10
    receiver.receive(0, (FIRST, 1, None), False, 0)
    assert receiver.receive(2, (0, 1, None), False, 0) == ([], [Reply(NAK, 1)])
    assert receiver.receive(3, (0, 1, None), False, 0) == ([], [])
    assert sender.heard(Reply(NAK, 1), 5) == []
    again = sender.take(20, 5)
    assert again is not None
    assert (again.first, again.count, sender.naks, sender.retransmitted) == (1, 9, 1, 9)

    sender, receiver = Sender("selective-repeat", LIMITS), Receiver("selective-repeat", notify=False)
    sender.queue(1, 10)
    sender.take(10, 0)
    receiver.receive(0, (FIRST, 1, None), False, 0)
    (_, (reply,)) = receiver.receive(2, (0, 1, None), False, 0)
    assert reply == Reply(ACK, 1, 2, 1)
    sender.heard(reply, 5)
    again = sender.take(20, 5)
    assert again is not None
    assert (again.first, again.count, again.asks) == (1, 1, True)


def test_packets_read_back_and_numbers_wrap() -> None:
    header = memoryview(data_header(5, (1 << 24) + 3, FIRST | ASKS))
    assert len(header) == HEADER_BYTES
    assert read_header(header) == (4, FIRST | ASKS, 5, 3)
    reply = Reply(ACK, (1 << 24) - 2, (1 << 24) + 9, 0b101)
    assert decode_reply(memoryview(encode_reply(1, reply)), (1 << 24) - 100) == reply


def test_marks_are_answered_once_in_50_us() -> None:
    receiver = Receiver("go-back-n", notify=True)
    answers = [receiver.receive(n, (0, 1, None), True, n * 10_000)[1] for n in range(12)]
    assert [n for n, replies in enumerate(answers) if replies] == [0, 5, 10]
    assert answers[5] == [Reply(CNP, 5)]
    assert receiver.marks == 12
    assert CNP_GAP_NS == 50_000


def test_dcqcn_halves_recovers_and_rises() -> None:
    flow = Dcqcn(100e9)
    assert flow.deadline is None
    flow.notified(0)
    assert flow.rate == 50e9  # alpha is 1
    for step in range(1, 5):
        flow.expire(step * TIMER_NS)
    assert flow.rate == pytest.approx(100e9 - 50e9 / 16)
    flow.notified(4 * TIMER_NS)
    assert flow.rate < 60e9
    flow.expire(10**9)
    assert flow.rate == 100e9
    assert flow.deadline is None
