"""mpi4py's communicating methods: their arguments, and as which operators what they move is written."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

from tracebed_record.mpi_buffers import Buffer, Buffers

_TREE_TAG = (1 << 31) - 1  # of mpi4py's own messages, which it sends through a communicator of its own
_OBJECT = Buffer(0, "uint8", 1)
_EXCHANGED = "may have parts of any size: it is recorded as an all-to-all in which each rank gives and gets the same"


class Moved(NamedTuple):
    """An operator of torch.distributed and its arguments as the recording has them."""

    operator: str
    told: list[Any]
    reduces: bool = False


class Asked:
    """A call: its arguments by name, and, once it is over, the bytes of each object that was packed or unpacked for it."""

    def __init__(self, mpi: Any, buffers: Buffers, comm: Any, values: dict[str, Any]) -> None:
        self.mpi, self.comm, self.values = mpi, comm, values
        self.lengths: list[int] = []
        self.notes: list[str] = []
        self.group = self.reduction = ""
        self.receives: Callable[[], Moved] | None = None  # what is to be told when the request is over
        self._buffers = buffers

    @property
    def size(self) -> int:
        return int(self.comm.Get_size())

    @property
    def root(self) -> int:
        return int(self.values.get("root", 0))

    @property
    def is_root(self) -> bool:
        return bool(self.comm.Get_rank() == self.root)

    def buffer(self, name: str, parts: int = 0) -> Buffer | None:
        """The buffer argument `name`; None where it is MPI.IN_PLACE or not given."""
        return self._buffers.read(self.values.get(name), parts)

    def some(self, *names: str, parts: int = 0) -> Buffer:
        """The first of the buffers that is given."""
        return next(buffer for buffer in (self.buffer(name, parts) for name in names) if buffer is not None)

    def exchanged(self, kind: Buffer, sends: list[int], receives: list[int]) -> list[Moved]:
        """So many elements to and from each rank."""
        self.notes.append(_EXCHANGED)
        return [_all_to_all(kind, sends, receives)]


def _all_to_all(kind: Buffer, sends: list[int], receives: list[int]) -> Moved:
    return Moved("alltoall_base_", [kind.told(sum(receives)), kind.told(sum(sends)), None, receives, sends])


def _only(at: int, size: int, elements: int) -> list[int]:
    return [elements if part == at else 0 for part in range(size)]


# -- messages


def _send(asked: Asked) -> list[Moved]:
    return _sent(asked, asked.values.get("dest"), asked.values.get("tag", 0), asked.buffer("buf"))


def _sent(asked: Asked, dest: Any, tag: Any, buffer: Buffer | None) -> list[Moved]:
    if dest == asked.mpi.PROC_NULL or buffer is None:
        return []
    return [Moved("send", [buffer.told(buffer.elements), None, int(dest), int(tag)])]


def _send_object(asked: Asked) -> list[Moved]:
    dest = asked.values.get("dest")
    return _sent(asked, dest, asked.values.get("tag", 0), Buffer(sum(asked.lengths[:1]), "uint8", 1))


def _receive(asked: Asked) -> list[Moved]:
    return _received(asked, asked.some("buf", "recvbuf"))


def _receive_object(asked: Asked) -> list[Moved]:
    return _received(asked, _OBJECT)


def _received(asked: Asked, kind: Buffer) -> list[Moved]:
    """What came, which only the status says: from whom, with which tag, how much."""
    if asked.values.get("source", asked.mpi.ANY_SOURCE) == asked.mpi.PROC_NULL:
        return []

    def told() -> Moved:
        status = asked.values["status"]
        elements = status.Get_count(asked.mpi.BYTE) // kind.width
        return Moved("recv_", [kind.told(elements), None, status.Get_source(), status.Get_tag()])

    if "status" in asked.values:
        return [told()]
    asked.receives = told
    return [Moved("recv_", [])]


def _send_receive(asked: Asked) -> list[Moved]:
    sent = _sent(asked, asked.values.get("dest"), asked.values.get("sendtag", 0), asked.some("sendbuf", "buf"))
    return sent + _receive_if_any(asked, None)


def _send_receive_object(asked: Asked) -> list[Moved]:
    packed = Buffer(sum(asked.lengths[:1]), "uint8", 1)
    return _sent(asked, asked.values.get("dest"), asked.values.get("sendtag", 0), packed) + _receive_if_any(
        asked, _OBJECT
    )


def _receive_if_any(asked: Asked, kind: Buffer | None) -> list[Moved]:
    if asked.values.get("source", asked.mpi.ANY_SOURCE) == asked.mpi.PROC_NULL:
        return []
    return _received(asked, kind or asked.some("recvbuf", "buf"))


# -- collectives of buffers


def _barrier(_: Asked) -> list[Moved]:
    return [Moved("barrier", [])]


def _broadcast(asked: Asked) -> list[Moved]:
    buffer = asked.some("buf")
    return [Moved("broadcast_", [buffer.told(buffer.elements), None, asked.root])]


def _all_reduce(asked: Asked) -> list[Moved]:
    buffer = asked.some("sendbuf", "recvbuf")
    return [Moved("allreduce_", [buffer.told(buffer.elements)], True)]


def _reduce(asked: Asked) -> list[Moved]:
    buffer = asked.some("sendbuf", "recvbuf")
    return [Moved("reduce_", [buffer.told(buffer.elements), None, None, asked.root], True)]


def _one_part(asked: Asked, whole: str, part: str) -> dict[str, Any]:
    """What one rank gives or gets: its own buffer, or a part of the whole one where that is in place."""
    own = asked.buffer(part)
    if own is not None:
        return own.told(own.elements)
    buffer = asked.some(whole)
    return buffer.told(buffer.part(asked.size))


def _all_gather(asked: Asked) -> list[Moved]:
    return [Moved("allgather_", [None, _one_part(asked, "recvbuf", "sendbuf")])]


def _all_gather_v(asked: Asked) -> list[Moved]:
    buffer = asked.some("recvbuf", parts=asked.size)
    return _all_gathered(asked, buffer, buffer.parts(asked.size))


def _all_gathered(asked: Asked, kind: Buffer, parts: list[int]) -> list[Moved]:
    own = parts[asked.comm.Get_rank()]
    if min(parts) == max(parts):
        return [Moved("allgather_", [None, kind.told(own)])]
    return asked.exchanged(kind, [own] * len(parts), parts)


def _gather(asked: Asked) -> list[Moved]:
    return [Moved("gather_", [None, _one_part(asked, "recvbuf", "sendbuf"), None, asked.root])]


def _scatter(asked: Asked) -> list[Moved]:
    return [Moved("scatter_", [_one_part(asked, "sendbuf", "recvbuf"), None, None, asked.root])]


def _gather_v(asked: Asked) -> list[Moved]:
    """Only the root knows whether all give the same."""
    if asked.is_root:
        whole = asked.some("recvbuf", parts=asked.size)
        return _gathered(asked, whole, whole.parts(asked.size))
    own = asked.some("sendbuf")
    return _gathered(asked, own, [own.elements])


def _gathered(asked: Asked, kind: Buffer, parts: list[int]) -> list[Moved]:
    """`parts` are all ranks' at the root, its own at another rank."""
    nothing = [0] * asked.size
    if asked.is_root:
        return asked.exchanged(kind, _only(asked.root, asked.size, parts[asked.root]), parts)
    return asked.exchanged(kind, _only(asked.root, asked.size, parts[0]), nothing)


