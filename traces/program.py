"""The values every other part speaks in: a Trace is one straight-line Program per rank. No I/O here.

A program is written the way MPI code with non-blocking calls is: a `Collective`, `Send` or `Recv` only *starts* an operation;
a `Wait` that names it is where the rank stops until it has ended. A synchronous call is an operation with its wait right
behind it. Operations of one lane run in the order they were started; different lanes overlap. (A communicator is a lane.)

`Compute` is what a rank did when it was not waiting for the network: waiting is what replay finds out anew, so none of the
recorded waiting may be in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

Severity = Literal["error", "warning", "info"]


class CollectiveKind(StrEnum):
    """The collectives a program can hold; values are what files and tables show."""

    ALL_REDUCE = "all_reduce"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_GATHER = "all_gather"
    ALL_TO_ALL = "all_to_all"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    GATHER = "gather"
    SCATTER = "scatter"
    BARRIER = "barrier"


ROOTED = frozenset({CollectiveKind.BROADCAST, CollectiveKind.REDUCE, CollectiveKind.GATHER, CollectiveKind.SCATTER})
UNROOTED = frozenset(CollectiveKind) - ROOTED


class DType(StrEnum):
    """Element types; `itemsize` is in bytes. A recording that does not say is read as uint8 with the count in bytes."""

    UINT8 = "uint8"
    INT8 = "int8"
    BOOL = "bool"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT8 = "float8"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"
    COMPLEX64 = "complex64"
    COMPLEX128 = "complex128"

    @property
    def itemsize(self) -> int:
        return _ITEMSIZE[self]


_ITEMSIZE = {
    DType.UINT8: 1, DType.INT8: 1, DType.BOOL: 1, DType.FLOAT8: 1,
    DType.INT16: 2, DType.FLOAT16: 2, DType.BFLOAT16: 2,
    DType.INT32: 4, DType.FLOAT32: 4,
    DType.INT64: 8, DType.FLOAT64: 8, DType.COMPLEX64: 8,
    DType.COMPLEX128: 16,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an op was recorded: index into the trace's sources, that file's own event id, and when, on the job's clock.

    `start_ns` and `end_ns` are nanoseconds since the trace's first event after clock alignment; -1 where not recorded.
    """

    source: int = -1
    event: int = -1
    start_ns: int = -1
    end_ns: int = -1


NOWHERE = Origin()


@dataclass(frozen=True, slots=True)
class Compute:
    """The rank is busy with its own work for `ns` nanoseconds."""

    ns: int
    name: str = ""
    origin: Origin = NOWHERE


@dataclass(frozen=True, slots=True)
class Collective:
    """Starts a collective of `group`, which all its ranks start in the same order.

    `count` is in elements and follows MPI: all_reduce, broadcast, reduce: the tensor; all_gather, gather: what one rank gives;
    reduce_scatter, scatter: what one rank gets; barrier: 0. all_to_all: `send_splits[i]` elements go to the group's i-th rank and
    `recv_splits[i]` come from it (`count` is the sum of what is sent). `root` is a *global* rank, -1 where there is none.
    """

    kind: CollectiveKind
    group: int
    count: int
    dtype: DType = DType.UINT8
    root: int = -1
    reduce_op: str = "sum"
    send_splits: tuple[int, ...] = ()
    recv_splits: tuple[int, ...] = ()
    name: str = ""
    origin: Origin = NOWHERE


@dataclass(frozen=True, slots=True)
class Send:
    """Starts sending `count` elements to the global rank `peer`; matched with its Recv by (group, tag), then by order."""

    peer: int
    count: int
    dtype: DType = DType.UINT8
    tag: int = 0
    group: int = 0
    name: str = ""
    origin: Origin = NOWHERE


@dataclass(frozen=True, slots=True)
class Recv:
    """Starts receiving `count` elements from the global rank `peer`."""

    peer: int
    count: int
    dtype: DType = DType.UINT8
    tag: int = 0
    group: int = 0
    name: str = ""
    origin: Origin = NOWHERE


@dataclass(frozen=True, slots=True)
class Wait:
    """Stops until the operation at index `op` of this program has ended."""

    op: int
    origin: Origin = NOWHERE


@dataclass(frozen=True, slots=True)
class StepMark:
    """Training step `step` ends here for this rank. What lies before the first mark is the first step."""

    step: int
    origin: Origin = NOWHERE


Op = Compute | Collective | Send | Recv | Wait | StepMark
Communication = Collective | Send | Recv


UNORDERED = -1
"""The lane of groups whose operations do not wait for each other; what they send to one rank still keeps its order."""


@dataclass(frozen=True, slots=True)
class Serving:
    """How the last rank of a group serves the others: every collective goes through it, in messages of `partition` bytes.

    A rank has at most `window` bytes of an operation under way, sent and not yet answered; 0 is no limit.
    """

    partition: int
    window: int = 0


@dataclass(frozen=True, slots=True)
class Group:
    """A process group: `ranks` are global, in group order. Groups with the same `lane` run their operations one at a time.

    `served` is in groups that a what-if makes, never in a file.
    """

    id: int
    name: str
    ranks: tuple[int, ...]
    lane: int
    description: str = ""
    served: Serving | None = None


@dataclass(frozen=True, slots=True)
class Program:
    """What one rank did, in order."""

    rank: int
    ops: tuple[Op, ...]


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a server is: on the host of rank `beside`, or (-1) on a host of its own, which may be `in_switch`: a part of the
    switch that it hangs on.
    """

    beside: int = -1
    in_switch: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """Something a reader of this trace must know. `replayable` says whether replay is still right in spite of it.

    `code` is a fixed name ("missing-rank"); `rank` and `op` (index into that rank's program) are -1 where they don't apply.
    """

    code: str
    message: str
    severity: Severity = "warning"
    rank: int = -1
    op: int = -1
    replayable: bool = True


@dataclass(frozen=True, slots=True)
class Source:
    """A file the trace was made from."""

    name: str
    sha256: str
    format: str
    rank: int = -1


@dataclass(frozen=True, slots=True)
class Trace:
    """A whole job. `programs` holds the ranks that were recorded, by rank; fewer than `world_size` means some are missing.

    `findings` are what the importer met or assumed; `traces.checks.check` adds what can be seen from the programs themselves.
    `clock_residual_ns` is, per rank, the worst distance left between its collective ends and the others' after alignment.
    `servers` are ranks that a what-if adds, never in a file: they serve the others, the workers, and mark no steps.
    """

    world_size: int
    groups: tuple[Group, ...]
    programs: Mapping[int, Program]
    step_count: int
    sources: tuple[Source, ...] = ()
    findings: tuple[Finding, ...] = ()
    hosts: Mapping[int, str] = field(default_factory=dict)
    clock_residual_ns: Mapping[int, int] = field(default_factory=dict)
    provenance: Mapping[str, str] = field(default_factory=dict)
    servers: Mapping[int, Seat] = field(default_factory=dict)

    @property
    def workers(self) -> tuple[int, ...]:
        """The ranks that train, sorted."""
        return tuple(sorted(self.programs.keys() - self.servers.keys()))


def op_bytes(op: Communication) -> int:
    """Bytes of `op` at this rank, as its `count` is defined (not what travels: that depends on the algorithm)."""
    return op.count * op.dtype.itemsize
