"""A training job for tests: `train.py MODE STEPS [FOLDER]`. It knows nothing of Tracebed.

With FOLDER each rank writes what it called itself, `said.RANK.json`: for every step [kind, elements, type, peer, send splits,
receive splits, ranks]; or, in the modes in which torch calls, what torch's own profiler saw, `kineto.RANK.json`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

SAID: list[list[Any]] = []
DEFINED: list[Any] = []


def say(
    kind: str, tensor: torch.Tensor, *, peer: int = -1, sends: Any = (), receives: Any = (), ranks: Any = ()
) -> None:
    group = list(ranks) or list(range(dist.get_world_size()))
    SAID[-1].append([kind, tensor.numel(), str(tensor.dtype)[6:], peer, list(sends), list(receives), group])


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 256))


def heavy() -> Callable[[], None]:
    """Much to compute for what there is to send."""
    return ddp(batch=8192)


def ddp(batch: int = 512) -> Callable[[], None]:
    model = nn.parallel.DistributedDataParallel(network(), bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(batch, 256)).sum().backward()
        optimizer.step()

    return step


def fsdp2() -> Callable[[], None]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = network()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(32, 256)).sum().backward()
        optimizer.step()

    return step


def tp() -> Callable[[], None]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = parallelize_module(
        network(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel(), "4": ColwiseParallel()}
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(32, 256)).sum().backward()
        optimizer.step()

    return step


def pp() -> Callable[[], None]:
    """Stages pass activations on and gradients back, two micro-batches a step, with batch_isend_irecv."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    stage = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.01)

    def exchange(kind: str, tensor: torch.Tensor, peer: int) -> None:
        operation = dist.P2POp(dist.isend if kind == "send" else dist.irecv, tensor, peer)
        say(kind, tensor, peer=peer)
        for work in dist.batch_isend_irecv([operation]):
            work.wait()

    def step() -> None:
        optimizer.zero_grad()
        passes = []
        for _ in range(2):
            entering = torch.randn(16, 64)
            if rank > 0:
                exchange("recv", entering, rank - 1)
            entering.requires_grad_()
            leaving = stage(entering)
            passes.append((entering, leaving))
            if rank < last:
                exchange("send", leaving.detach(), rank + 1)
        for entering, leaving in passes:
            gradient = torch.ones(16, 64)
            if rank < last:
                exchange("recv", gradient, rank + 1)
            leaving.backward(gradient)
            if rank > 0:
                assert entering.grad is not None
                exchange("send", entering.grad, rank - 1)
        optimizer.step()

    return step


