"""What a recorded communication call says of itself, whichever file said it: names, element types, argument positions.

Sources: real files of torch 1.13 to 2.14; argument orders are those of the `c10d` operator schemas
(torch/csrc/distributed/c10d/Ops.cpp) as execution traces print them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from traces.program import CollectiveKind, DType, Finding

CallKind = CollectiveKind | Literal["send", "recv", "wait"]

UNKNOWN = -1
MAX_RANKS = 1 << 20
"""Of a job; a file that says more is damaged, or hostile."""
"""More ranks than any job has; a file that names more is damaged."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call, in the words of its own rank. `root` and `peer` are ranks *within the group*; UNKNOWN where not
    recorded.

    `count` is in elements as `traces.program.Collective` defines it; `group` is the process group's recorded name, ""
    where the recording has none. `is_async` is None where the recording does not say. `seq` numbers the group's calls,
    and a "wait" carries the number of the call it waits for. `event` is the file's own id (`rf_id`, "Record function
    id"). `is_cut` tells that the recorder cut a list of it: its splits, or the tensors its `count` would be of.
    """

    kind: CallKind
    name: str
    count: int = UNKNOWN
    dtype: DType | None = None
    group: str = ""
    group_size: int = UNKNOWN
    root: int = UNKNOWN
    peer: int = UNKNOWN
    tag: int = 0
    reduce_op: str = "sum"
    send_splits: tuple[int, ...] = ()
    recv_splits: tuple[int, ...] = ()
    is_async: bool | None = None
    seq: int = UNKNOWN
    event: int = UNKNOWN
    is_cut: bool = False

    @property
    def has_size(self) -> bool:
        """Whether the recording tells how much moves."""
        return self.kind in (CollectiveKind.BARRIER, "wait") or (self.count >= 0 and self.dtype is not None)


# Names as record_param_comms and the annotations of a work give them (ProcessGroupNCCL.cpp, ProcessGroupGloo.cpp).
COMMS_NAMES: dict[str, CallKind] = {
    "allreduce": CollectiveKind.ALL_REDUCE,
    "all_reduce": CollectiveKind.ALL_REDUCE,
    "allreduce_coalesced": CollectiveKind.ALL_REDUCE,
    "allgather": CollectiveKind.ALL_GATHER,
    "all_gather": CollectiveKind.ALL_GATHER,
    "_allgather_base": CollectiveKind.ALL_GATHER,
    "_all_gather_base": CollectiveKind.ALL_GATHER,
    "allgather_into_tensor_coalesced": CollectiveKind.ALL_GATHER,
    "all_gather_into_tensor_coalesced": CollectiveKind.ALL_GATHER,
    "reduce_scatter": CollectiveKind.REDUCE_SCATTER,
    "_reduce_scatter_base": CollectiveKind.REDUCE_SCATTER,
    "reduce_scatter_tensor_coalesced": CollectiveKind.REDUCE_SCATTER,
    "all_to_all": CollectiveKind.ALL_TO_ALL,
    "all_to_allv": CollectiveKind.ALL_TO_ALL,
    "broadcast": CollectiveKind.BROADCAST,
    "_broadcast_oop": CollectiveKind.BROADCAST,
    "reduce": CollectiveKind.REDUCE,
    "_reduce_oop": CollectiveKind.REDUCE,
    "gather": CollectiveKind.GATHER,
    "scatter": CollectiveKind.SCATTER,
    "barrier": CollectiveKind.BARRIER,
    "send": "send",
    "recv": "recv",
    "recvAnySource": "recv",
    "wait": "wait",
}

_MOVES_NOTHING = frozenset({"init", "check_for_nan"})


def unknown_operations(names: Iterable[str]) -> tuple[Finding, ...]:
    """What must be known of operations of no known kind, by their `names` as recorded, as often as they came.

    They are left out of the program, and any may move data, so replay is not right.
    """
    counted = Counter(name for name in names if name.rpartition(":")[2] not in _MOVES_NOTHING)
    return tuple(
        Finding(
            "unknown-operation",
            f"{number} operations {name!r} are of no known kind; left out",
            "error",
            replayable=False,
        )
        for name, number in counted.items()
    )


_DTYPES = {
    "float": DType.FLOAT32, "double": DType.FLOAT64, "half": DType.FLOAT16, "c10::half": DType.FLOAT16,
    "bfloat16": DType.BFLOAT16, "c10::bfloat16": DType.BFLOAT16, "int": DType.INT32, "long": DType.INT64,
    "long int": DType.INT64, "short": DType.INT16, "short int": DType.INT16, "byte": DType.UINT8,
    "unsigned char": DType.UINT8, "char": DType.INT8, "signed char": DType.INT8, "bool": DType.BOOL,
    "c10::complex<float>": DType.COMPLEX64, "complexfloat": DType.COMPLEX64,
    "c10::complex<double>": DType.COMPLEX128, "complexdouble": DType.COMPLEX128,
}  # fmt: skip


def dtype_of(text: str) -> DType | None:
    """The element type in "Float", "c10::Half" or "GenericList[Tensor(float),...]"; None where none is named."""
    inner = re.search(r"Tensor\(([^)]*)\)", text)
    name = (inner.group(1) if inner else text).strip().lower()
    if "float8" in name:
        return DType.FLOAT8
    return _DTYPES.get(name)


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a call: `numels` of the tensors in it (flattened), their type, or a plain value."""

    numels: tuple[int, ...] = ()
    dtype: DType | None = None
    value: object = None


