"""NCCL Inspector's files: a line of JSON for each operation of one process that has ended.

    {"header": {"id": "0x9e", "rank": 0, "n_ranks": 2, "nnodes": 1}, "metadata": {"hostname": "a", "pid": 7, ...},
     "coll_perf": {"coll": "AllReduce", "coll_sn": 5, "coll_msg_size_bytes": 65536, "coll_exec_time_us": 110, ...}}

Fields: NCCL plugins/profiler/inspector (format 4.0 to 4.2). `rank` is the one in the communicator `id`. Sizes are count x element:
what one rank gives (all_gather) or gets (reduce_scatter); Inspector's README has a reduce_scatter of 65,536 bytes on 32 ranks
in 110 us at 19.07 GB/s. Types, roots and reductions are not told. Verbose files say when kernels ran (us), by the host's clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Annotated

import msgspec

from traces import clocks
from traces.counted import counted
from traces.errors import TraceError
from traces.files import Opened
from traces.program import CollectiveKind, DType, Finding, Group, Program, Trace
from traces.pytorch.calls import Call, CallKind
from traces.recording import TimedCall, Timeline
from traces.timeline import program, untimed

NAME = "nccl-inspector"
MAX_RANKS = 1 << 16
SMALLEST_BYTES = 8192  # Inspector leaves out what is smaller, unless told otherwise

_KINDS: Mapping[str, CallKind] = {
    "AllReduce": CollectiveKind.ALL_REDUCE,
    "AllGather": CollectiveKind.ALL_GATHER,
    "ReduceScatter": CollectiveKind.REDUCE_SCATTER,
    "Broadcast": CollectiveKind.BROADCAST,
    "Reduce": CollectiveKind.REDUCE,
    "Send": "send",
    "Recv": "recv",
}
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]
_Rank = Annotated[int, msgspec.Meta(ge=0, lt=MAX_RANKS)]


class _Header(msgspec.Struct, frozen=True):
    id: str
    rank: _Rank
    n_ranks: Annotated[int, msgspec.Meta(gt=0, le=MAX_RANKS)]


class _Metadata(msgspec.Struct, frozen=True):
    hostname: str = ""
    pid: int = 0


class _Kernel(msgspec.Struct, frozen=True):
    kernel_start_ts: _Count = 0
    kernel_stop_ts: _Count = 0


class _Times(msgspec.Struct, frozen=True):
    coll_start_ts: _Count = 0
    kernel_events: list[_Kernel] = []


class _Collective(msgspec.Struct, frozen=True):
    coll: str
    coll_msg_size_bytes: _Count
    coll_exec_time_us: _Count = 0
    event_trace_ts: _Times = _Times()


class _Message(msgspec.Struct, frozen=True):
    p2p: str
    p2p_peer: _Rank
    p2p_msg_size_bytes: _Count
    p2p_exec_time_us: _Count = 0


class _Line(msgspec.Struct, frozen=True):
    header: _Header
    metadata: _Metadata = _Metadata()
    coll_perf: _Collective | None = None
    p2p_perf: _Message | None = None


def sniff(head: bytes) -> bool:
    """Whether a file that starts with `head` is Inspector's."""
    first = head.lstrip()[:2000]
    return first.startswith(b'{"header"') and (b'"coll_perf"' in first or b'"p2p_perf"' in first)


@dataclass(frozen=True, slots=True)
class _Event:
    """An operation, and when it ran (us; 0, 0 where it is not told)."""

    call: Call
    start_us: int
    end_us: int
    source: int


@dataclass(frozen=True, slots=True)
class _Process:
    host: str
    pid: int
    file: str


def read(files: Sequence[Opened]) -> Trace:
    """The job whose processes wrote these files. Raises TraceError naming the line that is wrong."""
    reader = _Reader()
    for source, file in enumerate(files):
        reader.read(file, source)
    if not reader.events:
        raise TraceError("no operation is in the file", file=files[0].name)
    ranks, size, members = reader.world()
    groups = _groups(members, ranks, size, files[0].name)
    findings = dict.fromkeys(reader.findings())
    programs: dict[int, Program] = {}
    for process, events in reader.events.items():
        programs[ranks[process]], said = _program(events, ranks[process], groups)
        findings |= dict.fromkeys(said)
    hosts = {rank: process.host for process, rank in ranks.items() if process in reader.events}
    aligned = clocks.align({rank: programs[rank] for rank in sorted(programs)}, hosts)
    return Trace(
        world_size=size,
        groups=tuple(groups.values()),
        programs=aligned.programs,
        step_count=1,
        findings=(*findings, *aligned.findings),
        hosts=hosts,
        clock_residual_ns=aligned.after_ns,
    )


