"""PARAM's "basic" communication traces (`rank-N.json`): each rank a list of calls, which PARAM's comms replay makes again.

    [{"comms": "init", "pg_id": 0, "global_ranks": [0, 1], "req": -1},
     {"comms": "all_reduce", "req": 7, "pg_id": 0, "in_msg_size": 64, "out_msg_size": 64, "dtype": "float32", "startTime_ns": 5},
     {"comms": "wait", "req": 7, "startTime_ns": 9}]

Fields: facebookresearch/param train/comms/pt/commsTraceParser.py and comms_utils.py. Sizes are in elements; ranks are global. No
public file was found, so the reader is built after the parser there and tested with files that we wrote.

The format has no moment at which a wait ended and no lengths of computations: what lies behind a wait may be waiting, so none of
it is taken for compute. Files of ours say with a marker that their times have no waiting in them, and end a step with a
computation that is done 0 times.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from traces.counted import counted
from traces.errors import TraceError
from traces.files import Opened
from traces.graph import one_step
from traces.program import (
    ROOTED,
    Collective,
    CollectiveKind,
    Communication,
    Compute,
    DType,
    Finding,
    Group,
    Op,
    Program,
    Recv,
    Send,
    Severity,
    StepMark,
    Trace,
    Wait,
)
from traces.pytorch.calls import MAX_RANKS, dtype_of

NAME = "param"

_SNIFF = re.compile(rb'\s*\[\s*\{[^{]*"(?:comms|compute)"\s*:\s*"')
_RANK = re.compile(r"rank[-_. ]?(\d{1,7})|(?:^|[-_.])(\d{1,7})\.json$")
_STEP = re.compile(r"step (\d{1,9}) ends$")
_NO_WAITING = "startTime_ns without waiting"
_EVERYONE = -1  # the pg_id of calls that name none

_K = CollectiveKind
_KINDS = {
    "allreduce": _K.ALL_REDUCE, "broadcast": _K.BROADCAST, "reduce": _K.REDUCE, "barrier": _K.BARRIER,
    "allgather": _K.ALL_GATHER, "allgatherbase": _K.ALL_GATHER, "gather": _K.GATHER, "scatter": _K.SCATTER,
    "reducescatter": _K.REDUCE_SCATTER, "reducescatterbase": _K.REDUCE_SCATTER,
    "alltoall": _K.ALL_TO_ALL, "alltoallv": _K.ALL_TO_ALL, "alltoallbase": _K.ALL_TO_ALL,
}  # fmt: skip
_SENDS = {"send", "isend"}
_RECEIVES = {"recv", "irecv", "recvanysource"}
_BY_OUTPUT = {_K.REDUCE_SCATTER, _K.SCATTER}  # whose count is what one rank gets
_GATHERING = {_K.ALL_GATHER, _K.GATHER}
_REDUCING = {_K.ALL_REDUCE, _K.REDUCE, _K.REDUCE_SCATTER}

_Natural = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_RankNumber = Annotated[int, msgspec.Meta(ge=0, lt=MAX_RANKS)]
_GroupNumber = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class _Row(msgspec.Struct, frozen=True):
    """`req` is a number, or a list that starts with it; `markers` is what the caller was doing, outermost first."""

    comms: str | None = None
    compute: str | None = None
    count: int | None = None
    req: Any = None
    markers: Any = None
    startTime_ns: _Natural | None = None  # noqa: N815
    world_size: _RankNumber | None = None
    pg_id: _GroupNumber | None = None
    global_ranks: tuple[_RankNumber, ...] | None = None
    root: int | None = None
    in_msg_size: _Natural | None = None
    out_msg_size: _Natural | None = None
    in_split: tuple[_Natural, ...] | None = None
    out_split: tuple[_Natural, ...] | None = None
    dtype: str | None = None
    src_rank: _RankNumber | None = None
    dst_rank: _RankNumber | None = None
    use_batch: bool | None = None

    @property
    def called(self) -> str:
        """The name as PARAM compares names: letters only."""
        return "".join(letter for letter in (self.comms or "").lower() if letter.isalpha())

    @property
    def number(self) -> int | None:
        first = self.req[0] if isinstance(self.req, list) and self.req else self.req
        return first if isinstance(first, int) else None

    @property
    def name(self) -> str:
        return str(self.markers[-1]) if isinstance(self.markers, list) and self.markers else ""


_Key = tuple[int, tuple[int, ...]]  # a group: its pg_id and ranks; two ranks may mean different groups by one pg_id


def sniff(head: bytes) -> bool:
    """Whether a file that starts with `head` is a list of PARAM's calls."""
    return _SNIFF.match(head) is not None