def _scatter_v(asked: Asked) -> list[Moved]:
    if asked.is_root:
        whole = asked.some("sendbuf", parts=asked.size)
        return _scattered(asked, whole, whole.parts(asked.size))
    own = asked.some("recvbuf")
    return _scattered(asked, own, [own.elements])


def _scattered(asked: Asked, kind: Buffer, parts: list[int]) -> list[Moved]:
    if asked.is_root:
        return asked.exchanged(kind, parts, _only(asked.root, asked.size, parts[asked.root]))
    return asked.exchanged(kind, [0] * asked.size, _only(asked.root, asked.size, parts[0]))


def _all_to_all_even(asked: Asked) -> list[Moved]:
    """A rank gives as much as it gets."""
    buffer = asked.some("sendbuf", "recvbuf")
    given = buffer.told(buffer.part(asked.size) * asked.size)
    return [Moved("alltoall_base_", [given, given, None, [], []])]


def _all_to_all_v(asked: Asked) -> list[Moved]:
    receives = asked.some("recvbuf", parts=asked.size)
    sends = asked.some("sendbuf", "recvbuf", parts=asked.size)
    return [_all_to_all(receives, sends.parts(asked.size), receives.parts(asked.size))]


def _reduce_scatter_block(asked: Asked) -> list[Moved]:
    part = asked.some("recvbuf")
    in_place = asked.buffer("sendbuf") is None
    return [Moved("_reduce_scatter_base_", [part.told(part.part(asked.size) if in_place else part.elements)], True)]


