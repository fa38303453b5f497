"""PyTorch's gloo backend (torch.distributed), unmodified, as a program's library.

Only the size of what is sent is real: every operation reads and writes the same zeros, so a rank takes the memory of its
largest. Importing this imports torch, which must be before the ranks are forked.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from replay.library.program import End, Library, Make, World, most_bytes
from replay.plan import RankPlan, Transfer
from replay.transports.endpoint import PeerLostError
from traces.program import Collective, CollectiveKind, DType, Recv, Send

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # it warns that hosts have no names
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

NAME = f"gloo of torch {torch.__version__}"
KNOWN = "its own algorithms, connections and threads (two a group, so two operations of a group may overlap)"
_PORT = "eth0"  # else gloo asks a resolver for the host's address
_NEVER = timedelta(days=365)  # whether a run stands still is for its coordinator to say
_TYPES = {
    DType.UINT8: torch.uint8, DType.INT8: torch.int8, DType.BOOL: torch.bool, DType.FLOAT8: torch.uint8,
    DType.INT16: torch.float16, DType.FLOAT16: torch.float16, DType.BFLOAT16: torch.bfloat16,
    DType.INT32: torch.int32, DType.FLOAT32: torch.float32,
    DType.INT64: torch.int64, DType.FLOAT64: torch.float64,
    DType.COMPLEX64: torch.complex64, DType.COMPLEX128: torch.complex128,
}  # fmt: skip
"""Of two that gloo refuses ("Invalid scalar type"), another of their size."""
_REDUCTIONS = {"min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX, "prod": dist.ReduceOp.PRODUCT}
"""All others are sums: they move and add up as much."""


class _Gloo:
    """One rank's process group. Made where the rank's host has been entered; opens the store that ranks meet at."""

    def __init__(self, plan: RankPlan, world: World, addresses: Mapping[int, tuple[str, int]]) -> None:
        warnings.simplefilter("ignore")  # of torch, about calls of its own that it will drop
        os.environ["GLOO_SOCKET_IFNAME"] = _PORT
        torch.set_num_threads(1)
        self._rank, self._world = plan.rank, world
        self._addresses = addresses
        self._places = world.places
        self._me = self._places[plan.rank]
        self._meeting = addresses[world.ranks[0]]
        self._store = self._meet() if self._me == 0 else None
        self._groups: dict[int, Any] = {}
        largest = most_bytes(plan)
        self._given, self._taken = torch.zeros(largest, dtype=torch.uint8), torch.zeros(largest, dtype=torch.uint8)

    def _meet(self) -> TCPStore:
        host, port = self._meeting
        return TCPStore(host, port, None, self._me == 0, _NEVER, wait_for_workers=False)

    def connect(self) -> None:
        """Every two ranks of a group have a connection of that group's."""
        store = self._store or self._meet()
        size = len(self._world.ranks)
        dist.init_process_group("gloo", store=store, rank=self._me, world_size=size, timeout=_NEVER)
        for group, ranks in self._world.groups.items():
            self._groups[group] = dist.new_group([self._places[rank] for rank in ranks], timeout=_NEVER)

    def start(self, transfer: Transfer) -> End:
        """An operation that is not waited for, as DistributedDataParallel starts them."""
        with self._peers_named():
            work = self._started(transfer)

        def end() -> None:
            with self._peers_named():
                work.wait()

        return end

    @contextmanager
    def _peers_named(self) -> Iterator[None]:
        """Gloo names a connection that broke by the address at its other end."""
        try:
            yield
        except RuntimeError as error:
            if (gone := re.search(r"([^\]]*) by peer \[([^\]]*)\]", str(error))) is None:
                raise
            peers = " or ".join(str(rank) for rank in self._world.ranks if self._addresses[rank][0] == gone[2])
            raise PeerLostError(
                f"rank {self._rank} lost its connection to rank {peers} ({gone[1].strip().lower()})"
            ) from error

    def _started(self, transfer: Transfer) -> Any:
        op = transfer.op
        if isinstance(op, Collective):
            return self._collective(transfer, op)
        tag = self._world.tags[op.group, op.tag]
        there, data = self._places[op.peer], _part(self._given if isinstance(op, Send) else self._taken, op)
        return dist.isend(data, there, tag=tag) if isinstance(op, Send) else dist.irecv(data, there, tag=tag)

    def _collective(self, transfer: Transfer, op: Collective) -> Any:
        kind, size = op.kind, len(transfer.ranks)
        how: dict[str, Any] = {"group": self._groups[op.group], "async_op": True}
        reduction = _REDUCTIONS.get(op.reduce_op, dist.ReduceOp.SUM)
        given, taken = self._given, self._taken
        root = self._places.get(op.root, -1)
        mine = root == self._me
        if kind is CollectiveKind.ALL_REDUCE:
            return dist.all_reduce(_part(given, op), reduction, **how)
        if kind is CollectiveKind.REDUCE_SCATTER:
            return dist.reduce_scatter_tensor(_part(taken, op), _part(given, op, op.count * size), reduction, **how)
        if kind is CollectiveKind.ALL_GATHER:
            return dist.all_gather_into_tensor(_part(taken, op, op.count * size), _part(given, op), **how)
        if kind is CollectiveKind.ALL_TO_ALL:
            return self._all_to_all(transfer, op, how)
        if kind is CollectiveKind.BROADCAST:
            return dist.broadcast(_part(given, op), root, **how)
        if kind is CollectiveKind.REDUCE:
            return dist.reduce(_part(given, op), root, reduction, **how)
        if kind is CollectiveKind.GATHER:
            slots = _slots(taken, op, size) if mine else None
            return dist.gather(_part(given, op), slots, root, **how)
        if kind is CollectiveKind.SCATTER:
            slots = _slots(given, op, size) if mine else None
            return dist.scatter(_part(taken, op), slots, root, **how)
        return dist.barrier(**how)

    def _all_to_all(self, transfer: Transfer, op: Collective, how: dict[str, Any]) -> Any:
        call = transfer.call
        # Torch sorts a group's ranks, so its places are not the recording's.
        order = sorted(range(call.size), key=lambda place: self._places[transfer.ranks[place]])
        sent, come = [call.send_splits[place] for place in order], [call.recv_splits[place] for place in order]
        return dist.all_to_all_single(
            _part(self._taken, op, sum(come)), _part(self._given, op, sum(sent)), come, sent, **how
        )


def _part(memory: torch.Tensor, op: Collective | Send | Recv, count: int = -1) -> torch.Tensor:
    """The first `count` elements, or as many as `op` says."""
    nbytes = (op.count if count == -1 else count) * op.dtype.itemsize
    return memory[:nbytes].view(_TYPES[op.dtype])


def _slots(memory: torch.Tensor, op: Collective, size: int) -> list[torch.Tensor]:
    return list(_part(memory, op, op.count * size).reshape(size, op.count).unbind())


def prepare(world: World) -> Make:
    """Makes the library of one rank, in its process and on its host."""

    def make(plan: RankPlan, addresses: Mapping[int, tuple[str, int]]) -> Library:
        return _Gloo(plan, world, addresses)

    return make