def read(files: Sequence[Opened]) -> Trace:
    """The job in these files, of one rank each. Raises TraceError naming the file and row that are wrong."""
    rows: dict[int, tuple[str, list[_Row]]] = {}
    for file in files:
        rank = _rank(file.name, alone=len(files) == 1)
        if rank in rows:
            raise TraceError(f"rank {rank} is given twice", file=file.name)
        rows[rank] = file.name, _decoded(file)
    world_size = max(rows) + 1
    for _, own in rows.values():
        for row in own:
            named = (*(row.global_ranks or ()), row.src_rank or 0, row.dst_rank or 0, (row.world_size or 1) - 1)
            world_size = max(world_size, max(named) + 1)
    everyone = tuple(range(world_size))
    said: Counter[str] = Counter()
    keys = {rank: _keys(rank, own, everyone) for rank, (_, own) in rows.items()}
    distinct = sorted({key for own in keys.values() for key in own.values()}, key=lambda key: (key[0] < 0, key))
    groups = {key: Group(number, str(max(key[0], 0)), key[1], number) for number, key in enumerate(distinct)}
    programs = {}
    for rank, (name, own) in sorted(rows.items()):
        reader = _Reader(name, rank, {pg_id: groups[key] for pg_id, key in keys[rank].items()}, said)
        programs[rank] = Program(rank, reader.ops(own))
    if not any(isinstance(op, Communication) for program in programs.values() for op in program.ops):
        raise TraceError("no rank communicates", file=files[0].name, mend="record it with its collectives")
    programs = one_step(programs)
    return Trace(
        world_size=world_size,
        groups=tuple(groups.values()),
        programs=programs,
        step_count=min(sum(isinstance(op, StepMark) for op in p.ops) for p in programs.values()),
        findings=counted(sorted(said.items()), _SAID),
    )


def _rank(name: str, *, alone: bool) -> int:
    found = _RANK.search(name)
    rank = int(found[1] or found[2]) if found else 0
    if (found is None and not alone) or rank >= MAX_RANKS:
        raise TraceError("which rank this is can't be told", file=name, mend="name it rank-N.json")
    return rank


def _decoded(file: Opened) -> list[_Row]:
    try:
        return msgspec.json.decode(file.data, type=list[_Row])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"not PARAM's calls: {error}", file=file.name, place=f"{len(file.data)} bytes") from error


def _keys(rank: int, rows: Sequence[_Row], everyone: tuple[int, ...]) -> dict[int, _Key]:
    """The groups that this rank is in, by pg_id: of the others its file may hold only a stand-in."""
    keys = {
        row.pg_id: (row.pg_id, row.global_ranks)
        for row in rows
        if row.pg_id is not None and row.global_ranks and rank in row.global_ranks
    }
    if any(row.comms and row.called not in ("init", "wait") and row.pg_id not in keys for row in rows):
        keys[_EVERYONE] = next((key for key in keys.values() if key[1] == everyone), (_EVERYONE, everyone))
    return keys


_SAID: dict[str, tuple[str, Severity]] = {
    "assumed-group": ("calls name a group whose ranks their file does not say; all ranks were taken", "warning"),
    "assumed-reduce-op": ("reductions have no recorded operation; sum was taken", "info"),
    "assumed-root": ("operations have no recorded root in their group; the group's first rank was taken", "info"),
    "dangling-wait": ("waits are for calls that the file does not hold; left out", "warning"),
    "no-sizes": ("operations have no recorded size", "error"),
    "no-timestamps": ("calls were recorded without times: there is no compute before them", "warning"),
    "untimed-compute": ("computations have shapes, no times; left out, but for the time between calls", "warning"),
    "wait-after-window": ("operations are not waited for in the recording; their waits were put at its end", "warning"),
    "waiting-or-compute": ("times behind a wait may be waiting or compute; they were taken for waiting", "warning"),
}


