"""What a rank that chooses what it sends asks of TCP: that little is taken too early, and that nothing is held back by a peer."""

from __future__ import annotations

import pytest

from replay.sending import UNSENT
from replay.transports.events import Event, Received, Sent, TimerExpired
from replay.transports.tcp import TcpTransport
from replay.transports.tcp_options import TcpOptions
from replay.worker import monotonic
from tests.replay.test_tcp import TO_0, TO_1, pair


def until_now(transport: TcpTransport) -> list[Event]:
    """What has happened without waiting for anything."""
    transport.set_timer(monotonic())
    happened: list[Event] = []
    while TimerExpired() not in happened:
        happened += transport.wait()
    return [event for event in happened if event != TimerExpired()]


@pytest.mark.parametrize(("unsent", "is_taken"), [(None, True), (UNSENT // 8, False)])
def test_a_message_counts_as_sent_when_little_of_it_is_left_to_send(unsent: int | None, is_taken: bool) -> None:
    """The peer reads nothing and has little room: without the limit the kernel takes all at once."""
    for low, _ in pair(options=TcpOptions(send_buffer=256 << 10, recv_buffer=8 << 10, unsent=unsent)):
        low.send(TO_1, 1, 150_000, None)
        assert until_now(low) == ([Sent(TO_1, 1)] if is_taken else [])


def test_what_is_not_posted_does_not_hold_back_what_comes_behind_it() -> None:
    """A message far larger than all buffers is read before anybody asks for it."""
    for low, high in pair(options=TcpOptions(send_buffer=64 << 10, recv_buffer=64 << 10, ahead=True)):
        low.send(TO_1, 1, 20_000_000, None)
        low.send(TO_1, 2, 10, None)
        sent: list[Event] = []
        while len(sent) < 2:
            sent += until_now(low)
            assert until_now(high) == []
        assert sent == [Sent(TO_1, 1), Sent(TO_1, 2)]
        high.post(TO_0, 2, 10, None)
        high.post(TO_0, 1, 20_000_000, None)
        received: list[Event] = []
        while len(received) < 2:
            received += high.wait()
        assert sorted(event.key for event in received if isinstance(event, Received)) == [1, 2]
