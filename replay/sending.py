"""Which message leaves a rank next, where its collectives progress together: the most urgent one, under a credit. No I/O.

Each rank orders only what it sends itself, so ranks need not agree, and none waits for another's order (P3, ByteScheduler).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from traces.program import Wait

Order = Literal["waits", "fifo"]
ORDERS: tuple[Order, ...] = ("waits", "fifo")
UNSENT = 128 << 10
"""Bytes that a socket takes before it has sent them (TCP_NOTSENT_LOWAT, tcp(7)): they can't be overtaken, and while they go
the next message can be chosen."""

Message = TypeVar("Message")


@dataclass(frozen=True, slots=True)
class Sending:
    """`order`: messages of what is waited for first go first, or of what was started first. `credit`: bytes of messages that
    were given to the kernel and not taken by it; one message may go whatever its size."""

    order: Order
    credit: int

    def urgency(self, ops: Sequence[object]) -> list[int]:
        """By an op's index how urgent it is; less goes first. What nobody waits for goes last."""
        if self.order == "fifo":
            return list(range(len(ops)))
        made = [len(ops)] * len(ops)
        for index in range(len(ops) - 1, -1, -1):
            op = ops[index]
            if isinstance(op, Wait):
                made[op.op] = index
        return made


class Outbox(Generic[Message]):
    """Messages that are held back."""

    def __init__(self, credit: int) -> None:
        self._credit = credit
        self._held: list[tuple[int, int, int, Message]] = []
        self._under_way = 0
        self._count = 0

    def hold(self, urgency: int, nbytes: int, message: Message) -> None:
        """Takes a message; of equal urgency the one that came first goes first."""
        self._count += 1
        heapq.heappush(self._held, (urgency, self._count, nbytes, message))

    def release(self) -> Iterator[Message]:
        """The messages that may go now."""
        while self._held and (not self._under_way or self._under_way + self._held[0][2] <= self._credit):
            _, _, nbytes, message = heapq.heappop(self._held)
            self._under_way += nbytes
            yield message

    def gone(self, nbytes: int) -> None:
        """A message of so many bytes has been taken."""
        self._under_way -= nbytes
