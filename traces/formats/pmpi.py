"""MPI programs traced by liballprof (the tracer of LogGOPSim): a file a rank, a line a call, `NAME:START:ARGUMENTS:END` in us.

    # htor's PMPI Tracer 1.0 Output File
    MPI_Init:-:0:0:1237666053021600
    MPI_Allreduce:1237666053021692:1128:2256:4500:11,8,8:3:7152208,0,4:1237666053022005

Arguments are those of the C binding in order (src/liballprof/gencode.py): a datatype is its number, size and extent, a communicator
its handle, this rank in it and its size, a request the address of its handle, so that a Waitall names the handles of an array.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Mapping, Sequence

from traces import clocks
from traces.counted import counted
from traces.errors import TraceError
from traces.files import Opened
from traces.peers import resolved
from traces.program import (
    ROOTED,
    Collective,
    CollectiveKind,
    Compute,
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

NAME = "pmpi"
MAX_RANKS = 1 << 16
MAX_BYTES = 1 << 50
MAX_TAG = (1 << 31) - 1
_MAX_NUMBER = 1 << 64

_SNIFF = re.compile(rb"(?:#[^\n]{0,400}\n|\s)*+MPI_\w{1,40}:(?:-|\d{1,17})[:.]")
_LINE = re.compile(r"(MPI_\w{1,40}):(-|\d{1,17}(?:\.\d{0,9})?):(.*?):?(-|\d{1,17}(?:\.\d{0,9})?)$")
_K = CollectiveKind
# Where count, its datatype, the communicator and the root stand; the count is of what one rank gives, or gets.
_COLLECTIVES: Mapping[str, tuple[CollectiveKind, int | None, int, int | None]] = {
    "MPI_Barrier": (_K.BARRIER, None, 0, None),
    "MPI_Bcast": (_K.BROADCAST, 1, 4, 3),
    "MPI_Allreduce": (_K.ALL_REDUCE, 2, 5, None),
    "MPI_Reduce": (_K.REDUCE, 2, 6, 5),
    "MPI_Allgather": (_K.ALL_GATHER, 1, 6, None),
    "MPI_Gather": (_K.GATHER, 1, 7, 6),
    "MPI_Scatter": (_K.SCATTER, 4, 7, 6),
    "MPI_Alltoall": (_K.ALL_TO_ALL, 1, 6, None),
}
_SENDS = {"MPI_Send", "MPI_Ssend", "MPI_Rsend", "MPI_Bsend", "MPI_Isend", "MPI_Issend"}
_RECVS = {"MPI_Recv", "MPI_Irecv"}
_UNREAD = re.compile(
    r"MPI_(?:I(?:allreduce|bcast|barrier|reduce|allgather|alltoall|gather|scatter)\w*|\w+(?:v|w)$|Scan|Exscan|Reduce_scatter\w*"
    r"|Waitany|Waitsome|Send_init|Recv_init|Start|Startall|Put|Get|Accumulate|Sendrecv_replace)"
)


def sniff(head: bytes) -> bool:
    """Whether a file that starts with `head` is a rank's trace."""
    return _SNIFF.match(head) is not None


def read(files: Sequence[Opened]) -> Trace:
    """The job in these files. Raises TraceError naming the line that is wrong."""
    ranks: dict[int, _Rank] = {}
    size = 0
    for source, file in enumerate(files):
        reader = _Rank(file.name, source)
        reader.read(file.data)
        if reader.rank in ranks:
            raise TraceError(f"rank {reader.rank} is given twice", file=file.name)
        ranks[reader.rank] = reader
        size = max(size, reader.size)
    for reader in ranks.values():
        reader.check(size)
    programs, said = resolved({rank: Program(rank, tuple(ranks[rank].ops)) for rank in sorted(ranks)})
    aligned = clocks.align(programs, {})
    counts = sum((reader.said for reader in ranks.values()), Counter[str]())
    found = counted(sorted(counts.items()), _SAID)
    return Trace(
        world_size=size,
        groups=(Group(0, "0", tuple(range(size)), 0, "MPI_COMM_WORLD"),),
        programs=aligned.programs,
        step_count=1,
        findings=(*found, *said, *aligned.findings),
        clock_residual_ns=aligned.after_ns,
    )


