"""Jobs run by a library itself in virtual time: as long as ours, the same in every run, every kind of operation, and their ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from emulator.errors import BedError
from replay.request import LIBRARIES
from replay.session import load_network, new_folder, read_job, replay
from tests.replay.network import trace_of
from tests.replay.runs import all_reduces, replayed, rows, run_json, step_times, tracebed, written
from traces.program import Collective, CollectiveKind, Compute, DType, Group, Op, Recv, Send, StepMark, Trace, Wait

pytestmark = [pytest.mark.lab, pytest.mark.torch, pytest.mark.usefixtures("lab", "torch", "mpi")]

NETWORK = "ethernet-10g"
NAMES = {"gloo": "gloo of torch", "mpi": "MPICH"}


def buckets(ranks: int, steps: int) -> Trace:
    """As DistributedDataParallel trains: buckets of 25 MB are reduced under the backward pass, and waited for at its end."""
    ops: list[Op] = []
    for step in range(steps):
        started = []
        for _ in range(3):
            ops.append(Compute(15_000_000))
            started.append(len(ops))
            ops.append(Collective(CollectiveKind.ALL_REDUCE, 0, 25_000_000 // 4, DType.FLOAT32))
        ops += [*map(Wait, started), StepMark(step)]
    return trace_of(dict.fromkeys(range(ranks), ops), steps=steps)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("job", ["ring", "buckets"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_takes_as_long_as_our_ring(library: str, job: str, ranks: int, tmp_path: Path) -> None:
    """But for the first step, in which each connects or finds TCP's rate. Large tensors on few ranks: gloo takes a ring, MPICH
    halving and doubling, which moves as much in fewer and larger messages, each of them whole before it is reduced."""
    made = all_reduces(ranks, 25_000_000, steps=3) if job == "ring" else buckets(ranks, steps=3)
    trace = written(made, tmp_path)
    run, theirs = replayed(trace, NETWORK, tmp_path, library=library)
    _, ours = replayed(trace, NETWORK, tmp_path)
    ratios = [their / our for their, our in zip(step_times(theirs)[1:], step_times(ours)[1:], strict=True)]
    print(
        f"{job} of {ranks} ranks: a step of {library}'s takes {ratios} of ours, which takes {step_times(ours)[1:]} ns"
    )
    assert all(0.99 <= ratio <= {"gloo": 1.05, "mpi": 1.25}[library] for ratio in ratios)
    assert any(text.startswith(f"operations by {NAMES[library]} ") for text in run.assumed)


def everything() -> Trace:
    """Each kind once, in a group of all and in one of two that the recording has in another order, and messages."""

    def ops(rank: int) -> list[Op]:
        made: list[Op] = []

        def done(op: Op) -> None:
            made.append(op)
            made.append(Wait(len(made) - 1))

        for kind in CollectiveKind:
            root = 2 if kind in ("broadcast", "reduce", "gather", "scatter") else -1
            for group in (0,) if rank == 1 else (0, 7):
                for dtype in (DType.FLOAT32, DType.INT16, DType.FLOAT8):
                    count = 0 if kind == "barrier" else 6_000
                    done(Collective(kind, group, count, dtype, root=root, reduce_op="avg"))
        for count in (0, 100_000):
            done(Collective(CollectiveKind.ALL_GATHER, 0, count))
            made.append(Send((rank + 1) % 3, count, tag=4))
            done(Recv((rank - 1) % 3, count, tag=4))
            made.append(Wait(len(made) - 3))
        splits = {0: ((0, 10, 20), (0, 5, 7)), 1: ((5, 0, 9), (10, 0, 8)), 2: ((7, 8, 0), (20, 9, 0))}
        done(Collective(CollectiveKind.ALL_TO_ALL, 0, sum(splits[rank][0]), DType.INT64,
                        send_splits=splits[rank][0], recv_splits=splits[rank][1]))  # fmt: skip
        if rank != 1:
            mine = {2: ((0, 30), (0, 11)), 0: ((11, 0), (30, 0))}[rank]
            done(Collective(CollectiveKind.ALL_TO_ALL, 7, sum(mine[0]), send_splits=mine[0], recv_splits=mine[1]))
        return [*made, StepMark(0)]

    groups = [Group(0, "all", (0, 1, 2), 0), Group(7, "two", (2, 0), 1)]
    return trace_of({rank: ops(rank) for rank in range(3)}, groups, steps=1)


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_kind_of_operation_and_the_same_bytes_in_every_run(library: str, tmp_path: Path) -> None:
    trace = written(everything(), tmp_path)
    folders = [replayed(trace, NETWORK, tmp_path, library=library)[1] for _ in range(2)]
    assert len(step_times(folders[0])) == 1
    first, second = (
        {name: (folder / name).read_bytes() for name in ("steps.csv", "ops.npz", "links.csv")} for folder in folders
    )
    assert first == second


@pytest.mark.parametrize("library", LIBRARIES)
def test_each_kind_moves_its_bytes(library: str, tmp_path: Path) -> None:
    """What two hosts send is what the kind needs, or up to twice that: a library may send whole buffers and drop a part."""
    size = 3_000_000
    needed = {"all_reduce": 2, "reduce_scatter": 2, "all_gather": 2, "broadcast": 1, "scatter": 1, "reduce": 1, "gather": 1,
              "all_to_all": 1}  # fmt: skip
    for kind, times in needed.items():
        root = 1 if kind in ("broadcast", "reduce", "gather", "scatter") else -1
        ops = [Collective(CollectiveKind(kind), 0, size // 4, DType.FLOAT32, root=root), Wait(0), StepMark(0)]
        _, folder = replayed(written(trace_of({0: ops, 1: ops}, steps=1), tmp_path), NETWORK, tmp_path, library=library)
        sent = sum(int(row["bytes"]) for row in rows(folder / "links.csv") if row["source"].startswith("host"))
        assert times * size <= sent <= 2.1 * times * size, (kind, sent)


def stopped(trace: Trace, network: Path | str, base: Path, stall_s: float) -> str:
    job = read_job(written(trace, base))
    resolved = load_network(str(network), job, {"costs": "none"})
    with pytest.raises(BedError) as caught:
        replay(job, resolved, new_folder(base, job, resolved), library="gloo", stall_s=stall_s)
    return str(caught.value)


def test_ranks_that_wait_for_ever_are_given_up(tmp_path: Path) -> None:
    """Not held to be a deadlock at once, as what gloo has sent is not known."""
    large = 64 << 20  # more than sockets hold
    ops: dict[int, list[Op]] = {
        rank: [Send(1 - rank, large, name="there"), Wait(0), Recv(1 - rank, large), Wait(2), StepMark(0)]
        for rank in (0, 1)
    }
    said = stopped(trace_of(ops, steps=1), NETWORK, tmp_path, 20)
    assert said == "nothing has moved for 20 s: rank 0 waits for send 'there'; rank 1 waits for send 'there'"


def test_a_link_that_stays_down_is_named(tmp_path: Path) -> None:
    network = tmp_path / "cut.yaml"
    network.write_text("profile: ethernet-10g\nevents: [{down: {link: host1, at: 50 ms}}]\n")
    said = stopped(all_reduces(2, 25_000_000, steps=9), network, tmp_path, 20)
    assert said.startswith("nothing has moved for 20 s, link host1 is down: rank 0 waits for all_reduce (operation ")


def test_an_operation_that_takes_longer_than_the_limit_is_no_end(tmp_path: Path) -> None:
    network = tmp_path / "slow.yaml"
    network.write_text("topology: {star: {}}\nlink: {rate: 1 mbit}\n")
    job = read_job(written(all_reduces(2, 4_000_000, steps=1), tmp_path))
    resolved = load_network(str(network), job, {})
    run = replay(job, resolved, new_folder(tmp_path, job, resolved), library="gloo", stall_s=8)
    assert run.summary is not None
    assert run.summary.step_mean_ns > 32e9


def test_the_command(tmp_path: Path) -> None:
    trace = written(all_reduces(2, 400_000, steps=2), tmp_path)
    command = ("replay", trace, "--network", NETWORK, "--library", "gloo", "-o")
    refused = tracebed(*command, tmp_path / "refused")
    assert refused.returncode == 2
    assert "try --set costs=none" in refused.stderr
    assert not (tmp_path / "refused").exists()
    done = tracebed(*command, tmp_path / "runs", "--set", "costs=none")
    assert done.returncode == 0, done.stderr
    assert "operations by gloo of torch" in " ".join(done.stdout.split())
    (folder,) = (tmp_path / "runs").iterdir()
    assert run_json(folder).request.library == "gloo"
    assert rows(folder / "flows.csv") == []
    assert run_json(folder).summary.retransmits is None
    assert tracebed("why", folder).stdout == f"{folder.name}: not known, as its messages are gloo's\n"


def test_hosts_that_are_containers(needs: Callable[..., None], tmp_path: Path) -> None:
    needs("dockerd", "docker")
    trace = written(all_reduces(2, 4_000_000, steps=2), tmp_path)
    netns, docker = (replayed(trace, NETWORK, tmp_path, library="gloo", bed=bed)[1] for bed in ("netns", "docker"))
    assert step_times(netns) == step_times(docker)