class _Reader:
    def __init__(self) -> None:
        self.events: dict[_Process, list[_Event]] = {}
        self._said: Counter[str] = Counter()
        self._members: dict[tuple[str, int], dict[int, _Process]] = {}
        self._smallest = 1 << 62

    def read(self, file: Opened, source: int) -> None:
        decoder = msgspec.json.Decoder(_Line)
        lines = file.data.splitlines()
        for number, text in enumerate(lines, 1):
            if not text.strip():
                continue
            try:
                line = decoder.decode(text)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                if number == len(lines) and number > 1 and not file.data.endswith(b"\n"):
                    self._said["cut-line"] += 1
                    return
                raise TraceError(f"not a record: {error}", file=file.name, place=f"line {number}") from error
            self._take(line, file.name, source, f"line {number}")

    def _take(self, line: _Line, file: str, source: int, place: str) -> None:
        header, coll, message = line.header, line.coll_perf, line.p2p_perf
        process = _Process(line.metadata.hostname, line.metadata.pid, file)
        if header.rank >= header.n_ranks:
            raise TraceError(f"rank {header.rank} of {header.n_ranks}", file=file, place=place)
        members = self._members.setdefault((header.id, header.n_ranks), {})
        if members.setdefault(header.rank, process) != process:
            raise TraceError(
                f"rank {header.rank} of communicator {header.id} wrote another file, too", file=file, place=place
            )
        name, size, took, peer = "", 0, 0, -1
        if coll is not None:
            name, size, took, peer = coll.coll, coll.coll_msg_size_bytes, coll.coll_exec_time_us, peer
        elif message is not None:
            name, size, took, peer = message.p2p, message.p2p_msg_size_bytes, message.p2p_exec_time_us, message.p2p_peer
        if coll is None and (message is None or peer == header.rank):
            self._said["skipped-line"] += 1
            return
        if peer >= header.n_ranks:
            raise TraceError(f"peer {peer} of {header.n_ranks} ranks", file=file, place=place)
        if name not in _KINDS:
            raise TraceError(f"operation {name[:40]!r}", file=file, place=place, mend=f"known: {', '.join(_KINDS)}")
        self._smallest = min(self._smallest, size)
        kernels = coll.event_trace_ts.kernel_events if coll is not None else []
        start = min((k.kernel_start_ts for k in kernels), default=coll.event_trace_ts.coll_start_ts if coll else 0)
        end = max(max((k.kernel_stop_ts for k in kernels), default=start + took), start)
        call = Call(
            kind=_KINDS[name],
            name=name,
            count=size,
            dtype=DType.UINT8,
            group=f"{header.id}/{header.n_ranks}",
            group_size=header.n_ranks,
            peer=peer,
        )
        self.events.setdefault(process, []).append(_Event(call, start, end if start else 0, source))

    def findings(self) -> list[Finding]:
        found = [*counted(sorted(self._said.items()), _SAID)]
        if self._smallest >= SMALLEST_BYTES:
            found.append(Finding("small-left-out", _SMALL))
        return [
            *found,
            Finding(
                "assumed-type", "types and reductions are not recorded: sizes in bytes, and sum, were taken", "info"
            ),
        ]

    def world(self) -> tuple[dict[_Process, int], int, Mapping[tuple[str, int], Mapping[int, _Process]]]:
        """The rank of each process, how many there are, and who is in which communicator."""
        everyone = set(self.events)
        for key in sorted(self._members, key=lambda key: -key[1]):
            if everyone <= set(self._members[key].values()):
                ranks = {process: rank for rank, process in self._members[key].items()}
                if len(ranks) < len(self._members[key]):
                    raise TraceError(
                        f"two ranks of communicator {key[0]} are of one process: which operation is whose can't be told",
                        file=next(iter(everyone)).file,
                        mend="run one process a GPU",
                    )
                return ranks, key[1], self._members
        mend = "give the files of a run that uses the group of all ranks"
        raise TraceError(
            "no communicator holds all processes, so ranks can't be told", file=next(iter(everyone)).file, mend=mend
        )


_SMALL = f"no operation below {SMALLEST_BYTES} bytes is there: Inspector leaves those out unless it is told otherwise"
_SAID = {
    "cut-line": "files end inside a line; that operation was left out",
    "skipped-line": "lines hold nothing that moves between ranks; left out",
}


def _groups(
    members: Mapping[tuple[str, int], Mapping[int, _Process]], ranks: Mapping[_Process, int], size: int, file: str
) -> dict[str, Group]:
    groups: dict[str, Group] = {}
    everyone = tuple(range(size))
    for (name, n_ranks), own in members.items():
        if n_ranks == size:
            who = everyone
        elif len(own) == n_ranks:
            who = tuple(ranks.get(own[place], -1) for place in range(n_ranks))
        else:
            text = f"{len(own)} of the {n_ranks} ranks of communicator {name[:40]} are here"
            raise TraceError(text, file=file, mend="give the files of all processes")
        groups[f"{name}/{n_ranks}"] = Group(len(groups), name, who, len(groups))
    return groups


def _program(events: Sequence[_Event], rank: int, groups: Mapping[str, Group]) -> tuple[Program, list[Finding]]:
    """With times, a rank waits for an operation before it starts the first that begins after its end; else at once."""
    source = events[0].source
    if not all(event.start_us for event in events):
        made, said = untimed(tuple(_waited([event.call for event in events])), rank, groups, source=source)
        return made, [
            *said,
            Finding("assumed-order", "operations are in the order of the file, each waited for at once", "info"),
        ]
    ordered = sorted(events, key=lambda event: event.start_us)
    starts = [event.start_us for event in ordered]
    timed = []
    for index, event in enumerate(ordered):
        last = max(index, bisect_left(starts, event.end_us) - 1)
        timed.append(TimedCall(event.call, event.start_us * 1000, event.end_us * 1000, ordered[last].start_us * 1000))
    end = max(event.end_us for event in ordered) * 1000
    made, said = program(Timeline(ordered[0].start_us * 1000, ((0, end),), tuple(timed)), rank, groups, source=source)
    return made, [
        *said,
        Finding("assumed-wait", "ranks were taken to wait for an operation once they start nothing more", "info"),
    ]


def _waited(calls: Sequence[Call]) -> Iterator[Call]:
    """Calls with their waits: each collective's behind it, and those of messages behind the last that follow each other."""
    for (is_message, _), same in groupby(calls, key=lambda call: (call.peer >= 0, call.group)):
        run = list(same)
        if not is_message:
            yield from (replace(call, is_async=False) for call in run)
            continue
        yield from (replace(call, seq=number) for number, call in enumerate(run))
        yield from (Call("wait", "wait", seq=number) for number in reversed(range(len(run))))
