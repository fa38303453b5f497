"""Dumps of PyTorch's flight recorder (JSON, or pickles of plain containers): what one rank enqueued last, and when.

Layout: torch/csrc/distributed/c10d/FlightRecorder.hpp. It holds neither splits, roots nor reductions, and no waits.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from functools import partial
from math import prod
from typing import Any

import msgspec

from traces import plain_pickle
from traces.errors import TraceError
from traces.program import CollectiveKind, Finding
from traces.pytorch.calls import COMMS_NAMES, UNKNOWN, Call, CallKind, dtype_of, unknown_operations
from traces.recording import GroupInfo, Recording, TimedCall, Timeline

NAME = "flight-recorder"

_PICKLE = b"\x80"
_KEYS = (b"record_id", b"profiling_name", b"comm_lib_version", b"nccl_comm_state", b"pg_config")
_P2P = re.compile(r"(send|recv) (\d+)(?:->|<-)(\d+)$")
_OWN_NAMES: dict[str, CallKind] = {
    "all_gather_base": CollectiveKind.ALL_GATHER,
    "reduce_scatter_base": CollectiveKind.REDUCE_SCATTER,
    "all_reduce_coalesced": CollectiveKind.ALL_REDUCE,
    "all_reduce_barrier": CollectiveKind.BARRIER,
}
_RECEIVES = (CollectiveKind.REDUCE_SCATTER, CollectiveKind.SCATTER, "recv")


class _Entry(msgspec.Struct, frozen=True):
    """Times are ns since the epoch, 0 or None where the recorder had none."""

    profiling_name: str
    record_id: int = UNKNOWN
    process_group: list[str] = []
    collective_seq_id: int = UNKNOWN
    input_sizes: list[list[int]] = []
    output_sizes: list[list[int]] = []
    input_dtypes: list[str] = []
    output_dtypes: list[str] = []
    time_created_ns: int = 0
    time_discovered_started_ns: int | None = None
    time_discovered_completed_ns: int | None = None
    duration_ms: float | None = None


class _Dump(msgspec.Struct, frozen=True):
    entries: list[_Entry]
    pg_config: dict[str, Any] = {}


def sniff(head: bytes) -> bool:
    """Whether a file that starts with `head` (the first few KB) is a flight recorder's dump."""
    if head.startswith(_PICKLE):
        return any(key in head for key in _KEYS)
    return (
        head.lstrip().startswith(b"{") and b'"traceEvents"' not in head and any(b'"%s"' % key in head for key in _KEYS)
    )


def read(data: bytes, file: str) -> Recording:
    """Decode one rank's dump. Raises TraceError naming `file` and what is wrong."""
    try:
        if data.startswith(_PICKLE):
            dump = msgspec.convert(plain_pickle.loads(data), type=_Dump, strict=False)
        else:
            dump = msgspec.json.decode(data, type=_Dump, strict=False)
    except (ValueError, RecursionError, OverflowError) as error:
        raise TraceError(f"not a flight recorder's dump: {error}", file=file, place=f"{len(data)} bytes") from error
    entries = sorted(dump.entries, key=lambda entry: entry.record_id)
    calls: list[Call] = []
    times: list[tuple[int, int]] = []
    unknown: list[str] = []
    for entry in entries:
        call = _call(entry, file)
        if call is not None:
            calls.append(call)
            times.append((entry.time_created_ns, _end(entry)))
        elif not entry.profiling_name.endswith(":coalesced"):
            unknown.append(entry.profiling_name)
    lost = entries[0].record_id if entries else 0
    return Recording(
        file=file,
        format=NAME,
        groups=_groups(dump),
        calls=tuple(calls),
        timeline=partial(_timeline, times),
        findings=(*_findings(lost), *unknown_operations(unknown)),
    )


def _findings(lost: int) -> tuple[Finding, ...]:
    found = [Finding("assumed-splits", "flight recorders keep no splits and reductions: equal, and sum", "info")]
    if lost > 0:
        found.append(Finding("ring-overwritten", f"{lost} operations before these fell out of the recorder's ring"))
    return tuple(found)


def _call(entry: _Entry, file: str) -> Call | None:
    name = entry.profiling_name.partition(":")[2]
    p2p = _P2P.match(name)
    kind: CallKind | None
    if p2p is not None:
        kind = "send" if p2p.group(1) == "send" else "recv"
    else:
        kind = _OWN_NAMES.get(name) or COMMS_NAMES.get(name)
    if kind is None or kind == "wait":
        return None
    sizes, types = entry.input_sizes, entry.input_dtypes
    if kind in _RECEIVES:
        sizes, types = entry.output_sizes, entry.output_dtypes
    if any(size < 0 for shape in sizes for size in shape):
        raise TraceError("a negative size", file=file, place=f"record {entry.record_id}")
    return Call(
        kind=kind,
        name=entry.profiling_name,
        count=0 if kind is CollectiveKind.BARRIER else sum(prod(shape) for shape in sizes) if sizes else UNKNOWN,
        dtype=dtype_of(types[0]) if types else None,
        group=entry.process_group[0] if entry.process_group else "",
        peer=int(p2p.group(3)) if p2p else UNKNOWN,  # the names give ranks within the group
        seq=entry.collective_seq_id,
    )


def _end(entry: _Entry) -> int:
    """When it had ended, in ns: as measured, else as the recorder's watchdog saw it; UNKNOWN where neither did."""
    if entry.duration_ms is not None and entry.time_discovered_started_ns:
        return entry.time_discovered_started_ns + round(entry.duration_ms * 1e6)
    return entry.time_discovered_completed_ns or UNKNOWN


def _groups(dump: _Dump) -> tuple[GroupInfo, ...]:
    """The groups that calls are of and whose ranks are listed; gloo's list has no names, and wrong ranks."""
    used = {entry.process_group[0]: entry.process_group[-1] for entry in dump.entries if entry.process_group}
    found = []
    for name, described in used.items():
        config = dump.pg_config.get(name)
        listed = str(config.get("ranks", "")) if isinstance(config, dict) else ""
        ranks = tuple(int(rank[:9]) for rank in re.findall(r"\d+", listed))
        if ranks and "..." not in listed:
            found.append(GroupInfo(name, described, ranks))
    return tuple(found)


def _timeline(times: list[tuple[int, int]], calls: tuple[Call, ...]) -> Timeline:
    """Place `calls` in time: one step, from the first call to the last end.

    The dump does not say where the rank waited. It did not before it made the last call that lies before the
    operation's end, so the wait is put there.
    """
    created = sorted(moment for moment, _ in times)
    placed = []
    lost = 0
    for call, (moment, end) in zip(calls, times, strict=True):
        lost += end == UNKNOWN
        last = created[bisect_left(created, end) - 1] if end > moment else moment
        placed.append(TimedCall(call, moment, end if end >= moment else UNKNOWN, max(last, moment)))
    found = [
        Finding("assumed-wait", "flight recorders keep no waits; each was put where it could have been", "info"),
    ]
    if lost:
        found.append(
            Finding("end-lost", f"{lost} operations have no recorded end; no waiting was taken out", "warning")
        )
    last_moment = max([moment for pair in times for moment in pair], default=0)
    return Timeline(created[0] if created else 0, ((0, last_moment),), tuple(placed), tuple(found))
