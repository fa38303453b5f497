"""What NCCL and RCCL write with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,COLL: a line for each call and each communicator.

    host:4100:4121 [0] NCCL INFO ncclCommInitRank comm 0x5a1 rank 0 nranks 2 cudaDev 0 ... commId 0x9c3f - Init COMPLETE
    host:4100:4121 [0] NCCL INFO AllReduce: opCount 1a sendbuff 0x7f recvbuff 0x7f count 8 datatype 7 op 0 root 0 comm 0x5a1
        [nranks=2] stream 0x5b2

Layouts: NCCL src/enqueue.cc and src/init.cc; RCCL appends `task N globalrank N`, which is the rank in the communicator. opCount
is hexadecimal and goes up by one a launch, so calls that share it are of one ncclGroup. Send and Recv give the peer as root;
counts are those of nccl.h. Lines have a time only where NCCL_DEBUG_TIMESTAMP_FORMAT and _LEVELS ask for it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby, pairwise

from traces.counted import counted
from traces.errors import TraceError
from traces.files import Opened
from traces.program import (
    ROOTED,
    Collective,
    CollectiveKind,
    Compute,
    DType,
    Finding,
    Group,
    Op,
    Origin,
    Program,
    Recv,
    Send,
    StepMark,
    Trace,
    Wait,
)

NAME = "nccl-log"
MAX_RANKS = 1 << 16

_INFO = b"NCCL INFO "
_HEAD_BYTES, _LINE_BYTES = 300, 1000  # before and behind `NCCL INFO`
_HEAD = re.compile(
    rb"(?:\[(?P<at>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,9})?)\] ?)?"
    rb"(?P<host>[^\s:\[\]]{1,255}):(?P<pid>\d{1,10}):\d{1,10} \[(?P<gpu>\d{1,4})\] $"
)
_CALL = re.compile(
    rb"(?P<name>\w{1,40}): opCount (?P<launch>[0-9a-f]{1,16}) sendbuff \S+ recvbuff \S+ count (?P<count>\d{1,18})"
    rb" datatype (?P<dtype>\d{1,3}) op (?P<reduce>\d{1,20}) root (?P<root>-?\d{1,9}) comm (?P<comm>\S+)"
    rb" \[nranks=(?P<size>\d{1,9})\] stream \S+(?: task \d+ globalrank (?P<rank>\d{1,9}))?\s*$"
)
_STARTS_CALL = re.compile(rb"\w{1,40}: opCount ")
_INIT = re.compile(
    rb"comm (?P<comm>\S+) rank (?P<rank>\d{1,9}) nranks (?P<size>\d{1,9}) cudaDev (?P<gpu>\d{1,4})"
    rb"[^\n]*?(?:commId (?P<id>0x[0-9a-f]+) )?- Init (?:START|COMPLETE)"
)
_KINDS: Mapping[str, CollectiveKind | None] = {
    "AllReduce": CollectiveKind.ALL_REDUCE,
    "AllGather": CollectiveKind.ALL_GATHER,
    "ReduceScatter": CollectiveKind.REDUCE_SCATTER,
    "Broadcast": CollectiveKind.BROADCAST,
    "Reduce": CollectiveKind.REDUCE,
    "Gather": CollectiveKind.GATHER,
    "Scatter": CollectiveKind.SCATTER,
    "AlltoAll": CollectiveKind.ALL_TO_ALL,
    "AllToAll": CollectiveKind.ALL_TO_ALL,
    "Send": None,
    "Recv": None,
}
# ncclDataType_t and ncclRedOp_t (nccl.h); unsigned types are as wide as the signed ones.
_DTYPES = (
    *(DType.INT8, DType.UINT8, DType.INT32, DType.INT32, DType.INT64, DType.INT64),
    *(DType.FLOAT16, DType.FLOAT32, DType.FLOAT64, DType.BFLOAT16, DType.FLOAT8, DType.FLOAT8),
)
_REDUCES = ("sum", "product", "max", "min", "avg")


def sniff(head: bytes) -> bool:
    """Whether a file that starts with `head` is a log of NCCL or RCCL."""
    at = head.find(_INFO)
    return at >= 0 and _HEAD.search(head[max(0, at - _HEAD_BYTES) : at]) is not None


@dataclass(frozen=True, slots=True, order=True)
class _Device:
    """One GPU of one process, which is one rank."""

    host: str
    gpu: int
    pid: int


@dataclass(frozen=True, slots=True)
class _Communicator:
    """A communicator as one of its ranks knows it. `rank` is -1 and `id` "" where no line says them."""

    id: str
    size: int
    rank: int


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of one device. `at` is in ns since the epoch, -1 where the line has no time that is finer than a second."""

    place: str
    file: str
    name: str
    launch: int
    count: int
    dtype: DType
    reduce_op: str
    root: int
    of: _Communicator
    at: int
    source: int

    def error(self, message: str, mend: str = "") -> TraceError:
        return TraceError(message, file=self.file, place=self.place, mend=mend)


