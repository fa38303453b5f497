"""What a rank's host threads were doing, from the operators that a Kineto trace has of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from traces.program import CollectiveKind
from traces.pytorch.calls import Call
from traces.pytorch.spans import Span

_BACKWARD = "autograd::engine::evaluate_function"
_ACCUMULATE = f"{_BACKWARD}: torch::autograd::AccumulateGrad"


@dataclass(frozen=True, slots=True)
class HostActivity:
    """When the rank's own threads were at work, as sorted disjoint intervals, and what of it was not backward."""

    starts: list[int]
    ends: list[int]
    accumulating: list[Span]
    outside_backward: list[int]

    @classmethod
    def of(cls, operators: Sequence[Span]) -> HostActivity:
        """Work is ATen operators and whatever has nothing inside; other operators enclose, and may hide waiting."""
        work: list[tuple[int, int]] = []
        for thread in {span.thread for span in operators}:
            own = [span for span in operators if span.thread == thread]
            for span, following in zip_longest(own, own[1:]):
                is_leaf = following is None or following.start >= span.end
                if is_leaf or span.name.startswith(("aten::", "c10d::")):
                    work.append((span.start, span.end))
        merged = _merge(work)
        passes = _merge([(span.start, span.end) for span in operators if span.name.startswith(_BACKWARD)])
        outside = [start for start, _ in merged if not _within(passes, start)]
        return cls(
            starts=[start for start, _ in merged],
            ends=[end for _, end in merged],
            accumulating=[span for span in operators if span.name.startswith(_ACCUMULATE)],
            outside_backward=outside,
        )

    def idle_since(self, moment: int) -> int:
        """The start of the idle time that holds `moment`, or the end of the work that holds it."""
        at = bisect_right(self.starts, moment) - 1
        return self.ends[at] if at >= 0 else moment

    def bucket_wait(self, at: Span, call: Call) -> int | None:
        """For a DDP bucket, when backward was over and its reducer began to wait; None for any other call.

        A bucket is an all_reduce made while a gradient is accumulated. The reducer waits for all its buckets when
        backward is over, not before, however early they end (torch/csrc/distributed/c10d/reducer.cpp,
        finalize_backward).
        """
        if call.kind is not CollectiveKind.ALL_REDUCE:
            return None
        if not any(span.thread == at.thread and span.start <= at.start < span.end for span in self.accumulating):
            return None
        following = bisect_right(self.outside_backward, at.end)
        if following == len(self.outside_backward):
            return None
        return self.idle_since(self.outside_backward[following] - 1)


def _merge(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _within(intervals: list[tuple[int, int]], moment: int) -> bool:
    at = bisect_right(intervals, (moment, 1 << 63)) - 1
    return at >= 0 and moment < intervals[at][1]