_SAID = {
    "assumed-type": "operations: sizes were taken in bytes, and reductions as sums",
    "skipped-test": "tests of requests were left out: where they succeed, the wait that follows does so at once",
    "dangling-wait": "waits are for requests that were not started; left out",
}


class _Rank:
    """One file as it is read. `rank` and `size` are those of the largest communicator in it."""

    def __init__(self, file: str, source: int) -> None:
        self.ops: list[Op] = []
        self.said: Counter[str] = Counter()
        self.rank = self.size = 0
        self._file = file
        self._source = source
        self._line = 0
        self._now = -1  # the end of the call before, in ns
        self._began = self._ended = -1
        self._open: dict[int, int] = {}  # the address of a request -> its operation
        self._addresses: list[int] = []  # those, in order
        self._step = 8  # bytes of a handle: a pointer in Open MPI; 4 where one lies between two such, an int in MPICH
        self._used: dict[tuple[int, int], int] = {}  # (rank, size) of a communicator -> the line that uses it

    def _error(self, message: str, mend: str = "", *, line: int = 0) -> TraceError:
        return TraceError(message, file=self._file, place=f"line {line or self._line}", mend=mend)

    def read(self, data: bytes) -> None:
        lines = data.decode("ascii", "replace").splitlines()
        for self._line, text in enumerate(lines, 1):
            if not text.startswith("MPI_"):
                if text.strip() and not text.startswith("#"):
                    raise self._error(f"expected MPI_NAME:START:ARGUMENTS:END, found {text[:60]!r}")
                continue
            found = _LINE.match(text)
            if found is None:
                raise self._error(f"expected MPI_NAME:START:ARGUMENTS:END, found {text[:60]!r}")
            self._call(found[1], found[2], found[3].split(":"), found[4])
        self.ops += [Wait(op) for op in self._open.values()]
        if not self.size or not any(not isinstance(op, Compute) for op in self.ops):
            raise self._error("no call of a communicator is in the file")
        self.ops.append(StepMark(0))

    def check(self, world_size: int) -> None:
        """Raises TraceError where a communicator is not of all ranks, for the text does not say of which."""
        for (rank, size), line in self._used.items():
            if size != world_size or rank != self.rank:
                text = f"a communicator of {size} of {world_size} ranks: the file does not say which"
                raise self._error(text, "only programs on MPI_COMM_WORLD can be read", line=line)

    def _call(self, name: str, start: str, arguments: list[str], end: str) -> None:
        self._began, self._ended = _ns(start), _ns(end)
        if self._ended >= 0 and self._began > self._ended:
            raise self._error("ends before it starts")
        before = len(self.ops)
        if 0 <= self._now < self._began:
            self.ops.append(Compute(self._began - self._now, origin=Origin(self._source, -1, self._now, self._began)))
            before += 1
        if name in _COLLECTIVES:
            self._collective(name, arguments)
        elif name in _SENDS or name in _RECVS:
            self._message(name, arguments)
        elif name == "MPI_Sendrecv":
            self._exchange(arguments)
        elif name == "MPI_Wait":
            self._wait(self._number(arguments, 0), 1)
        elif name == "MPI_Waitall":
            self._wait(self._number(arguments, 1), self._number(arguments, 0))
        elif name.startswith("MPI_Test"):
            self.said["skipped-test"] += 1
        elif name in ("MPI_Comm_rank", "MPI_Comm_size"):
            self._communicator(arguments, 0)
        elif _UNREAD.match(name):
            raise self._error(f"{name} is not read", f"known: {', '.join(sorted({*_COLLECTIVES, *_SENDS, *_RECVS}))}")
        if len(self.ops) == before and self._began >= 0 and self._ended > self._began:
            self.ops.append(Compute(self._ended - self._began, name))
        self._now = self._ended

    def _number(self, arguments: list[str], index: int, part: int = 0) -> int:
        parts = arguments[index].split(",") if index < len(arguments) else []
        text = parts[part] if part < len(parts) else ""
        if not re.fullmatch(r"-?\d{1,20}", text) or abs(int(text)) > _MAX_NUMBER:
            raise self._error(f"expected a number as argument {index + 1}, found {text[:40]!r}")
        return int(text)

    def _bytes(self, arguments: list[str], index: int) -> int:
        """A count and, behind it, its datatype."""
        size = self._number(arguments, index) * self._number(arguments, index + 1, 1)
        if not 0 <= size <= MAX_BYTES:
            raise self._error(f"{size} bytes: from 0 to {MAX_BYTES}")
        self.said["assumed-type"] += 1
        return size

    def _communicator(self, arguments: list[str], index: int, *, used: bool = False) -> int:
        rank, size = self._number(arguments, index, 1), self._number(arguments, index, 2)
        if not 0 <= rank < size <= MAX_RANKS:
            raise self._error(f"rank {rank} of {size} in a communicator", f"at most {MAX_RANKS} ranks")
        if size > self.size:
            self.rank, self.size = rank, size
        if used:
            self._used.setdefault((rank, size), self._line)
        return size

    def _collective(self, name: str, arguments: list[str]) -> None:
        kind, count, comm, root = _COLLECTIVES[name]
        ranks = self._communicator(arguments, comm, used=True)
        size = 0 if count is None else self._bytes(arguments, count)
        if kind is CollectiveKind.ALL_TO_ALL:
            size *= ranks
        at = self._number(arguments, root) if kind in ROOTED and root is not None else -1
        if at >= ranks or (root is not None and at < 0):
            raise self._error(f"root {at} of {ranks} ranks")
        self.ops.append(Collective(kind, 0, size, root=at, name=name, origin=self._origin()))
        self.ops.append(Wait(len(self.ops) - 1, self._origin()))

    def _message(self, name: str, arguments: list[str]) -> None:
        ranks = self._communicator(arguments, 5, used=True)
        started = self._started(name, arguments, 1, ranks, sends=name in _SENDS)
        if name.startswith("MPI_I") and started is not None:
            address = self._number(arguments, 6)
            if address in self._open:  # a test has found its last operation ended
                self._wait(address, 1)
            insort(self._addresses, address)
            self._open[address] = started
            self._step = 4 if address % 8 else self._step
        elif started is not None:
            self.ops.append(Wait(started, self._origin()))

    def _exchange(self, arguments: list[str]) -> None:
        ranks = self._communicator(arguments, 10, used=True)
        sent = self._started("MPI_Sendrecv", arguments, 1, ranks, sends=True)
        received = self._started("MPI_Sendrecv", arguments, 6, ranks, sends=False)
        self.ops += [Wait(op, self._origin()) for op in (sent, received) if op is not None]

    def _started(self, name: str, arguments: list[str], at: int, ranks: int, *, sends: bool) -> int | None:
        """The operation that starts with count, datatype, peer and tag at `at`; None for MPI_PROC_NULL."""
        size, peer, tag = self._bytes(arguments, at), self._number(arguments, at + 2), self._number(arguments, at + 3)
        if peer >= ranks:
            raise self._error(f"rank {peer} of {ranks}")
        if peer < (0 if sends else -1):
            return None
        if not 0 <= tag <= MAX_TAG:
            raise self._error(f"tag {tag}: a receive of any tag can't be said in a program", "give messages their tags")
        self.ops.append((Send if sends else Recv)(peer, size, tag=tag, name=name, origin=self._origin()))
        return len(self.ops) - 1

    def _wait(self, base: int, count: int) -> None:
        """For the `count` handles that lie in a row from `base`."""
        first = bisect_left(self._addresses, base)
        last = bisect_left(self._addresses, base + max(count, 0) * self._step)
        self.said["dangling-wait"] += first == last
        self.ops += [Wait(self._open.pop(address), self._origin()) for address in self._addresses[first:last]]
        del self._addresses[first:last]

    def _origin(self) -> Origin:
        return Origin(self._source, self._line, self._began, self._ended)


def _ns(text: str) -> int:
    whole, _, part = text.partition(".")
    return -1 if text == "-" else int(whole) * 1000 + int(part[:3].ljust(3, "0"))