@dataclass(frozen=True, slots=True)
class _Signature:
    kind: CallKind
    sized_by: int  # the argument whose elements are the call's `count`
    root: int | None = None
    peer: int | None = None
    tag: int | None = None
    splits: tuple[int, int] | None = None  # positions of (send, receive) splits


_K = CollectiveKind
C10D = {
    "allreduce_": _Signature(_K.ALL_REDUCE, 0),
    "allreduce_coalesced_": _Signature(_K.ALL_REDUCE, 0),
    "broadcast_": _Signature(_K.BROADCAST, 0, root=2),
    "reduce_": _Signature(_K.REDUCE, 0, root=3),
    "allgather_": _Signature(_K.ALL_GATHER, 1),
    "_allgather_base_": _Signature(_K.ALL_GATHER, 1),
    "allgather_into_tensor_coalesced_": _Signature(_K.ALL_GATHER, 1),
    "allgather_coalesced_": _Signature(_K.ALL_GATHER, 1),
    "reduce_scatter_": _Signature(_K.REDUCE_SCATTER, 0),
    "_reduce_scatter_base_": _Signature(_K.REDUCE_SCATTER, 0),
    "reduce_scatter_tensor_coalesced_": _Signature(_K.REDUCE_SCATTER, 0),
    "gather_": _Signature(_K.GATHER, 1, root=3),
    "scatter_": _Signature(_K.SCATTER, 0, root=3),
    "alltoall_base_": _Signature(_K.ALL_TO_ALL, 1, splits=(4, 3)),
    "alltoall_": _Signature(_K.ALL_TO_ALL, 1),
    "barrier": _Signature(_K.BARRIER, 0),
    "monitored_barrier_": _Signature(_K.BARRIER, 0),
    "send": _Signature("send", 0, peer=2, tag=3),
    "recv_": _Signature("recv", 0, peer=2, tag=3),
    "recv_any_source_": _Signature("recv", 0, tag=2),
}


def c10d_call(name: str, arguments: list[Argument], *, event: int) -> Call | None:
    """The call behind a `c10d::NAME` operator; None for an operator that is not known here."""
    signature = C10D.get(name.removeprefix("c10d::"))
    if signature is None:
        return None

    def integer(position: int | None) -> int:
        value = arguments[position].value if position is not None and position < len(arguments) else None
        return value if isinstance(value, int) else UNKNOWN

    sized = arguments[signature.sized_by] if signature.sized_by < len(arguments) else Argument()
    send, receive = _splits(signature, arguments)
    if signature.splits is not None and len(arguments) > 1:
        send, receive = in_elements((send, sum(arguments[1].numels)), (receive, sum(arguments[0].numels)))
    flags = [argument.value for argument in arguments if isinstance(argument.value, bool)]
    return Call(
        kind=signature.kind,
        name=name,
        count=0 if signature.kind is CollectiveKind.BARRIER else sum(sized.numels) if sized.numels else UNKNOWN,
        dtype=sized.dtype,
        root=integer(signature.root),
        peer=integer(signature.peer),
        tag=max(integer(signature.tag), 0),
        send_splits=send,
        recv_splits=receive,
        is_async=flags[-1] if flags else None,
        event=event,
    )


def strided(start: int, stride: int, size: int) -> tuple[int, ...]:
    """A group's global ranks, where recorders list them by first, distance and number; () where they don't.

    ProcessGroupNCCL.cpp gives a distance of -1 to a group whose ranks are not evenly apart.
    """
    if start < 0 or size < 1 or size > MAX_RANKS or (stride < 1 and size > 1):
        return ()
    return tuple(range(start, start + size * max(stride, 1), max(stride, 1)))


def in_elements(
    send: tuple[tuple[int, ...], int], receive: tuple[tuple[int, ...], int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Splits in elements, from (splits, elements in all) each way: torch counts rows, slices along the first dimension."""
    rows, elements = next(((sum(parts), total) for parts, total in (send, receive) if sum(parts) > 0), (1, 1))
    row = elements // rows if elements > 0 and elements % rows == 0 else 1
    return tuple(part * row for part in send[0]), tuple(part * row for part in receive[0])


def _splits(signature: _Signature, arguments: list[Argument]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """all_to_all's (send, receive) splits in elements; empty where all parts are equal."""
    if signature.splits is not None:
        send, receive = (arguments[at].value if at < len(arguments) else None for at in signature.splits)
        return _integers(send), _integers(receive)
    if signature.kind is CollectiveKind.ALL_TO_ALL and len(arguments) > 1:
        return arguments[1].numels, arguments[0].numels
    return (), ()


def _integers(value: object) -> tuple[int, ...]:
    return tuple(part for part in value if isinstance(part, int)) if isinstance(value, list) else ()
