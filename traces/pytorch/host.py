"""What a rank's host threads were doing, from the operators that a Kineto trace has of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traces.program import CollectiveKind
from traces.pytorch.calls import Call
from traces.pytorch.spans import ACCUMULATE, BACKWARD, WORK, Integers, Operators, Span


@dataclass(frozen=True, slots=True)
class HostActivity:
    """When the rank's own threads were at work, as sorted disjoint intervals, and what of it was not backward."""

    accumulating: Operators
    starts: Integers
    ends: Integers
    outside_backward: Integers

    @classmethod
    def of(cls, operators: Operators) -> HostActivity:
        """Work is ATen operators and whatever has nothing inside; other operators enclose, and may hide waiting."""
        work = _work(operators)
        starts, ends = _merge(operators.start[work], operators.end[work])
        backward = operators.kind >= BACKWARD
        passes, passed = _merge(operators.start[backward], operators.end[backward])
        at = np.searchsorted(passes, starts, "right") - 1
        inside = (at >= 0) & (starts < passed[at]) if len(passes) else np.zeros(len(starts), bool)
        of_gradients = operators.kind == ACCUMULATE
        accumulating = Operators(
            operators.threads,
            operators.thread[of_gradients],
            operators.start[of_gradients],
            operators.end[of_gradients],
            operators.kind[of_gradients],
        )
        return cls(accumulating, starts, ends, starts[~inside])

    def idle_since(self, moment: int) -> int:
        """The start of the idle time that holds `moment`, or the end of the work that holds it."""
        at = int(np.searchsorted(self.starts, moment, "right")) - 1
        return int(self.ends[at]) if at >= 0 else moment

    def bucket_wait(self, at: Span, call: Call) -> int | None:
        """For a DDP bucket, when backward was over and its reducer began to wait; None for any other call.

        A bucket is an all_reduce made while a gradient is accumulated. The reducer waits for all its buckets when
        backward is over, not before, however early they end (torch/csrc/distributed/c10d/reducer.cpp,
        finalize_backward).
        """
        if call.kind is not CollectiveKind.ALL_REDUCE or at.thread not in self.accumulating.threads:
            return None
        gradients, thread = self.accumulating, self.accumulating.threads.index(at.thread)
        holds = (gradients.start <= at.start) & (at.start < gradients.end) & (gradients.thread == thread)
        following = int(np.searchsorted(self.outside_backward, at.end, "right"))
        if not holds.any() or following == len(self.outside_backward):
            return None
        return self.idle_since(int(self.outside_backward[following]) - 1)


def _work(operators: Operators) -> Integers:
    """Places of the operators that are work. A function of its own, for what it needs on the way is large."""
    order = np.lexsort((-operators.end, operators.start, operators.thread))
    is_work = np.ones(len(order), bool)
    thread = operators.thread[order]
    is_work[:-1] = thread[1:] != thread[:-1]
    del thread
    is_work[:-1] |= operators.start[order[1:]] >= operators.end[order[:-1]]
    is_work |= operators.kind[order] == WORK
    return order[is_work]


def _merge(starts: Integers, ends: Integers) -> tuple[Integers, Integers]:
    """The same time as sorted disjoint intervals."""
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    opens = np.ones(len(order), bool)
    opens[1:] = starts[1:] > ends[:-1]
    return starts[opens], ends[np.roll(opens, -1)]