def moe() -> Callable[[], None]:
    """Tokens go to the ranks of their experts and back, unevenly; each rank's experts get another number."""
    rank, size = dist.get_rank(), dist.get_world_size()
    expert = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(expert.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        sends = [1 + (rank + 2 * other) % 5 for other in range(size)]
        receives = [1 + (other + 2 * rank) % 5 for other in range(size)]
        tokens, dispatched = torch.randn(sum(sends), 8), torch.empty(sum(receives), 8)
        rows = [[8 * part for part in parts] for parts in (sends, receives)]
        say("all_to_all", tokens, sends=rows[0], receives=rows[1])
        dist.all_to_all_single(dispatched, tokens, receives, sends)
        answered = expert(dispatched)
        combined = torch.empty(sum(sends), 8)
        say("all_to_all", answered, sends=rows[1], receives=rows[0])
        dist.all_to_all_single(combined, answered.detach(), sends, receives)
        answered.sum().backward()
        optimizer.step()

    return step


def groups() -> Callable[[], None]:
    """Two data-parallel pairs beside two others, asynchronous and not, objects, coalesced, every kind of collective."""
    rank, size = dist.get_rank(), dist.get_world_size()
    halves = [list(range(0, size, 2)), list(range(1, size, 2))]
    made = [dist.new_group(half) for half in halves]
    mine, ranks = made[rank % 2], halves[rank % 2]
    optimizer = torch.optim.SGD(nn.Linear(4, 4).parameters(), lr=0.01)

    def step() -> None:
        tensor = torch.ones(1000, dtype=torch.bfloat16)
        say("all_reduce", tensor)
        pending = dist.all_reduce(tensor, async_op=True)
        other = torch.ones(64)
        say("all_reduce", other, ranks=ranks)
        dist.all_reduce(other, op=dist.ReduceOp.MAX, group=mine)
        pending.wait()
        say("all_gather", torch.ones(100))
        dist.all_gather_into_tensor(torch.empty(100 * size), torch.ones(100))
        say("reduce_scatter", torch.ones(25))
        dist.reduce_scatter_tensor(torch.empty(25), torch.ones(25 * size))
        say("broadcast", torch.ones(77, dtype=torch.int64), peer=1)
        dist.broadcast(torch.ones(77, dtype=torch.int64), src=1)
        say("reduce", torch.ones(33), peer=size - 1)
        dist.reduce(torch.ones(33), dst=size - 1)
        say("gather", torch.ones(9), peer=0)
        dist.gather(torch.ones(9), [torch.empty(9) for _ in range(size)] if rank == 0 else None, dst=0)
        say("scatter", torch.ones(9), peer=0)
        dist.scatter(torch.empty(9), [torch.ones(9) for _ in range(size)] if rank == 0 else None, src=0)
        if rank == size - 1:
            say("send", torch.ones(12), peer=0)
            dist.send(torch.ones(12), 0)
        elif rank == 0:
            say("recv", torch.ones(12), peer=size - 1)
            dist.recv(torch.empty(12))  # from any source
        for count in (5, 6):
            say("all_reduce", torch.ones(count))
            dist.all_reduce(torch.ones(count))
        say("barrier", torch.ones(0, dtype=torch.uint8))
        dist.barrier()
        with torch.inference_mode():
            say("all_reduce", torch.ones(3))
            dist.all_reduce(torch.ones(3))
        optimizer.step()

    return step


def define_an_operator() -> None:
    """One that a later torch may have."""
    library = torch.library.Library("c10d", "FRAGMENT")
    library.define("shuffle_(Tensor[] tensors, __torch__.torch.classes.c10d.ProcessGroup process_group) -> ()")
    library.impl("shuffle_", lambda tensors, group: None, "CPU")
    DEFINED.append(library)


def new() -> Callable[[], None]:
    group = dist.distributed_c10d._get_default_group().boxed()

    def step() -> None:
        tensor = torch.ones(8)
        dist.all_reduce(tensor)
        torch.ops.c10d.shuffle_([tensor], group)

    return step


def main() -> None:
    mode, steps = sys.argv[1], int(sys.argv[2])
    folder = Path(sys.argv[3]) if len(sys.argv) > 3 else None
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if mode == "new":
        define_an_operator()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    steps_of = {
        "ddp": ddp,
        "heavy": heavy,
        "fsdp2": fsdp2,
        "tp": tp,
        "pp": pp,
        "moe": moe,
        "groups": groups,
        "new": new,
    }
    step = steps_of[mode]()
    dies = os.environ.get("DIES_AT_STEP")
    if folder is not None and mode in ("ddp", "fsdp2", "tp"):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profile:
            for _ in range(steps):
                step()
                profile.step()
        profile.export_chrome_trace(str(folder / f"kineto.{rank}.json"))
    else:
        for number in range(steps):
            SAID.append([])
            if dies and number == int(dies) and rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            step()
        if folder is not None:
            (folder / f"said.{rank}.json").write_text(json.dumps(SAID))
    dist.destroy_process_group()
    # Where torch's profiler ran, gloo's threads may still end a rank with SIGABRT as Python ends, recorded or not.
    os._exit(0)


if __name__ == "__main__":
    main()
