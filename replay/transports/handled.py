"""A transport whose messages take their rank's threads' time, before they are sent and after they have come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from replay.costs import Handling
from replay.plan import Stream
from replay.transports.alarms import Act, Alarms
from replay.transports.events import Event, Received, TimerExpired


class Transport(Protocol):
    """What carries a running rank's messages."""

    def send(self, stream: Stream, key: int, nbytes: int, data: memoryview | None, *, held: bool = False) -> None: ...

    def post(self, stream: Stream, key: int, nbytes: int, data: memoryview | None) -> None: ...

    def set_timer(self, at_ns: int) -> None: ...

    def wait(self) -> list[Event]: ...


class Handled:
    """`transport`, of whose messages each end takes what `handling` says. `added`: how many bytes of a message are added to
    what is there when it comes; `clock` gives ns.
    """

    def __init__(
        self,
        transport: Transport,
        handling: Handling,
        added: Callable[[Stream, int], int],
        clock: Callable[[], int],
    ) -> None:
        self._transport = transport
        self._handling = handling
        self._added = added
        self._clock = clock
        self._now = clock()  # when the transport last told something
        self._alarms = Alarms(transport.set_timer)
        self._events: list[Event] = []

    def send(self, stream: Stream, key: int, nbytes: int, data: memoryview | None, *, held: bool = False) -> None:
        """As the transport's, when the message has been handled."""
        ready = self._handling.send(stream, self._now)
        self._when(ready, self._now, lambda _: self._transport.send(stream, key, nbytes, data, held=held))

    def post(self, stream: Stream, key: int, nbytes: int, data: memoryview | None) -> None:
        """As the transport's."""
        self._transport.post(stream, key, nbytes, data)

    def set_timer(self, at_ns: int) -> None:
        """Asks for TimerExpired at `at_ns`."""
        self._alarms.add(at_ns, lambda _: self._events.append(TimerExpired()))

    def wait(self) -> list[Event]:
        """As the transport's: what has come is told when it has been handled."""
        while not self._events:
            events = self._transport.wait()
            self._now = self._clock()
            for event in events:
                if isinstance(event, TimerExpired):
                    self._alarms.ring(self._now)
                elif isinstance(event, Received):
                    self._came(event)
                else:
                    self._events.append(event)
        events, self._events = self._events, []
        return events

    def _came(self, event: Received) -> None:
        ready = self._handling.receive(event.stream, self._added(event.stream, event.key), self._now)
        self._when(ready, self._now, lambda _: self._events.append(event))

    def _when(self, ready: int, now: int, act: Act) -> None:
        if ready > now:
            self._alarms.add(ready, act)
        else:
            act(now)