class _Reader:
    """One rank's rows to its operations. `groups`: by pg_id."""

    def __init__(self, file: str, rank: int, groups: Mapping[int, Group], said: Counter[str]) -> None:
        self._file = file
        self._rank = rank
        self._groups = groups
        self._said = said
        self._ops: list[Op] = []
        self._open: dict[int, None] = {}  # operations that nothing waited for yet
        self._asked: dict[int, list[int]] = {}  # by request: its operations
        self._batch: list[int] = []
        self._now: int | None = None
        self._waited = False  # whether the row before may have waited

    def ops(self, rows: Sequence[_Row]) -> tuple[Op, ...]:
        without_waiting = any(row.called == "init" and row.name == _NO_WAITING for row in rows)
        for number, row in enumerate(rows):
            try:
                self._pass(row, without_waiting)
                self._take(row)
            except ValueError as error:
                text = f"not a call of PARAM's: {error}"
                raise TraceError(text, file=self._file, place=f"row {number}") from error
        self._said["wait-after-window"] += len(self._open)
        end = len(self._ops) - (bool(self._ops) and isinstance(self._ops[-1], StepMark))
        self._ops[end:end] = [Wait(op) for op in self._open]
        return tuple(self._ops)

    def _pass(self, row: _Row, without_waiting: bool) -> None:
        """The time from the row before to this one."""
        if row.startTime_ns is None:
            self._said["no-timestamps"] += row.comms is not None and row.called != "init"
            return
        gap = row.startTime_ns - (row.startTime_ns if self._now is None else self._now)
        if self._waited and not without_waiting:
            self._said["waiting-or-compute"] += gap > 0
        elif gap > 0:
            self._ops.append(Compute(gap))
        self._now, self._waited = row.startTime_ns, False

    def _take(self, row: _Row) -> None:
        called = row.called
        if row.comms is None:
            step = _STEP.match(row.name)
            if row.compute is None:
                raise ValueError("expected comms or compute")
            if step and row.count == 0:
                self._ops.append(StepMark(int(step[1])))
            else:
                self._said["untimed-compute"] += 1
        elif called == "wait":
            waited = self._asked.pop(row.number, []) if row.number is not None else []
            self._said["dangling-wait"] += not waited
            self._wait(waited)
        elif called == "batchisendirecv":
            self._asked[-1 if row.number is None else row.number] = self._batch
            self._batch = []
        elif called != "init":
            self._start(row, called)

    def _start(self, row: _Row, called: str) -> None:
        index = len(self._ops)
        self._ops.append(self._operation(row, called))
        self._open[index] = None
        if row.use_batch:
            self._batch.append(index)
        if row.number is not None:
            self._asked[row.number] = [index]
        if called in ("send", "recv", "recvanysource"):
            self._wait([index])

    def _wait(self, operations: Sequence[int]) -> None:
        for index in operations:
            if index in self._open:
                del self._open[index]
                self._ops.append(Wait(index))
                self._waited = True

    def _operation(self, row: _Row, called: str) -> Communication:
        group = self._groups.get(_EVERYONE if row.pg_id is None else row.pg_id)
        if group is None:
            self._said["assumed-group"] += 1
            group = self._groups[_EVERYONE]
        if called in _SENDS or called in _RECEIVES:
            count, dtype = self._size(row, row.in_msg_size if called in _SENDS else row.out_msg_size)
            peer = row.dst_rank if called in _SENDS else row.src_rank
            if peer is None and called != "recvanysource":
                raise ValueError(f"{row.comms} without {'dst_rank' if called in _SENDS else 'src_rank'}")
            way = Send if called in _SENDS else Recv
            return way(-1 if peer is None else peer, count, dtype, group=group.id, name=row.name)
        if called not in _KINDS:
            raise ValueError(f"{row.comms!r} is no communication that is known here")
        kind = _KINDS[called]
        if kind is _K.BARRIER:
            return Collective(kind, group.id, 0, name=row.name)
        splits = (row.in_split or (), row.out_split or ()) if kind is _K.ALL_TO_ALL else ((), ())
        count, dtype = self._size(row, row.out_msg_size if kind in _BY_OUTPUT else row.in_msg_size)
        root = -1
        if kind in ROOTED:
            self._said["assumed-root"] += row.root not in group.ranks
            root = row.root if row.root is not None and row.root in group.ranks else group.ranks[0]
        self._said["assumed-reduce-op"] += kind in _REDUCING
        count = sum(splits[0]) or count
        return Collective(kind, group.id, count, dtype, root, "sum", *splits, row.name)

    def _size(self, row: _Row, count: int | None) -> tuple[int, DType]:
        if count is None or row.dtype is None:
            self._said["no-sizes"] += 1
            return 0, DType.UINT8
        dtype = DType(row.dtype.lower()) if row.dtype.lower() in {*DType} else dtype_of(row.dtype)
        if dtype is None:
            raise ValueError(f"dtype {row.dtype!r} is not known here")
        return count, dtype


