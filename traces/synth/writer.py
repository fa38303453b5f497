"""Writes one rank's program: operations with the compute between them."""

from __future__ import annotations

from traces.model import Model
from traces.program import Collective, CollectiveKind, Communication, Compute, DType, Group, Op, Recv, Send, Wait


class Writer:
    """`ops` is what is written so far. Compute is gathered until something else is said."""

    def __init__(self, model: Model) -> None:
        self.ops: list[Op] = []
        self._model = model
        self._busy_ns = 0.0
        self._open: list[int] = []
        self._known: dict[Communication, Communication] = {}

    def compute(self, flops: float) -> None:
        """The rank works, for `flops` operations a sample."""
        self._busy_ns += flops * self._model.batch / (self._model.tflops * 1e3)

    def wait(self, *ops: int) -> None:
        """Stops until the operations at these indexes have ended."""
        self._flush()
        self.ops += [Wait(op) for op in ops]

    def later(self, op: int) -> None:
        """Operation `op` is waited for in `finish`."""
        self._open.append(op)

    def finish(self) -> None:
        """Stops until all that was put off has ended."""
        self.wait(*self._open)
        self._open.clear()

    def collective(
        self, kind: CollectiveKind, group: Group, count: int, name: str, *, dtype: DType | None = None, root: int = -1
    ) -> int:
        """Starts a collective of the model's type, or `dtype`; its index."""
        return self._start(Collective(kind, group.id, count, dtype or self._model.dtype, root, name=name))

    def exchange(self, group: Group, sent: tuple[int, ...], received: tuple[int, ...], name: str) -> int:
        """Starts an all_to_all of so many elements to and from each rank of `group`; its index."""
        kind, dtype = CollectiveKind.ALL_TO_ALL, self._model.dtype
        return self._start(
            Collective(kind, group.id, sum(sent), dtype, send_splits=sent, recv_splits=received, name=name)
        )

    def send(self, group: Group, peer: int, count: int, name: str) -> int:
        """Starts sending; its index."""
        return self._start(Send(peer, count, self._model.dtype, group=group.id, name=name))

    def receive(self, group: Group, peer: int, count: int, name: str) -> int:
        """Starts receiving; its index."""
        return self._start(Recv(peer, count, self._model.dtype, group=group.id, name=name))

    def _start(self, op: Communication) -> int:
        self._flush()
        self.ops.append(self._known.setdefault(op, op))  # a job says the same over and over: one object each
        return len(self.ops) - 1

    def _flush(self) -> None:
        """Says the compute so far; the part of a nanosecond that is left counts for the next."""
        whole = int(self._busy_ns)
        if whole:
            self.ops.append(Compute(whole))
            self._busy_ns -= whole
