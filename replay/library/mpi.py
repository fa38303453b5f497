"""MPICH, through mpi4py, unmodified, as a program's library.

As PyTorch's MPI backend and Horovod do, a thread of the rank's runs each group's collectives one after the other, with blocking
calls; messages are started at once by the rank itself. Only sizes are real, as in `replay.library.gloo`. Importing this loads
MPICH, which must be before the ranks are forked; it is initialised in each rank.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

import mpi4py
import numpy as np

from replay.library.pmi import Lines
from replay.library.program import End, Library, Make, World, most_bytes
from replay.plan import RankPlan, Transfer
from traces.program import Collective, CollectiveKind, DType, Recv, Send

mpi4py.rc.initialize = False
from mpi4py import MPI  # noqa: E402 (what is set above holds as it is imported)

_MADE_BY, _, _VERSION = MPI.Get_library_version().partition(" Version:")
if _MADE_BY != "MPICH":
    raise ImportError(f"mpi4py has found {_MADE_BY.strip()}, not MPICH")

NAME = f"MPICH {_VERSION.split()[0]} through mpi4py {mpi4py.__version__}"
KNOWN = "its own algorithms, over TCP; a thread for the collectives of each group, one after the other"
_SETTINGS = {
    "MPIR_CVAR_NOLOCAL": "1",
    "MPIR_CVAR_CH4_NETMOD": "ofi",
    "FI_PROVIDER": "tcp",
    "FI_TCP_IFACE": "eth0",
}
"""TCP between all ranks: MPICH would else use shared memory between those on one machine."""
_TYPES = {
    DType.UINT8: MPI.UINT8_T, DType.INT8: MPI.INT8_T, DType.BOOL: MPI.UINT8_T, DType.FLOAT8: MPI.UINT8_T,
    DType.INT16: MPI.INT16_T, DType.FLOAT16: MPI.INT16_T, DType.BFLOAT16: MPI.INT16_T,
    DType.INT32: MPI.INT32_T, DType.FLOAT32: MPI.FLOAT, DType.INT64: MPI.INT64_T, DType.FLOAT64: MPI.DOUBLE,
    DType.COMPLEX64: MPI.C_FLOAT_COMPLEX, DType.COMPLEX128: MPI.C_DOUBLE_COMPLEX,
}  # fmt: skip
"""Of those that MPI has not, another of their size."""
_REDUCTIONS = {"min": MPI.MIN, "max": MPI.MAX, "prod": MPI.PROD}
"""All others are sums: they move and add up as much."""


class _Worker:
    """Runs what it is given, in turn, in a thread of its own."""

    def __init__(self) -> None:
        self._given: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            self._given.get()()

    def start(self, call: Callable[[], object]) -> End:
        """Has `call` made. What this gives blocks until that has ended, and raises what it raised."""
        ended, failed = threading.Event(), list[Exception]()

        def work() -> None:
            try:
                call()
            except Exception as error:  # whatever it is, the rank's own thread is to fail with it
                failed.append(error)
            ended.set()

        def end() -> None:
            ended.wait()
            for error in failed:
                raise error

        self._given.put(work)
        return end


class _Mpi:
    """One rank's MPI. Made where the rank's host has been entered."""

    def __init__(self, plan: RankPlan, world: World, lines: Lines) -> None:
        self._world = world
        self._places = world.places
        self._me = self._places[plan.rank]
        size = str(len(world.ranks))
        os.environ.update(_SETTINGS, PMI_FD=str(lines.take(self._me)), PMI_RANK=str(self._me), PMI_SIZE=size)
        self._groups: dict[int, MPI.Intracomm] = {}
        self._workers: dict[int, _Worker] = {}
        largest = most_bytes(plan)
        self._given, self._taken = np.zeros(largest, np.uint8), np.zeros(largest, np.uint8)

    def connect(self) -> None:
        """A communicator of each group, in the group's order."""
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
        everyone = MPI.COMM_WORLD
        for number, (group, ranks) in enumerate(self._world.groups.items()):
            places = [self._places[rank] for rank in ranks]
            if self._me in places:
                self._groups[group] = everyone.Create_group(everyone.group.Incl(places), tag=number)
                self._workers[group] = _Worker()

    def start(self, transfer: Transfer) -> End:
        op = transfer.op
        if isinstance(op, Collective):
            return self._workers[op.group].start(self._collective(transfer, op))
        there, tag = self._places[op.peer], self._world.tags[op.group, op.tag]
        if isinstance(op, Send):
            return MPI.COMM_WORLD.Isend(_blocks(self._given, op), there, tag).Wait
        return MPI.COMM_WORLD.Irecv(_blocks(self._taken, op), there, tag).Wait

    def _collective(self, transfer: Transfer, op: Collective) -> Callable[[], object]:
        group, kind = self._groups[op.group], op.kind
        given, taken = (_blocks(memory, op) for memory in (self._given, self._taken))
        how = MPI.SUM if op.dtype.name.startswith("COMPLEX") else _REDUCTIONS.get(op.reduce_op, MPI.SUM)
        root = transfer.ranks.index(op.root) if op.root in transfer.ranks else -1
        mine = root == group.rank
        calls: dict[CollectiveKind, Callable[[], object]] = {
            CollectiveKind.ALL_REDUCE: lambda: group.Allreduce(given, taken, how),
            CollectiveKind.REDUCE_SCATTER: lambda: group.Reduce_scatter_block(given, taken, how),
            CollectiveKind.ALL_GATHER: lambda: group.Allgather(given, taken),
            CollectiveKind.ALL_TO_ALL: lambda: self._all_to_all(transfer, op, group),
            CollectiveKind.BROADCAST: lambda: group.Bcast(given, root),
            CollectiveKind.REDUCE: lambda: group.Reduce(given, taken if mine else None, how, root),
            CollectiveKind.GATHER: lambda: group.Gather(given, taken if mine else None, root),
            CollectiveKind.SCATTER: lambda: group.Scatter(given if mine else None, taken, root),
            CollectiveKind.BARRIER: group.Barrier,
        }
        return calls[kind]

    def _all_to_all(self, transfer: Transfer, op: Collective, group: MPI.Intracomm) -> None:
        call, kind = transfer.call, _TYPES[op.dtype]
        given, taken = list(call.send_splits), list(call.recv_splits)
        group.Alltoallv([self._given, given, kind], [self._taken, taken, kind])


def _blocks(memory: np.ndarray[Any, np.dtype[np.uint8]], op: Collective | Send | Recv) -> Any:
    """A buffer as mpi4py takes it: the count is that of one rank's block, also where there is one of each rank."""
    return [memory, op.count, _TYPES[op.dtype]]


def prepare(world: World) -> Make:
    """Makes the library of one rank, in its process and on its host."""
    lines = Lines(len(world.ranks))

    def make(plan: RankPlan, addresses: Mapping[int, tuple[str, int]]) -> Library:
        return _Mpi(plan, world, lines)

    return make