def _reduce_scatter(asked: Asked) -> list[Moved]:
    part, counts = asked.some("recvbuf"), asked.values.get("recvcounts")
    if counts is None:
        asked.notes.append("without recvcounts is taken to give all ranks as much")
        return [Moved("_reduce_scatter_base_", [part.told(part.elements)], True)]
    kind = asked.some("sendbuf", "recvbuf")
    parts = [int(count) * kind.scale for count in counts]
    own = parts[asked.comm.Get_rank()]
    if min(parts) == max(parts):
        return [Moved("_reduce_scatter_base_", [kind.told(own)], True)]
    return asked.exchanged(kind, parts, [own] * len(parts))


# -- collectives of objects: of bytes, whose numbers mpi4py lets the ranks know beforehand


def _broadcast_object(asked: Asked) -> list[Moved]:
    return [Moved("broadcast_", [_OBJECT.told(asked.lengths[-1]), None, asked.root])]


def _gather_object(asked: Asked) -> list[Moved]:
    return _gathered(asked, _OBJECT, _last(asked, asked.size if asked.is_root else 1))


def _scatter_object(asked: Asked) -> list[Moved]:
    return _scattered(asked, _OBJECT, asked.lengths[: asked.size] if asked.is_root else _last(asked, 1))


def _all_gather_object(asked: Asked) -> list[Moved]:
    return _all_gathered(asked, _OBJECT, _last(asked, asked.size))


def _all_to_all_object(asked: Asked) -> list[Moved]:
    return [_all_to_all(_OBJECT, asked.lengths[: asked.size], _last(asked, asked.size))]


def _last(asked: Asked, number: int) -> list[int]:
    if len(asked.lengths) < number:
        raise ValueError("an object whose size is not known: MPI.pickle was replaced, or an object is empty")
    return asked.lengths[-number:]


def _all_reduce_object(asked: Asked) -> list[Moved]:
    """mpi4py reduces to rank 0 and broadcasts the result, whose size all then know."""
    return [Moved("allreduce_", [_OBJECT.told(_last(asked, 1)[0])], True)]


def _reduce_object(asked: Asked) -> list[Moved]:
    """The messages that mpi4py sends, as partial results differ in size: a binomial tree to rank 0, then on to the root.

    PyMPI_reduce_p2p in its src/mpi4py/MPI.src/msgpickle.pxi.
    """
    rank, size = asked.comm.Get_rank(), asked.size
    messages = []
    bit = 1
    while bit < size:
        if rank & bit:
            messages.append(("send", rank & ~bit))
        elif rank | bit < size:
            messages.append(("recv_", rank | bit))
        bit <<= 1
    if asked.root != 0 and rank in (0, asked.root):
        messages.append(("send", asked.root) if rank == 0 else ("recv_", 0))
    if len(asked.lengths) - len(messages) not in (0, 2):  # two: its copy of the rank's own object
        raise ValueError("this mpi4py reduces objects in another way")
    lengths = _last(asked, len(messages)) if messages else []
    return [
        Moved(operator, [_OBJECT.told(length), None, peer, _TREE_TAG])
        for (operator, peer), length in zip(messages, lengths)
    ]


# -- which is which


class Method(NamedTuple):
    """A method's arguments in order, what it moves, and whether it only starts it."""

    arguments: tuple[str, ...]
    describe: Callable[[Asked], list[Moved]]
    starts: bool = False

    @property
    def told_at_once(self) -> bool:
        """Whether all is known when it starts."""
        return self.describe not in (_receive, _receive_object)