def read(files: Sequence[Opened]) -> Trace:
    """The job in these logs, of one process each or of many. Raises TraceError naming the line that is wrong."""
    reader = _Reader()
    for source, file in enumerate(files):
        reader.read(file, source)
    if not reader.calls:
        text = "no call of a communicator is in the log"
        raise TraceError(text, file=files[0].name, mend="run with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL")
    job = _Job(reader.calls, reader.seen)
    programs = {job.rank_of[device]: job.program(device) for device in reader.calls}
    said = [*counted(sorted(job.said.items()), _SAID)]
    timed = all(call.at >= 0 for calls in reader.calls.values() for call in calls)
    said += [_ENQUEUED if timed else _UNTIMED, *(reader.findings), *job.findings]
    return Trace(
        world_size=job.world_size,
        groups=tuple(job.groups.values()),
        programs=dict(sorted(programs.items())),
        step_count=1,
        findings=tuple(said),
        hosts={job.rank_of[device]: device.host for device in reader.calls},
    )


_SAID = {
    "alone": "operations are of communicators of one rank, or messages to oneself, which move nothing; left out",
    "assumed-reduce-op": "reductions have an operation that the job made itself; sum was taken",
    "assumed-wait": "operations: the log does not say where the job waits; each ends before the next launch",
}
_UNTIMED = Finding(
    "no-timestamps", "operations were logged without times below a second: there is no compute between them"
)
_ENQUEUED = Finding("assumed-compute", "times are of calls, not of the GPU: what is between two is taken for compute")


