"""Time-independent traces of SimGrid's SMPI, as `smpirun -replay` takes them: lines of `RANK ACTION ARGUMENTS`.

Actions and their arguments: SimGrid src/smpi/internals/smpi_replay.cpp. All collectives are of all ranks and stop the rank;
requests are named by (sender, receiver, tag). Compute is in flops: here one flop is a nanosecond, so hosts have a speed of 1Gf.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from traces.counted import counted
from traces.errors import TraceError
from traces.files import Opened
from traces.graph import one_step
from traces.program import (
    Collective,
    CollectiveKind,
    Compute,
    DType,
    Finding,
    Group,
    Op,
    Program,
    Recv,
    Send,
    StepMark,
    Trace,
    Wait,
    op_bytes,
)
from traces.pytorch.calls import MAX_RANKS

NAME = "smpi-ti"
MAX_COUNT = (1 << 31) - 1  # counts are C ints in SMPI
MAX_AMOUNT = 1e18

# The types that can be replayed (Datatype::is_replayable) and their numbers (smpi_datatype.cpp).
_TYPE_OF = {
    "0": DType.FLOAT64, "1": DType.INT32, "2": DType.INT8, "3": DType.INT16, "4": DType.INT64, "5": DType.FLOAT32,
    "6": DType.UINT8,
}  # fmt: skip
_NUMBER_OF = {dtype: number for number, dtype in _TYPE_OF.items()}
_REDUCING = {CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE, CollectiveKind.REDUCE_SCATTER}
_ACTIONS = (
    *("init", "finalize", "comm_size", "comm_split", "comm_dup", "location", "test", "compute", "sleep"),
    *("send", "isend", "recv", "irecv", "wait", "waitall"),
    *("barrier", "bcast", "reduce", "allreduce", "reducescatter", "gather", "scatter"),
    *("allgather", "allgatherv", "alltoall", "alltoallv"),
)
_NUMBER = re.compile(r"\d{1,18}(\.\d{0,18})?(e[+-]?\d{1,2})?$", re.IGNORECASE)
_SNIFF = re.compile(rb"(?:#[^\n]*\n|\s)*+\d{1,9} (?:" + "|".join(_ACTIONS).encode() + rb"|gatherv|scatterv|scan)\b")
_STEP = re.compile(r"# rank (\d{1,9}) ends step (\d{1,9})$")


def sniff(head: bytes) -> bool:
    """Whether a file that starts with `head` is a time-independent trace."""
    return _SNIFF.match(head) is not None


def read(files: Sequence[Opened]) -> Trace:
    """The job in these files, of all ranks or of one each. Raises TraceError naming the line that is wrong."""
    lines: dict[int, list[_Line]] = defaultdict(list)
    for file in files:
        for line in _lines(file):
            lines[line.rank].append(line)
    world_size = max(lines) + 1
    if world_size > MAX_RANKS:
        raise TraceError(f"rank {world_size - 1} is beyond {MAX_RANKS}", file=files[0].name)
    ranks = {rank: _Rank(rank, world_size) for rank in sorted(lines)}
    for rank, own in lines.items():
        for line in own:
            ranks[rank].take(line)
    programs = one_step({rank: Program(rank, tuple(reader.ops)) for rank, reader in ranks.items()})
    said = Counter[str]()
    for reader in ranks.values():
        said += reader.said
    return Trace(
        world_size=world_size,
        groups=(Group(0, "0", tuple(range(world_size)), 0, "default_pg"),),
        programs=programs,
        step_count=min(sum(isinstance(op, StepMark) for op in p.ops) for p in programs.values()),
        findings=counted(sorted(said.items()), _SAID),
    )


_SAID = {
    "assumed-speed": "computations are in flops; a host of 1 Gflop/s was taken",
    "assumed-reduce-op": "reductions have no recorded operation; sum was taken",
    "assumed-even": "collectives with parts of different sizes were taken as even ones of the same total, rounded up",
    "dangling-wait": "waits are for requests that were not started; left out",
    "skipped-test": "tests of requests were left out: where they succeed, the wait that follows does so at once",
}


@dataclass(frozen=True, slots=True)
class _Line:
    """One action, with what an error has to name. Arguments are read in order."""

    file: str
    number: int
    rank: int
    action: str
    arguments: tuple[str, ...]

    def error(self, message: str, mend: str = "") -> TraceError:
        return TraceError(f"{self.action}: {message}", file=self.file, place=f"line {self.number}", mend=mend)

    def count(self, index: int, default: int | None = None) -> int:
        """A whole number that may be written as 5e4."""
        count = round(self.amount(index, default))
        if count > MAX_COUNT:
            raise self.error(f"expected an int, found {count}")
        return count

    def amount(self, index: int, default: float | None = None) -> float:
        if index >= len(self.arguments):
            if default is None:
                raise self.error(f"expected {index + 1} arguments at least, found {len(self.arguments)}")
            return default
        text = self.arguments[index]
        if not _NUMBER.match(text) or not (value := float(text)) <= MAX_AMOUNT:
            raise self.error(f"expected a number from 0 to {MAX_AMOUNT:.0e}, found {text[:40]!r}")
        return value

    def rank_at(self, index: int, world_size: int, default: int | None = None) -> int:
        rank = self.count(index, default)
        if rank >= world_size:
            raise self.error(f"rank {rank} of a job of {world_size}")
        return rank


def _lines(file: Opened) -> Iterator[_Line]:
    for number, raw in enumerate(file.data.decode("ascii", "replace").splitlines(), 1):
        text = raw.strip()
        if marked := _STEP.match(text):
            yield _Line(file.name, number, int(marked[1]), "step", (marked[2],))
        elif text and not text.startswith("#"):
            rank, *rest = text.split()
            if not re.fullmatch(r"\d{1,9}", rank) or not rest:
                raise TraceError(
                    f"expected `RANK ACTION ...`, found {text[:60]!r}", file=file.name, place=f"line {number}"
                )
            yield _Line(file.name, number, int(rank), rest[0].lower(), tuple(rest[1:]))


class _Rank:
    """One rank's program as it is read."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.ops: list[Op] = []
        self.said: Counter[str] = Counter()
        self._rank = rank
        self._size = world_size
        self._default = DType.UINT8
        self._open: dict[tuple[int, int, int], int] = {}  # (sender, receiver, tag) of a request -> its operation

    def take(self, line: _Line) -> None:
        match line.action:
            case "step":
                self.ops.append(StepMark(line.count(0)))
            case "init":
                # An argument, whatever it is, says that MPE made the trace.
                self._default = DType.FLOAT64 if line.arguments else DType.UINT8
            case "finalize" | "comm_size" | "comm_split" | "comm_dup" | "location":
                pass
            case "test":
                self.said["skipped-test"] += 1
            case "compute":
                self._compute(line.amount(0))
            case "sleep":
                self.ops.append(Compute(round(line.amount(0) * 1e9)))
            case "send" | "isend" | "recv" | "irecv":
                self._message(line)
            case "wait":
                request = self._open.pop((line.count(0), line.count(1), line.count(2)), None)
                self.said["dangling-wait"] += request is None
                self.ops += [] if request is None else [Wait(request)]
            case "waitall":
                self.ops += [Wait(request) for request in self._open.values()]
                self._open.clear()
            case _:
                self._collective(line)

    def _compute(self, flops: float) -> None:
        if flops:
            self.said["assumed-speed"] += 1
            self.ops.append(Compute(round(flops)))

    def _message(self, line: _Line) -> None:
        sends = line.action.endswith("send")
        peer, tag, count, dtype = line.rank_at(0, self._size), line.count(1), line.count(2), self._dtype(line, 3)
        request = (self._rank, peer, tag) if sends else (peer, self._rank, tag)
        if request in self._open:
            raise line.error(f"a request from {request[0]} to {request[1]} with tag {tag} is still open", "wait for it")
        self.ops.append((Send if sends else Recv)(peer, count, dtype, tag))
        if line.action.startswith("i"):
            self._open[request] = len(self.ops) - 1
        else:
            self.ops.append(Wait(len(self.ops) - 1))

    def _dtype(self, line: _Line, index: int) -> DType:
        if index >= len(line.arguments):
            return self._default
        dtype = _TYPE_OF.get(line.arguments[index])
        if dtype is None:
            raise line.error(
                f"no datatype has the number {line.arguments[index][:20]!r}", f"known: {', '.join(_TYPE_OF)}"
            )
        return dtype

    def _collective(self, line: _Line) -> None:
        size, flops, root = self._size, 0.0, -1
        sends: tuple[int, ...] = ()
        receives: tuple[int, ...] = ()
        match line.action:
            case "barrier":
                kind, count, dtype = CollectiveKind.BARRIER, 0, DType.UINT8
            case "allreduce":
                kind, count, flops, dtype = (
                    CollectiveKind.ALL_REDUCE,
                    line.count(0),
                    line.amount(1),
                    self._dtype(line, 2),
                )
            case "reduce":
                kind, count, flops, dtype = CollectiveKind.REDUCE, line.count(0), line.amount(1), self._dtype(line, 3)
                root = line.rank_at(2, size, 0)
            case "bcast":
                kind, count, dtype = CollectiveKind.BROADCAST, line.count(0), self._dtype(line, 2)
                root = line.rank_at(1, size, 0)
            case "gather" | "scatter":
                kind, dtype = CollectiveKind(line.action), self._dtype(line, 3)
                count = line.count(0 if line.action == "gather" else 1)
                root = line.rank_at(2, size, 0)
            case "allgather":
                kind, count, dtype = CollectiveKind.ALL_GATHER, line.count(0), self._dtype(line, 2)
            case "allgatherv":
                more = len(line.arguments) - 1 - size  # nothing; type and type; displacements; type and displacements
                dtype = self._dtype(line, 1 + size) if more <= 2 or more > size else self._default
                kind, count = CollectiveKind.ALL_GATHER, self._even([line.count(1 + i) for i in range(size)])
            case "reducescatter":
                kind, count = CollectiveKind.REDUCE_SCATTER, self._even([line.count(i) for i in range(size)])
                flops, dtype = line.amount(size), self._dtype(line, size + 1)
            case "alltoall":
                kind, count, dtype = CollectiveKind.ALL_TO_ALL, line.count(0) * size, self._dtype(line, 2)
            case "alltoallv":
                kind, dtype = CollectiveKind.ALL_TO_ALL, self._dtype(line, 2 * size + 2)
                sends = tuple(line.count(1 + i) for i in range(size))
                receives = tuple(line.count(2 + size + i) for i in range(size))
                count = sum(sends)
            case _:
                raise line.error("is no action that can be read", f"known: {', '.join(sorted(_ACTIONS))}")
        self.said["assumed-reduce-op"] += kind in _REDUCING
        self.ops.append(Collective(kind, 0, count, dtype, root=root, send_splits=sends, recv_splits=receives))
        self.ops.append(Wait(len(self.ops) - 1))
        self._compute(flops)

    def _even(self, parts: list[int]) -> int:
        self.said["assumed-even"] += len(set(parts)) > 1
        return -(-sum(parts) // len(parts))


def write(trace: Trace) -> tuple[bytes, tuple[Finding, ...]]:
    """`trace`, whose collectives are all of all ranks, as one file; and what it does not say.

    A collective is where it was started. Raises TraceError for a count that SMPI's ints can't hold.
    """
    said: Counter[str] = Counter()
    lines: list[str] = []
    for rank, program in sorted(trace.programs.items()):
        lines += [f"{rank} init", *_program(program, trace.world_size, said), f"{rank} finalize"]
    return "\n".join([*lines, ""]).encode(), counted(sorted(said.items()), _LOST)


_LOST = {
    "lost-overlap": "collectives run beside other work in the trace; here they stop the rank where they start",
    "lost-reduce-op": "reductions are no sums; the format has no operation",
    "lost-dtype": "operations are of types that SMPI can't replay and were written in bytes",
    "speed": "computations were written in flops, one a nanosecond: hosts of the platform need speed=1Gf",
}


def _program(program: Program, size: int, said: Counter[str]) -> Iterator[str]:
    rank, ops = program.rank, program.ops
    done = set[int]()  # operations that have stopped the rank already
    for index, op in enumerate(ops):
        following = ops[index + 1] if index + 1 < len(ops) else None
        waits_at_once = isinstance(following, Wait) and following.op == index
        match op:
            case Compute():
                said["speed"] += 1
                yield f"{rank} compute {op.ns}"
            case StepMark():
                yield f"# rank {rank} ends step {op.step}"
            case Wait() if op.op not in done:
                of = ops[op.op]
                assert isinstance(of, Send | Recv)
                sender, receiver = (rank, of.peer) if isinstance(of, Send) else (of.peer, rank)
                yield f"{rank} wait {sender} {receiver} {of.tag}"
            case Send() | Recv():
                done |= {index} if waits_at_once else set()
                action = ("" if waits_at_once else "i") + type(op).__name__.lower()
                count, dtype = _typed(op, said, f"rank {rank}, op {index}")
                yield f"{rank} {action} {op.peer} {op.tag} {count} {dtype}"
            case Collective():
                done.add(index)
                said["lost-overlap"] += not waits_at_once
                said["lost-reduce-op"] += op.kind in _REDUCING and op.reduce_op != "sum"
                yield f"{rank} {_arguments(op, size, said, f'rank {rank}, op {index}')}"


def _typed(op: Collective | Send | Recv, said: Counter[str], place: str) -> tuple[int, str]:
    """The operation's count and type, in bytes where SMPI has no such type."""
    if op.dtype not in _NUMBER_OF:
        said["lost-dtype"] += 1
    count, number = (op.count, _NUMBER_OF[op.dtype]) if op.dtype in _NUMBER_OF else (op_bytes(op), "6")
    if count > MAX_COUNT:
        raise TraceError(f"a count of {count} is beyond SMPI's {MAX_COUNT}", place=place)
    return count, number


def _arguments(op: Collective, size: int, said: Counter[str], place: str) -> str:
    """The action of a collective, and what is behind it."""
    count, dtype = _typed(op, said, place)
    match op.kind:
        case CollectiveKind.BARRIER:
            return "barrier"
        case CollectiveKind.ALL_REDUCE:
            return f"allreduce {count} 0 {dtype}"
        case CollectiveKind.REDUCE:
            return f"reduce {count} 0 {op.root} {dtype}"
        case CollectiveKind.BROADCAST:
            return f"bcast {count} {op.root} {dtype}"
        case CollectiveKind.GATHER | CollectiveKind.SCATTER:
            return f"{op.kind} {count} {count} {op.root} {dtype} {dtype}"
        case CollectiveKind.ALL_GATHER:
            return f"allgather {count} {count} {dtype} {dtype}"
        case CollectiveKind.REDUCE_SCATTER:
            return f"reducescatter {' '.join([str(count)] * size)} 0 {dtype}"
        case CollectiveKind.ALL_TO_ALL if op.send_splits or op.recv_splits:
            width = 1 if op.dtype in _NUMBER_OF else op.dtype.itemsize
            sends, receives = ([part * width for part in parts] for parts in (op.send_splits, op.recv_splits))
            sent, received = (" ".join(map(str, [sum(parts), *parts])) for parts in (sends, receives))
            return f"alltoallv {sent} {received} {dtype} {dtype}"
        case CollectiveKind.ALL_TO_ALL:
            return f"alltoall {count // size} {count // size} {dtype} {dtype}"
