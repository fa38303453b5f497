"""The sending end of a connection, sans I/O: takes messages, replies and the time, gives trains of packets.

It starts at line rate and has at most a window under way: one BDP (IRN, SIGCOMM 2018, section 3.2). Each train says whether its
last packet asks to be acknowledged. What nothing is heard of in `retry_ns` is sent again (the local ACK timeout of IBTA,
volume 1, 9.7.6.1.3, without its limit of seven times).

Selective repeat: the network keeps packets in order, so one that was sent before another of which the receiver has told is lost,
also where it is itself a repetition (IRN waits for its timer then, which at 5 % loss is all it does). A hole doesn't stop the
window, which counts what is under way; only `AHEAD` windows behind a hole it ends.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass

from emulator.transport import Recovery
from replay.transports.rdma.packets import NAK, SACK_SPAN, Reply

AHEAD = 8


@dataclass(frozen=True, slots=True)
class Limits:
    """`window`: packets under way at most; `ask_every`: packets after which one asks to be acknowledged; `retry_ns`."""

    window: int
    ask_every: int
    retry_ns: int


@dataclass(frozen=True, slots=True)
class Train:
    """Packets `first` to `first + count - 1`, which are those from `index` on of message `key`; the last one asks."""

    key: int
    first: int
    index: int
    count: int
    asks: bool


class Sender:
    """`deadline`: when (ns) `expire` wants to be called. `retransmitted`, `naks`, `timeouts`: how often, in packets for the
    first. `first`: count of the first packet.
    """

    def __init__(self, recovery: Recovery, limits: Limits, first: int = 0) -> None:
        self.deadline: int | None = None
        self.retransmitted = self.naks = self.timeouts = 0
        self._selective = recovery == "selective-repeat"
        self._limits = limits
        self._oldest = self._next = self._sent = self._end = first
        self._starts: deque[int] = deque()
        self._keys: deque[int] = deque()
        self._unasked = 0
        # Selective repeat: packets under way and the turn in which each was sent last, turns in order, holes to fill.
        self._under_way: dict[int, int] = {}
        self._turns: deque[tuple[int, int]] = deque()
        self._turn = 0
        self._lost: deque[int] = deque()
        self._held: set[int] = set()

    @property
    def acknowledged(self) -> int:
        """Count of the first packet that isn't."""
        return self._oldest

    @property
    def under_way(self) -> int:
        """Packets sent whose fate is not known."""
        return len(self._under_way) if self._selective else self._next - self._oldest

    def queue(self, key: int, packets: int) -> None:
        """A message of so many packets behind those before it."""
        self._starts.append(self._end)
        self._keys.append(key)
        self._end += packets

    def take(self, most: int, now: int, wait_ns: int = 0) -> Train | None:
        """The next train, of at most `most` packets, which counts as sent; None where there is nothing or no room.

        `wait_ns`: how long it will take to leave.
        """
        room = min(most, self._limits.window - self.under_way)
        if self._selective:
            room = min(room, self._oldest + AHEAD * self._limits.window - self._next) if not self._lost else room
            while self._lost and (self._lost[0] < self._oldest or self._lost[0] in self._held):
                self._lost.popleft()
        if room <= 0:
            return None
        again = bool(self._lost) or self._next < self._sent
        if self._lost:
            first = self._lost.popleft()
            count, ahead = 1, self._ends_at(first)
            while count < room and self._lost and self._lost[0] == first + count < ahead:
                self._lost.popleft()
                count += 1
        else:
            first = self._next
            if first == self._end:
                return None
            ahead = self._ends_at(first)
            count = min(room, ahead - first)
            if again:
                count = min(count, self._sent - first)
            self._next = first + count
            self._sent = max(self._sent, self._next)
        if again:
            self.retransmitted += count
        self._unasked += count
        # Whoever has no room left to go on must hear of it.
        asks = again or first + count == ahead or count == room or self._unasked >= self._limits.ask_every
        if asks:
            self._unasked = 0
        if self._selective:
            self._turn += 1
            for number in range(first, first + count):
                self._under_way[number] = self._turn
                self._turns.append((self._turn, number))
        if self.deadline is None:
            self.deadline = now + wait_ns + self._limits.retry_ns
        place = self._place(first)
        return Train(self._keys[place], first, first - self._starts[place], count, asks)

    def heard(self, reply: Reply, now: int, wait_ns: int = 0) -> list[int]:
        """A reply (ACK or NAK) has come: the keys of messages that have arrived, whole. `wait_ns` as in `take`."""
        if reply.opcode == NAK:
            self.naks += 1
        before, known = self._oldest, len(self._held)
        if self._selective:
            self._learn(reply)
        self._oldest = max(self._oldest, min(reply.expected, self._sent))
        self._next = max(self._next, self._oldest)
        if reply.opcode == NAK and reply.expected == self._oldest:
            self._next = self._oldest
        if self._oldest > before or len(self._held) != known:
            self.deadline = now + wait_ns + self._limits.retry_ns if self._oldest < self._sent else None
        done = []
        while self._starts and self._ends_at(self._starts[0]) <= self._oldest:
            self._starts.popleft()
            done.append(self._keys.popleft())
        return done

    def expire(self, now: int, wait_ns: int = 0) -> None:
        """Nothing was heard until `deadline`: all that is not acknowledged is sent again."""
        self.timeouts += 1
        self.deadline = now + wait_ns + self._limits.retry_ns
        if not self._selective:
            self._next = self._oldest
            return
        self._lost = deque(number for number in range(self._oldest, self._next) if number not in self._held)
        self._under_way.clear()
        self._turns.clear()

    def _learn(self, reply: Reply) -> None:
        """What `reply` says has come, and what therefore has not."""
        came = list(range(self._oldest, min(reply.expected, self._sent)))
        if reply.held:
            told = (reply.newest - back for back in range(SACK_SPAN) if reply.held >> back & 1)
            fresh = [number for number in told if self._oldest <= number < self._sent and number not in self._held]
            self._held.update(fresh)
            came += fresh
        latest, last = max(((self._under_way.pop(number, 0), number) for number in came), default=(0, -1))
        self._held.difference_update(range(self._oldest, reply.expected))
        while self._turns and self._turns[0][0] < latest:
            turn, number = self._turns.popleft()
            if self._under_way.get(number) == turn:
                del self._under_way[number]
                self._lost.append(number)
        # In the turn of what came last, what is in front of it is lost as well.
        while self._turns and self._turns[0][0] == latest and self._turns[0][1] < last:
            turn, number = self._turns.popleft()
            if self._under_way.get(number) == turn:
                del self._under_way[number]
                self._lost.append(number)

    def _place(self, number: int) -> int:
        return bisect_right(self._starts, number) - 1

    def _ends_at(self, number: int) -> int:
        """Count of the first packet behind the message that `number` is in."""
        place = self._place(number) + 1
        return self._starts[place] if place < len(self._starts) else self._end