class _Reader:
    """Calls by device, in the order of the log. `seen`: each rank of a communicator that a line names."""

    def __init__(self) -> None:
        self.calls: dict[_Device, list[_Call]] = {}
        self.seen: dict[_Communicator, _Device] = {}
        self.findings: list[Finding] = []
        self._known: dict[tuple[str, int, bytes], tuple[_Communicator, int]] = {}  # (host, pid, pointer) -> it, its GPU

    def read(self, file: Opened, source: int) -> None:
        data, number, counted = file.data, 1, 0
        for at in _places(data):
            number, counted = number + data.count(b"\n", counted, at), at
            start = max(data.rfind(b"\n", 0, at) + 1, at - _HEAD_BYTES)
            head = _HEAD.search(data[start:at])
            end = data.find(b"\n", at, at + _LINE_BYTES)
            text = data[at + len(_INFO) : end if end >= 0 else at + _LINE_BYTES]
            if call := _CALL.match(text):
                if head is None:
                    raise self._damaged(file, number)
                self._call(head, call, f"line {number}", file, source)
            elif _STARTS_CALL.match(text):
                if data.find(b"\n", at) >= 0:
                    raise self._damaged(file, number)
                self.findings.append(Finding("cut-line", f"{file.name} ends inside a line; that call was left out"))
            elif head is not None and (init := _INIT.search(text)):
                self._init(head, init, file, number)

    def _damaged(self, file: Opened, number: int) -> TraceError:
        mend = "let each process write a file of its own: NCCL_DEBUG_FILE=nccl.%h.%p.txt"
        return TraceError("a call is damaged", file=file.name, place=f"line {number}", mend=mend)

    def _init(self, head: re.Match[bytes], init: re.Match[bytes], file: Opened, number: int) -> None:
        size, rank, gpu = int(init["size"]), int(init["rank"]), int(init["gpu"])
        if not rank < size <= MAX_RANKS:
            text = f"rank {rank} of {size} in a communicator"
            raise TraceError(text, file=file.name, place=f"line {number}", mend=f"at most {MAX_RANKS} ranks")
        device = _Device(head["host"].decode("ascii", "replace"), gpu, int(head["pid"]))
        known = _Communicator((init["id"] or b"").decode(), size, rank)
        self._known[device.host, device.pid, init["comm"]] = known, gpu
        if known.id and self.seen.setdefault(known, device) != device:
            text = f"rank {rank} of communicator {known.id} is another process, too"
            raise TraceError(text, file=file.name, place=f"line {number}", mend="give the logs of one run")

    def _call(self, head: re.Match[bytes], call: re.Match[bytes], place: str, file: Opened, source: int) -> None:
        name, dtype, size = call["name"].decode(), int(call["dtype"]), int(call["size"])
        if name not in _KINDS:
            raise TraceError(
                f"unknown operation {name!r}", file=file.name, place=place, mend=f"known: {', '.join(_KINDS)}"
            )
        if dtype >= len(_DTYPES):
            raise TraceError(f"no datatype has the number {dtype}", file=file.name, place=place)
        if not 0 < size <= MAX_RANKS:
            raise TraceError(f"a communicator of {size} ranks", file=file.name, place=place, mend=f"1 to {MAX_RANKS}")
        host, pid, gpu = head["host"].decode("ascii", "replace"), int(head["pid"]), int(head["gpu"])
        unsaid = _Communicator("", size, int(call["rank"] or -1)), gpu
        of, gpu = self._known.get((host, pid, call["comm"]), unsaid)
        if of.size != size:
            raise TraceError(f"nranks is {size} here, {of.size} at Init", file=file.name, place=place)
        reduce = int(call["reduce"])
        self.calls.setdefault(_Device(host, gpu, pid), []).append(
            _Call(
                place=place,
                file=file.name,
                name=name,
                launch=int(call["launch"], 16),
                count=int(call["count"]),
                dtype=_DTYPES[dtype],
                reduce_op=_REDUCES[reduce] if reduce < len(_REDUCES) else "",
                root=int(call["root"]),
                of=of,
                at=_ns(head["at"], file.name, place),
                source=source,
            )
        )


def _places(data: bytes) -> Iterator[int]:
    at = data.find(_INFO)
    while at >= 0:
        yield at
        at = data.find(_INFO, at + 1)


def _ns(text: bytes | None, file: str, place: str) -> int:
    if text is None or b"." not in text:
        return -1
    whole, _, part = text.decode().partition(".")
    try:
        moment = datetime.fromisoformat(whole).replace(tzinfo=UTC)
    except ValueError as error:
        raise TraceError(f"{whole!r} is no time", file=file, place=place) from error
    return int(moment.timestamp()) * 10**9 + int(part.ljust(9, "0"))