_LOST = {
    "lost-lane": "groups share a lane; the format has none",
    "lost-reduce-op": "reductions are no sums; the format has no operation",
    "lost-tag": "messages have a tag; the format has none",
}


def write(trace: Trace) -> tuple[dict[str, bytes], tuple[Finding, ...]]:
    """The files by name, and what they do not say. `startTime_ns` is laid out by compute alone: nothing waits."""
    said: Counter[str] = Counter()
    said["lost-lane"] = len(trace.groups) - len({group.lane for group in trace.groups})
    groups = {group.id: group for group in trace.groups}
    start = [
        {
            "comms": "init", "req": -1, "pg_id": group.id, "global_ranks": group.ranks, "world_size": len(group.ranks),
            "startTime_ns": 0, "markers": [_NO_WAITING],
        }
        for group in trace.groups
    ]  # fmt: skip
    files = {}
    for rank, program in sorted(trace.programs.items()):
        rows: list[dict[str, object]] = [*start]
        now = 0
        for index, op in enumerate(program.ops):
            if isinstance(op, Compute):
                now += op.ns
            else:
                rows.append({**_written(op, index, rank, groups, said), "startTime_ns": now})
        files[f"rank-{rank}.json"] = b"[\n" + b",\n".join(map(msgspec.json.encode, rows)) + b"\n]\n"
    return files, counted(sorted(said.items()), _LOST)


def _written(
    op: Communication | Wait | StepMark, index: int, rank: int, groups: Mapping[int, Group], said: Counter[str]
) -> dict[str, object]:
    if isinstance(op, Wait):
        return {"comms": "wait", "req": op.op}
    if isinstance(op, StepMark):
        marker = f"step {op.step} ends"
        return {"compute": "gemm", "mm_dim": 1, "dtype": "float32", "count": 0, "markers": [marker]}
    ranks = groups[op.group].ranks
    row: dict[str, object] = {"req": index, "pg_id": op.group, "global_ranks": ranks, "world_size": len(ranks)}
    row |= {"markers": [op.name]} if op.name else {}
    sizes: dict[str, object] = {"in_msg_size": op.count, "out_msg_size": op.count, "dtype": op.dtype.value}
    if not isinstance(op, Collective):
        said["lost-tag"] += op.tag != 0
        way, source, target = ("isend", rank, op.peer) if isinstance(op, Send) else ("irecv", op.peer, rank)
        return {"comms": way, **row, **sizes, "src_rank": source, "dst_rank": target, "use_batch": False}
    said["lost-reduce-op"] += op.kind in _REDUCING and op.reduce_op != "sum"
    if op.kind is _K.BARRIER:
        return {"comms": "barrier", **row}
    if op.kind in _BY_OUTPUT:
        sizes["in_msg_size"] = op.count * len(ranks)
    if op.kind in _GATHERING:
        sizes["out_msg_size"] = op.count * len(ranks)
    name: str = op.kind
    if op.send_splits or op.recv_splits:
        name = "all_to_allv"
        sizes |= {"in_split": op.send_splits, "out_split": op.recv_splits, "out_msg_size": sum(op.recv_splits)}
    row |= {"root": op.root} if op.kind in ROOTED else {}
    return {"comms": name, **row, **sizes}
