"""When a rank on NCCL started and waited for its operations, from a Kineto trace of its threads and its GPU.

The rank's program follows the GPU's compute streams, by CUDA's own rules:

- An operation's kernel may run once the host has launched it and the compute launched before it is done
  (ProcessGroupNCCL makes its stream wait for the current one). That moment is the start, not the kernel's own: a
  kernel may queue behind its lane.
- A recorded wait holds back the compute launched after it (cudaStreamWaitEvent). The rank waits from the end of the
  compute launched before it, or from when the host had launched what comes next, whichever is later, to the
  operation's end. A host that stood in a synchronising call then was waiting for the same, so its launch is taken as
  of that call's start.
- An operation launched synchronously, or onto a compute stream, waits at once. DDP buckets have no recorded wait:
  their reducer makes it when backward is over.
- A step ends when the host has ended it and the compute launched by then is done.

A kernel also waits for the slowest peer; since waiting runs to the kernel's end, none of that is counted as compute.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traces.program import Finding
from traces.pytorch.calls import UNKNOWN, Call
from traces.pytorch.host import HostActivity
from traces.pytorch.spans import Device, Gpu, Integers, Span, Spans
from traces.recording import TimedCall, Timeline


def timeline(spans: Spans, gpu: Gpu, calls: tuple[Call, ...]) -> Timeline:
    """Place `calls` (one for one with `spans.calls`) in time."""
    findings = []
    compute = _Compute.of(gpu)
    kernels = _kernels_of(spans.calls, gpu)
    issued: list[TimedCall] = []
    unwaited: list[int] = []
    host = HostActivity.of(spans.operators)
    numbers: set[int] = set()
    dangling = lost = 0
    for at, call, kernel in zip(spans.calls, calls, kernels, strict=True):
        if call.kind == "wait":
            target = _waited_for(call, issued, unwaited)
            if target is None:
                dangling += call.seq not in numbers
            else:
                unwaited.remove(target)
                issued[target] = _with_wait(issued[target], compute.stops(at.start, issued[target].end_ns))
            continue
        end = kernel.span.end if kernel else UNKNOWN
        lost += kernel is None and call.group_size != 1
        item = TimedCall(call, max(at.start, compute.done_before(at.start)), end)
        bucket_wait = host.bucket_wait(at, call)
        if call.is_async is False or (kernel is not None and kernel.stream in compute.streams):
            item = _with_wait(item, item.issue_ns)
        elif bucket_wait is not None:
            item = _with_wait(item, compute.stops(bucket_wait, end))
        else:
            unwaited.append(len(issued))
        issued.append(item)
        numbers.add(call.seq)
    if lost:
        findings.append(
            Finding("kernel-lost", f"{lost} operations have no kernel in the recording; their ends are not known")
        )
    if dangling:
        findings.append(
            Finding("dangling-wait", f"{dangling} waits are for operations from before the recording; left out")
        )
    start = spans.steps[0][1].start if spans.steps else gpu.first
    if spans.steps:
        marks = tuple((step, max(span.end, compute.done_before(span.end))) for step, span in spans.steps)
    else:
        marks = ((0, gpu.last),)
    return Timeline(start, marks, tuple(issued), tuple(findings))


def _waited_for(call: Call, issued: list[TimedCall], unwaited: list[int]) -> int | None:
    """The call that a wait names by number; in files that don't number them, the oldest that is not waited for."""
    if call.seq == UNKNOWN:
        return unwaited[0] if unwaited else None
    return next((index for index in reversed(unwaited) if issued[index].call.seq == call.seq), None)


def _with_wait(item: TimedCall, moment: int) -> TimedCall:
    return TimedCall(item.call, item.issue_ns, item.end_ns, max(moment, item.issue_ns))


def _kernels_of(calls: Sequence[Span], gpu: Gpu) -> list[Device | None]:
    """Each call's kernel: the one its thread launched while it made the call.

    Calls of one coalesced group have none of their own: one kernel that no call launched follows them, and is theirs.
    """
    launched: dict[int | str, list[tuple[int, Device]]] = {}
    for kernel in gpu.kernels:
        launch = gpu.launches.get(kernel.correlation)
        if launch is not None:
            launched.setdefault(launch.thread, []).append((launch.start, kernel))
    for mine in launched.values():
        mine.sort(key=lambda pair: pair[0])

    def following(call: Span) -> tuple[int, Device] | None:
        mine = launched.get(call.thread, [])
        at = bisect_left(mine, call.start, key=lambda pair: pair[0])
        return mine[at] if at < len(mine) else None

    candidates = [following(call) for call in calls]
    owned = {
        candidate[1].correlation
        for call, candidate in zip(calls, candidates, strict=True)
        if candidate is not None and candidate[0] <= call.end
    }
    return [
        candidate[1]
        if candidate is not None and (candidate[0] <= call.end or candidate[1].correlation not in owned)
        else None
        for call, candidate in zip(calls, candidates, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Compute:
    """Kernels and copies that are not communication, by launch: `launches[i]` is when the host launched the i-th,
    `ends[i]` when all up to it were done. `sync_start` and `sync_end` are of the host calls that wait for the GPU."""

    launches: Integers
    ends: Integers
    streams: frozenset[int]
    sync_start: Integers
    sync_end: Integers

    @classmethod
    def of(cls, gpu: Gpu) -> _Compute:
        order = np.argsort(gpu.launched, kind="stable")
        ends = np.maximum.accumulate(gpu.ended[order])
        return cls(gpu.launched[order], ends, gpu.streams, gpu.sync_start, gpu.sync_end)

    def done_before(self, moment: int) -> int:
        """When the compute launched by `moment` was done; `moment` itself if nothing was left to do."""
        at = int(np.searchsorted(self.launches, moment, "left")) - 1
        return max(moment, int(self.ends[at])) if at >= 0 else moment

    def stops(self, wait: int, end: int) -> int:
        """When the GPU stops for an operation that ends at `end`, if the host made the wait at `wait`."""
        before = self.done_before(wait)
        at = int(np.searchsorted(self.launches, wait, "right"))
        following = int(self.launches[at]) if at < len(self.launches) else before
        stood = (self.sync_start <= end) & (end < self.sync_end) & (self.sync_start >= wait)
        if stood.any():
            following = min(following, int(self.sync_start[stood].min()))
        return max(before, following)
