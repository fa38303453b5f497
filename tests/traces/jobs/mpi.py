"""An MPI job for tests: `mpi.py MODE STEPS FOLDER`. It knows nothing of Tracebed but the call that ends a step.

Each rank writes what it called itself, `said.RANK.json`: for every step [kind, elements, type, peer or root, send splits, receive
splits, ranks].
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tracebed_record
from mpi4py import MPI

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()
LEFT, RIGHT = (RANK - 1) % SIZE, (RANK + 1) % SIZE
SAID: list[list[Any]] = []


def say(
    kind: str, count: int, dtype: str = "float32", peer: int = -1, sends: Any = (), receives: Any = (), ranks: Any = ()
) -> None:
    SAID[-1].append([kind, count, dtype, peer, list(sends), list(receives), list(ranks) or list(range(SIZE))])


def floats(count: int) -> np.ndarray[Any, Any]:
    return np.ones(count, np.float32)


def collectives() -> None:
    """Each way of saying how much a buffer holds; parts in place; other types."""
    WORLD.Barrier()
    say("barrier", 0, "uint8")
    WORLD.Bcast([floats(9), 4, MPI.FLOAT], root=1)
    say("broadcast", 4, peer=1)
    WORLD.Reduce(np.ones(6), np.ones(6), MPI.MAX, 2)
    say("reduce", 6, "float64", 2)
    WORLD.Allreduce(MPI.IN_PLACE, np.ones(12, np.int64))
    say("all_reduce", 12, "int64")
    WORLD.Gather(floats(5), floats(5 * SIZE) if RANK == 1 else None, root=1)
    say("gather", 5, peer=1)
    WORLD.Scatter([floats(3 * SIZE), MPI.FLOAT] if RANK == 0 else None, floats(3))
    say("scatter", 3, peer=0)
    WORLD.Allgather(MPI.IN_PLACE, [floats(7 * SIZE), MPI.FLOAT])
    say("all_gather", 7)
    WORLD.Allgather([floats(9), 2, MPI.FLOAT], [floats(9 * SIZE), 2, "f"])
    say("all_gather", 2)
    WORLD.Alltoall(floats(2 * SIZE), floats(2 * SIZE))
    say("all_to_all", 2 * SIZE)
    WORLD.Alltoall(MPI.IN_PLACE, [floats(99), 3, MPI.FLOAT])
    say("all_to_all", 3 * SIZE)
    WORLD.Reduce_scatter_block(floats(4 * SIZE), floats(4), op=MPI.SUM)
    say("reduce_scatter", 4)
    WORLD.Reduce_scatter(floats(2 * SIZE), floats(2), [2] * SIZE)
    say("reduce_scatter", 2)
    row = MPI.FLOAT.Create_vector(3, 2, 4).Commit()  # 24 bytes of 40
    WORLD.Bcast([floats(20), 2, row], 0)
    say("broadcast", 48, "uint8", 0)
    row.Free()


def uneven() -> None:
    """Parts of different sizes."""
    counts = [part + 1 for part in range(SIZE)]
    total, own, nothing = sum(counts), RANK + 1, [0] * SIZE
    WORLD.Alltoallv([floats(SIZE * own), [own] * SIZE], [floats(total), (counts, None), MPI.FLOAT])
    say("all_to_all", SIZE * own, sends=[own] * SIZE, receives=counts)
    WORLD.Allgatherv(floats(own), [floats(total), counts])
    say("all_to_all", SIZE * own, sends=[own] * SIZE, receives=counts)
    WORLD.Allgatherv(floats(2), floats(2 * SIZE))
    say("all_gather", 2)
    at_root = [own if part == 1 else 0 for part in range(SIZE)]
    WORLD.Gatherv(floats(own), [floats(total), counts, MPI.FLOAT] if RANK == 1 else None, root=1)
    say("all_to_all", own, sends=at_root, receives=counts if RANK == 1 else nothing)
    WORLD.Scatterv([floats(total), counts] if RANK == 1 else None, floats(own), root=1)
    sends = counts if RANK == 1 else nothing
    say("all_to_all", sum(sends), sends=sends, receives=at_root)
    WORLD.Reduce_scatter(floats(total), floats(own), counts)
    say("all_to_all", total, sends=counts, receives=[own] * SIZE)


def messages() -> None:
    """Blocking and not; who sends, how much and with which tag is known only when it has come; all ways of waiting."""
    WORLD.Sendrecv(floats(5), RIGHT, 3, floats(9), LEFT, MPI.ANY_TAG)
    say("send", 5, peer=RIGHT)
    say("recv", 5, peer=LEFT)
    into = floats(50)
    requests = [WORLD.Irecv(into, MPI.ANY_SOURCE, MPI.ANY_TAG), WORLD.Isend([floats(8), 6, MPI.FLOAT], RIGHT, 4)]
    MPI.Request.Waitall(requests)
    say("recv", 6, peer=LEFT)
    say("send", 6, peer=RIGHT)
    for wait in ways():
        wait([WORLD.Irecv([into, MPI.FLOAT], LEFT, 5), WORLD.Isend(floats(7), RIGHT, 5), MPI.REQUEST_NULL])
        say("recv", 7, peer=LEFT)
        say("send", 7, peer=RIGHT)
    WORLD.Send(floats(1), MPI.PROC_NULL)
    WORLD.Recv(floats(1), MPI.PROC_NULL)
    for request, kind in (
        (WORLD.Iallreduce(floats(11), floats(11), MPI.MAX), "all_reduce"),
        (WORLD.Ibarrier(), "barrier"),
    ):
        while not request.Test():
            pass
        say(kind, *((0, "uint8") if kind == "barrier" else (11, "float32")))


def ways() -> Iterator[Callable[[list[MPI.Request]], None]]:
    """All requests waited for, in each way that there is."""

    def until_none(wait: Callable[[list[MPI.Request]], Any]) -> Callable[[list[MPI.Request]], None]:
        def waits(requests: list[MPI.Request]) -> None:
            while any(request != MPI.REQUEST_NULL for request in requests):
                wait(requests)

        return waits

    request = MPI.Request
    yield lambda requests: [one.Wait() for one in requests] and None
    yield lambda requests: [one.wait(MPI.Status()) for one in requests] and None
    for name in ("Waitany", "Waitsome", "Testall", "Testany", "Testsome", "waitany", "waitsome", "testall", "testany"):
        yield until_none(getattr(request, name))
    yield lambda requests: request.Waitall(requests, [])


def objects() -> None:
    """As bytes: as many as pickle makes."""
    text = {"rank": "x" * 1000}
    packed = len(MPI.pickle.dumps(text))
    assert WORLD.bcast(text if RANK == 2 else None, root=2) == text
    say("broadcast", packed, "uint8", 2)
    assert len(WORLD.allgather(text)) == SIZE
    say("all_gather", packed, "uint8")
    mine = ["y" * (RANK + part) for part in range(SIZE)]
    sends = [len(MPI.pickle.dumps(one)) for one in mine]
    receives = [len(MPI.pickle.dumps("y" * (RANK + part))) for part in range(SIZE)]
    WORLD.alltoall(mine)
    say("all_to_all", sum(sends), "uint8", sends=sends, receives=receives)
    gathered = WORLD.gather("z" * RANK, root=1)
    sizes = [len(MPI.pickle.dumps("z" * part)) for part in range(SIZE)]
    at_root = [sizes[RANK] if part == 1 else 0 for part in range(SIZE)]
    say("all_to_all", sizes[RANK], "uint8", sends=at_root, receives=sizes if RANK == 1 else [0] * SIZE)
    assert WORLD.scatter(gathered, root=1) == "z" * RANK
    sends = sizes if RANK == 1 else [0] * SIZE
    say("all_to_all", sum(sends), "uint8", sends=sends, receives=at_root)
    total = WORLD.allreduce(1 << (8 * RANK))
    say("all_reduce", len(MPI.pickle.dumps(total)), "uint8")
    request = WORLD.isend(text, RIGHT, 8)
    assert WORLD.recv(tag=8) == text
    say("send", packed, "uint8", RIGHT)
    say("recv", packed, "uint8", LEFT)
    request.wait()
    request = WORLD.irecv(5000, LEFT)
    assert WORLD.sendrecv("a", LEFT, 9, source=RIGHT, recvtag=9) == "a"
    WORLD.send(text, RIGHT)
    assert request.wait() == text
    one = len(MPI.pickle.dumps("a"))
    say("recv", packed, "uint8", LEFT)
    say("send", one, "uint8", LEFT)
    say("recv", one, "uint8", RIGHT)
    say("send", packed, "uint8", RIGHT)


def groups() -> None:
    """Communicators that are split, doubled, made from a group; also in another order of ranks."""
    half = WORLD.Split(RANK % 2, -RANK)
    members = list(range(RANK % 2, SIZE, 2))[::-1]
    half.Allreduce(floats(RANK % 2 + 1), floats(RANK % 2 + 1))
    half.Bcast(floats(3), root=1)
    if len(members) > 1:
        say("all_reduce", RANK % 2 + 1, ranks=members)
        say("broadcast", 3, peer=members[1], ranks=members)
    copies = {4: WORLD.Dup(), 5: WORLD.Clone()}
    for count in sorted(copies, reverse=RANK == 0):  # not in the same order everywhere
        copies[count].Isend(floats(count), RIGHT).Wait()
        say("send", count, peer=RIGHT)
    for count, copy in copies.items():
        copy.Recv(floats(count), LEFT)
        say("recv", count, peer=LEFT)
    few = WORLD.Create(WORLD.Get_group().Incl([2, 0]))
    if few != MPI.COMM_NULL:
        few.Gather(floats(2), floats(4), root=0)
        say("gather", 2, peer=2, ranks=[2, 0])
        few.Free()
    line = WORLD.Create_cart([SIZE], periods=[True])
    source, dest = line.Shift(0, 1)
    line.Sendrecv_replace(floats(6), dest, source=source)
    say("send", 6, peer=RIGHT)
    say("recv", 6, peer=LEFT)
    for made in (half, line, *copies.values()):
        made.Free()


def main() -> None:
    mode, steps, folder = sys.argv[1:4]
    for _ in range(int(steps)):
        SAID.append([])
        globals()[mode]()
        tracebed_record.step()
    Path(folder, f"said.{RANK}.json").write_text(json.dumps(SAID))


main()