class _Job:
    """Who is which rank, and which ranks are in which communicator."""

    def __init__(self, calls: Mapping[_Device, list[_Call]], seen: Mapping[_Communicator, _Device]) -> None:
        self._calls = calls
        self._members: dict[tuple[str, int], dict[int, _Device]] = {}
        for known, device in seen.items():
            self._members.setdefault((known.id, known.size), {})[known.rank] = device
        self.findings: list[Finding] = []
        self.said: Counter[str] = Counter()
        self._world = next((key for key in self._by_size() if set(calls) <= set(self._members[key].values())), ("", 0))
        self.rank_of = self._ranks()
        self.world_size = self._world[1] or len(calls)
        self.groups: dict[tuple[str, int], Group] = {}
        self._group(self._world, next(iter(calls.values()))[0])

    def _by_size(self) -> list[tuple[str, int]]:
        return sorted(self._members, key=lambda key: -key[1])

    def _ranks(self) -> dict[_Device, int]:
        """As the communicator that holds all says; as RCCL's lines say of one that has as many ranks; else by name."""
        if self._world[1]:
            return {device: rank for rank, device in self._members[self._world].items()}
        said = {d: {c.of.rank for c in own if c.of.size == len(self._calls)} for d, own in self._calls.items()}
        if {rank for ranks in said.values() for rank in ranks} == set(range(len(said))) and all(
            map(_is_one, said.values())
        ):
            return {device: ranks.pop() for device, ranks in said.items()}
        text = "no communicator in the log holds all processes; ranks were numbered by host, GPU and process"
        self.findings.append(Finding("assumed-rank", text, "warning" if len(self._calls) > 1 else "info"))
        return {device: rank for rank, device in enumerate(sorted(self._calls))}

    def _group(self, key: tuple[str, int], call: _Call) -> Group:
        """The group of a communicator, whose ranks are in its own order."""
        key = self._world if key[1] == self.world_size and not key[0] else key
        if key in self.groups:
            return self.groups[key]
        members = self._members.get(key, {})
        if key == self._world:
            ranks = tuple(range(self.world_size))
        elif len(members) == key[1]:
            ranks = tuple(self.rank_of.get(members[place], -1) for place in range(key[1]))
        else:
            ranks = ()
        if not ranks or -1 in ranks:
            mend = "log with NCCL_DEBUG_SUBSYS=INIT,COLL, and give the logs of all processes"
            raise call.error(f"no line says which {key[1]} processes are in this communicator", mend)
        name = key[0] or "world"
        self.groups[key] = Group(len(self.groups), name, ranks, len(self.groups))
        return self.groups[key]

    def program(self, device: _Device) -> Program:
        calls = self._calls[device]
        ops: list[Op] = []
        launches = [list(same) for _, same in groupby(calls, key=lambda call: (call.of, call.launch))]
        timed = all(call.at >= 0 for call in calls)
        for before, launch in pairwise([[], *launches]):
            if timed and before and launch[0].at > before[-1].at:
                ops.append(Compute(launch[0].at - before[-1].at))
            started = [op for call in launch for op in self._started(call, device)]
            first = len(ops)
            ops += [*started, *(Wait(first + place, op.origin) for place, op in enumerate(started))]
        return Program(self.rank_of[device], (*ops, StepMark(0)))

    def _started(self, call: _Call, device: _Device) -> list[Collective | Send | Recv]:
        if call.of.size == 1:
            self.said["alone"] += 1
            return []
        group = self._group((call.of.id, call.of.size), call)
        kind, origin = _KINDS[call.name], Origin(call.source, -1, call.at, -1)
        peer = -1
        if kind is None or kind in ROOTED:
            if not 0 <= call.root < call.of.size:
                raise call.error(f"root {call.root} of a communicator of {call.of.size} ranks")
            peer = group.ranks[call.root]
        self.said["assumed-wait"] += 1
        if kind is None:
            if peer == self.rank_of[device]:
                self.said["alone"] += 1
                return []
            way = Send if call.name == "Send" else Recv
            return [way(peer, call.count, call.dtype, group=group.id, name=call.name, origin=origin)]
        if kind in _REDUCING and not call.reduce_op:
            self.said["assumed-reduce-op"] += 1
        count = call.count * call.of.size if kind is CollectiveKind.ALL_TO_ALL else call.count
        return [
            Collective(kind, group.id, count, call.dtype, peer, call.reduce_op or "sum", name=call.name, origin=origin)
        ]


_REDUCING = {CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE, CollectiveKind.REDUCE_SCATTER}


def _is_one(ranks: set[int]) -> bool:
    return len(ranks) == 1