_SEND, _RECEIVE = ("buf", "dest", "tag"), ("buf", "source", "tag")
_SEND_OBJECT = ("obj", "dest", "tag")
_SEND_RECEIVE = ("sendbuf", "dest", "sendtag", "recvbuf", "source", "recvtag", "status")
_BOTH = ("sendbuf", "recvbuf")
_STARTED_TOO: dict[str, Method] = {
    **{name: Method(_SEND, _send) for name in ("Send", "Bsend", "Ssend", "Rsend")},
    "Recv": Method((*_RECEIVE, "status"), _receive),
    "Barrier": Method((), _barrier),
    "Bcast": Method(("buf", "root"), _broadcast),
    "Gather": Method((*_BOTH, "root"), _gather),
    "Gatherv": Method((*_BOTH, "root"), _gather_v),
    "Scatter": Method((*_BOTH, "root"), _scatter),
    "Scatterv": Method((*_BOTH, "root"), _scatter_v),
    "Allgather": Method(_BOTH, _all_gather),
    "Allgatherv": Method(_BOTH, _all_gather_v),
    "Alltoall": Method(_BOTH, _all_to_all_even),
    "Alltoallv": Method(_BOTH, _all_to_all_v),
    "Reduce": Method((*_BOTH, "op", "root"), _reduce),
    "Allreduce": Method((*_BOTH, "op"), _all_reduce),
    "Reduce_scatter_block": Method((*_BOTH, "op"), _reduce_scatter_block),
    "Reduce_scatter": Method((*_BOTH, "recvcounts", "op"), _reduce_scatter),
    **{name: Method(_SEND_OBJECT, _send_object) for name in ("send", "bsend", "ssend")},
    "recv": Method((*_RECEIVE, "status"), _receive_object),
}


def _starting(name: str) -> tuple[str, Method]:
    """The method that only starts what `name` does."""
    method = _STARTED_TOO[name]
    return f"{'i' if name.islower() else 'I'}{name.lower()}", Method(
        tuple(argument for argument in method.arguments if argument != "status"), method.describe, True
    )


METHODS: dict[str, Method] = {
    **_STARTED_TOO,
    **dict(map(_starting, _STARTED_TOO)),
    "Sendrecv": Method(_SEND_RECEIVE, _send_receive),
    "Sendrecv_replace": Method(("buf", "dest", "sendtag", "source", "recvtag", "status"), _send_receive),
    "sendrecv": Method(("sendobj", "dest", "sendtag", "recvbuf", "source", "recvtag", "status"), _send_receive_object),
    "barrier": Method((), _barrier),
    "bcast": Method(("obj", "root"), _broadcast_object),
    "gather": Method(("sendobj", "root"), _gather_object),
    "scatter": Method(("sendobj", "root"), _scatter_object),
    "allgather": Method(("sendobj",), _all_gather_object),
    "alltoall": Method(("sendobj",), _all_to_all_object),
    "reduce": Method(("sendobj", "op", "root"), _reduce_object),
    "allreduce": Method(("sendobj", "op"), _all_reduce_object),
}

_NEIGHBORS = ("allgather", "allgatherv", "alltoall", "alltoallv", "alltoallw")
UNRECORDED: dict[str, tuple[str, ...]] = {
    "Comm": ("Alltoallw", "Ialltoallw", "Isendrecv", "Isendrecv_replace", "Probe", "Mprobe", "probe", "mprobe"),
    "Intracomm": ("Scan", "Exscan", "Iscan", "Iexscan", "scan", "exscan"),
    "Topocomm": (
        *[f"{start}eighbor_{name}" for start in ("N", "In") for name in _NEIGHBORS],
        *("neighbor_allgather", "neighbor_alltoall"),
    ),
    "Prequest": ("Start", "Startall"),
    "Message": ("Recv", "Irecv", "recv", "irecv"),
    "Win": ("Put", "Get", "Accumulate", "Get_accumulate", "Rput", "Rget", "Raccumulate", "Rget_accumulate", "Fence"),
}
"""Methods that move bytes and are not recorded, by the class that has them."""
