"""When a rank on gloo started and waited for its operations, from a Kineto trace of its host threads.

gloo runs an operation on a worker thread of its process group and annotates it `gloo:NAME` from enqueue to finish. The
recording does not say where the rank waited, so that is worked out:

- A call made with async_op=False waits right behind itself.
- An all_reduce made while a gradient is accumulated is a DDP bucket. The reducer waits for all its buckets when
  backward is over (torch/csrc/distributed/c10d/reducer.cpp, finalize_backward), not before, however early they end.
- Any other call is waited for at the first moment that fits the recording: the rank was idle from then until the
  operation had ended. Had it waited earlier it could not have worked; whether it could have worked longer is not
  recorded.

Time between is compute; time from a wait to the operation's end is waiting and is left out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from traces.program import Finding
from traces.pytorch.calls import UNKNOWN, Call
from traces.pytorch.host import HostActivity
from traces.pytorch.spans import Spans
from traces.recording import TimedCall, Timeline


def timeline(spans: Spans, calls: tuple[Call, ...]) -> Timeline:
    """Place `calls` (one for one with `spans.calls`) in time."""
    workers = _worker_threads(spans)
    activity = HostActivity.of(spans.operators.without(workers))
    findings = []
    named, finding = _name_groups(spans, calls)
    if finding:
        findings.append(finding)
    placed = []
    assumed = 0
    for at, mine, call in zip(spans.calls, spans.workers, named, strict=True):
        end = max((worker.end for worker in mine), default=UNKNOWN)
        bucket_wait = activity.bucket_wait(at, call)
        if call.is_async is False:
            wait = at.end
        elif bucket_wait is not None:
            wait = max(bucket_wait, activity.idle_since(end))
        else:
            wait = max(at.end, activity.idle_since(end))
            assumed += 1
        placed.append(TimedCall(call, at.start, end, wait))
    if assumed:
        text = f"{assumed} asynchronous calls have no recorded wait; it was put where the rank first could have waited"
        findings.append(Finding("assumed-wait", text, "info"))
    unfinished = sum(1 for item in placed if item.end_ns == UNKNOWN)
    if unfinished:
        findings.append(
            Finding("end-lost", f"{unfinished} operations have no recorded end; no waiting was taken out", "warning")
        )
    started = spans.operators.start
    start = spans.steps[0][1].start if spans.steps else int(started.min()) if len(started) else 0
    return Timeline(start, _marks(spans), tuple(placed), tuple(findings))


def _marks(spans: Spans) -> tuple[tuple[int, int], ...]:
    if spans.steps:
        return tuple((step, span.end) for step, span in spans.steps)
    ends = [worker.end for mine in spans.workers for worker in mine]
    if len(spans.operators.end):
        ends.append(int(spans.operators.end.max()))
    return ((0, max(ends)),) if ends else ()


def _worker_threads(spans: Spans) -> set[int | str]:
    """gloo's own threads; send and recv are annotated on the thread that called them."""
    return {worker.thread for mine in spans.workers for worker in mine} - {span.thread for span in spans.calls}


def _name_groups(spans: Spans, calls: tuple[Call, ...]) -> tuple[list[Call], Finding | None]:
    """Say which process group each call belongs to, which gloo recordings leave out.

    Each group has its own worker threads, two of them, started when it is made (ProcessGroupGloo.cpp), so thread
    numbers in ascending pairs are the groups in the order they were made.
    """
    if not spans.groups or all(call.group for call in calls):
        return list(calls), None
    threads = sorted(_worker_threads(spans), key=int)
    default = spans.groups[0]
    if len(threads) == 2 * len(spans.groups):
        of_thread = {thread: spans.groups[index // 2] for index, thread in enumerate(threads)}
        text = "process groups were told apart by their worker threads; gloo recordings do not name them"
        finding = Finding("assumed-group", text, "info") if len(spans.groups) > 1 else None
    elif len(spans.groups) == 1 or len(threads) in (1, 2):
        of_thread = {}
        text = f"gloo recordings name no groups, and one pair of workers was busy: taken as group {default!r}"
        finding = Finding("assumed-group", text, "info") if len(spans.groups) > 1 else None
    else:
        of_thread = {}
        text = (
            f"{len(threads)} worker threads serve {len(spans.groups)} process groups: which call is whose can't be told"
        )
        finding = Finding("group-unknown", text, "error", replayable=False)
    named = []
    for call, mine in zip(calls, spans.workers, strict=True):
        served = Counter(of_thread[w.thread] for w in mine if w.thread in of_thread)
        named.append(call if call.group else replace(call, group=max(served, default=default)))
    return named, finding
