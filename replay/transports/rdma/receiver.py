"""The receiving end of a connection, sans I/O: takes packets and the time, gives payload in order and replies.

Go-back-N (IBTA, volume 1, 9.7): what is not the next packet is dropped, and the first that shows a gap is answered with one NAK;
no other follows until the missing packet has come, so where that is lost again, only the sender's timer helps. Selective
repeat (IRN, SIGCOMM 2018): what comes behind a hole is kept, and each acknowledgement says what was.

Congestion (DCQCN, SIGCOMM 2015, section 3.1): a marked packet is answered with a CNP, but at most one in 50 us.
"""

from __future__ import annotations

from emulator.transport import Recovery
from replay.transports.rdma.packets import ACK, ASKS, CNP, NAK, SACK_SPAN, Reply

CNP_GAP_NS = 50_000
Payload = tuple[int, int, bytes | None]
"""A packet's flags, its payload's size, and that payload where it is kept."""


class Receiver:
    """`marks`: marked packets seen; `first`: count of the first packet that will come."""

    def __init__(self, recovery: Recovery, *, notify: bool, first: int = 0) -> None:
        self.marks = 0
        self.expected = first
        self._selective = recovery == "selective-repeat"
        self._notify = notify
        self._held: dict[int, Payload] = {}
        self._last = first
        self._refused = False
        self._notified: int | None = None

    def receive(self, count: int, payload: Payload, marked: bool, now: int) -> tuple[list[Payload], list[Reply]]:
        """Packet number `count` has come at `now` (ns), `marked` by a queue on its way: what is next for the reader, and what
        is to be replied.
        """
        replies = self._congestion(now) if marked else []
        asks = bool(payload[0] & ASKS)
        if count != self.expected:
            if count > self.expected and not self._selective:
                if not self._refused:
                    self._refused = True
                    replies.append(Reply(NAK, self.expected))
                return [], replies
            if count > self.expected:
                self._held.setdefault(count, payload)
                self._last = count
                asks = True  # what is not told at once would be taken for lost
            if asks:
                replies.append(self._acknowledge())
            return [], replies
        self._refused = False
        ready = [payload]
        self.expected += 1
        while (kept := self._held.pop(self.expected, None)) is not None:
            ready.append(kept)
            self.expected += 1
        if asks or len(ready) > 1:
            replies.append(self._acknowledge())
        return ready, replies

    def _acknowledge(self) -> Reply:
        if not self._held:
            return Reply(ACK, self.expected)
        held = sum(1 << back for back in range(SACK_SPAN) if self._last - back in self._held)
        return Reply(ACK, self.expected, self._last, held)

    def _congestion(self, now: int) -> list[Reply]:
        self.marks += 1
        if not self._notify or (self._notified is not None and now - self._notified < CNP_GAP_NS):
            return []
        self._notified = now
        return [Reply(CNP, self.expected)]
