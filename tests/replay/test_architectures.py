"""Parameter servers, BytePS, aggregation in the network and Poseidon: what crosses each wire, results, and who waits for whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import pytest

from emulator.errors import NetworkError
from emulator.network import from_dict, to_dict
from replay.collectives.central import CENTRAL
from replay.collectives.registry import schedule_of
from replay.collectives.schedule import Call, Recv, Send
from replay.ideal import ideal_step_ns
from replay.plan import Transfer, lower
from replay.seats import load_seated
from replay.whatif.poseidon import Factors, smaller
from replay.whatif.registry import apply
from tests.replay.network import Network, trace_of
from tests.replay.runs import all_reduces
from traces import layout, model
from traces.errors import TraceError
from traces.program import Collective, CollectiveKind, Compute, DType, Op, StepMark, Trace, Wait
from traces.synth import synthesize

M = 4_800_000
"""Bytes of the tensor: a multiple of all that it is divided by here."""


def wires(trace: Trace) -> tuple[Counter[int], Counter[int]]:
    """Bytes that leave and reach each host; a server beside a worker is on that one's. What stays on a host is no wire's."""
    sent: Counter[int] = Counter()
    received: Counter[int] = Counter()

    def host(rank: int) -> int:
        beside = trace.servers[rank].beside if rank in trace.servers else -1
        return beside if beside >= 0 else rank

    for rank, own in lower(trace).ranks.items():
        for op in own.ops:
            if isinstance(op, Transfer):
                for task in op.schedule.tasks:
                    if isinstance(task, Send) and host(rank) != host(op.ranks[task.peer]):
                        sent[host(rank)] += task.count * op.call.itemsize
                        received[host(op.ranks[task.peer])] += task.count * op.call.itemsize
    return sent, received


def with_servers(trace: Trace, *texts: str) -> Trace:
    return apply(trace, texts).trace


@pytest.mark.parametrize("workers", [2, 4, 5])
@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("sync", ["bsp", "async", "ssp:2"])
def test_a_worker_sends_all_once_and_a_server_its_share_to_each(workers: int, servers: int, sync: str) -> None:
    """Li et al.: M each way at a worker, nM/k at a server."""
    sent, received = wires(with_servers(all_reduces(workers, M, 1), f"ps={servers},sync={sync},partition=1MB"))
    expected = dict.fromkeys(range(workers), M)
    expected |= dict.fromkeys(range(workers, workers + servers), workers * M // servers)
    assert sent == received == expected


@pytest.mark.parametrize("workers", [2, 4, 5])
@pytest.mark.parametrize("servers", [1, 2])
def test_what_is_beside_a_worker_takes_no_wire(workers: int, servers: int) -> None:
    """Poseidon, table 1: M (1 - 1/k) + M (n-1) / k at a host that is both, M at a worker."""
    sent, received = wires(with_servers(all_reduces(workers, M, 1), f"ps={servers},colocated=yes,partition=1MB"))
    both = M * (servers + workers - 2) // servers
    expected = dict.fromkeys(range(servers), both) | dict.fromkeys(range(servers, workers), M)
    assert sent == received == expected


def test_as_many_servers_as_workers_put_on_wires_what_a_ring_does() -> None:
    ring, _ = wires(all_reduces(4, M, 1))
    servers, _ = wires(with_servers(all_reduces(4, M, 1), "ps=4,colocated=yes"))
    assert ring == servers == dict.fromkeys(range(4), 2 * 3 * M // 4)


@pytest.mark.parametrize("workers", [2, 4, 6])
@pytest.mark.parametrize("spare", [0, 1, 2])
def test_byteps_fills_every_wire_alike(workers: int, spare: int) -> None:
    """Jiang et al.: 2n(n-1)M / (n^2 + kn - 2k) each way at each host, to a partition a host."""
    partition = 8_000
    sent, received = wires(with_servers(all_reduces(workers, M, 1), f"byteps={spare},partition={partition}B"))
    optimum = Fraction(2 * workers * (workers - 1) * M, workers**2 + spare * workers - 2 * spare)
    print({host: float(nbytes / optimum) for host, nbytes in sorted(sent.items())})
    assert len(sent) == workers + spare
    for nbytes in (*sent.values(), *received.values()):
        assert abs(nbytes - optimum) <= 2 * workers * partition


def test_a_switch_that_adds_up_takes_and_gives_all_once() -> None:
    sent, received = wires(with_servers(all_reduces(4, M, 1), "ina=64"))
    assert sent == received == dict.fromkeys(range(4), M) | {4: 4 * M}


def test_no_more_than_the_slots_is_under_way() -> None:
    """Each piece waits for the sum of one that lies a window before it, and only for that."""
    call = Call("all_reduce", CENTRAL, 3, 0, 100_000, 1, 1_000, window=4_000)
    tasks = schedule_of(call).tasks
    pieces = [task for task in tasks if isinstance(task, Send)]
    assert [len(piece.after) for piece in pieces] == [0] * 4 + [1] * 96
    for piece in pieces[4:]:
        freed = tasks[piece.after[0]]
        assert isinstance(freed, Recv)
        assert piece.offset - freed.offset == 4_000


ARCHITECTURES = (
    "ps=1", "ps=3,partition=64B", "ps=2,colocated=yes,partition=1KB", "ps=2,sync=async", "ps=2,sync=ssp:1",
    "byteps=1,partition=1KB", "byteps=4,partition=1KB", "ina=1", "ina=32",
)  # fmt: skip


@pytest.mark.parametrize("text", ARCHITECTURES)
def test_every_sum_is_right(text: str) -> None:
    """Workers' and servers', in each of three steps."""
    trace = with_servers(all_reduces(4, 40_004, 3), text)
    network = Network(lower(trace), delay=50, verify=True).run()
    for rank in trace.workers:
        assert network.payloads[rank].checked == 3 * 10_001
    assert sum(network.payloads[rank].checked for rank in trace.servers) >= 3 * 10_001


@pytest.mark.parametrize("text", ARCHITECTURES)
def test_steps_are_the_workers(text: str) -> None:
    trace = with_servers(all_reduces(4, 1_000, 3), text)
    assert trace.workers == (0, 1, 2, 3)
    network = Network(lower(trace)).run()
    assert {rank for rank, _ in network.steps} == set(trace.workers)
    assert ideal_step_ns(lower(trace)) == (0, 0, 0)


def uneven(computes: Sequence[int], steps: int, nbytes: int = 4_000) -> Trace:
    """Ranks that compute so long in every step and then reduce."""
    programs: dict[int, list[Op]] = {}
    for rank, ns in enumerate(computes):
        ops: list[Op] = []
        for step in range(steps):
            reduce = Collective(CollectiveKind.ALL_REDUCE, 0, nbytes // 4, DType.FLOAT32)
            ops += [Compute(ns), reduce, Wait(len(ops) + 1), StepMark(step)]
        programs[rank] = ops
    return trace_of(programs, steps=steps)


def marks(trace: Trace) -> dict[int, list[int]]:
    """When each rank passed its marks."""
    network = Network(lower(trace), delay=10).run()
    return {rank: [done.at_ns for who, done in network.steps if who == rank] for rank in trace.workers}


def test_who_waits_for_whom() -> None:
    """A straggler of 3 ms among ranks of 1 ms: BSP goes its pace, asynchronous ranks theirs, SSP theirs until the bound.

    Ho et al.: at no time is a rank more than s steps ahead of the slowest.
    """
    trace, steps = uneven([3_000_000, 1_000_000, 1_000_000], 12), 12
    passed = {sync: marks(with_servers(trace, f"ps=1,sync={sync}")) for sync in ("bsp", "ssp:0", "ssp:3", "async")}
    own = {sync: mine[1][-1] / steps / 1e6 for sync, mine in passed.items()}
    print({sync: f"a fast rank's step takes {ms:.3f} ms" for sync, ms in own.items()})
    assert own["bsp"] == pytest.approx(3, rel=0.02)
    assert own["ssp:0"] == pytest.approx(3, rel=0.02)
    assert own["async"] == pytest.approx(1, rel=0.02)
    for sync, most in (("ssp:0", 0), ("ssp:3", 3)):
        slow, fast = passed[sync][0], passed[sync][1]
        ahead = [number - sum(at <= begun for at in slow) for number, begun in enumerate([0, *fast[:-1]])]
        assert max(ahead) == most
    fast = passed["ssp:3"][1]
    first, last = fast[3] / 4 / 1e6, (fast[-1] - fast[-3]) / 2 / 1e6
    print(f"ssp:3: the first steps take {first:.3f} ms each, the last {last:.3f} ms")
    assert first == pytest.approx(1, rel=0.02)
    assert last == pytest.approx(3, rel=0.02)


def test_nobody_waits_in_broadcasts_where_nobody_waits() -> None:
    job = synthesize(model.load("resnet50"), layout.parse("", 3), steps=2)
    kinds = {
        sync: Counter(
            op.kind for op in with_servers(job, f"ps=1,sync={sync}").programs[1].ops if isinstance(op, Collective)
        )
        for sync in ("bsp", "async")
    }
    assert kinds["bsp"]["broadcast"] == 4
    assert kinds["async"]["broadcast"] == 0
    assert "2 broadcast a step left out" in apply(job, ["ps=1,sync=async"]).assumed[0]


def test_tensors_go_to_the_least_loaded_and_to_the_same_in_every_step() -> None:
    trace = synthesize(model.load("resnet50"), layout.parse("", 2), steps=3)
    made = with_servers(trace, "ps=2,partition=1GB")
    groups = {group.id: group.ranks[-1] for group in made.groups}
    load: Counter[int] = Counter()
    steps: list[list[int]] = [[]]
    for op in made.programs[0].ops:
        if isinstance(op, StepMark):
            steps.append([])
        elif isinstance(op, Collective) and op.kind is CollectiveKind.ALL_REDUCE:
            steps[-1].append(groups[op.group])
            load[groups[op.group]] += op.count
    assert steps[0] == steps[1] == steps[2]
    assert len(load) == 2
    assert max(load.values()) < 1.5 * min(load.values())


def test_poseidon_saves_on_fully_connected_layers() -> None:
    """VGG-16's are 124 of 138 million parameters; ResNet-50 has one layer, 2 of 26 million."""
    saved = {}
    for name in ("vgg16", "resnet50", "bert-base"):
        job = synthesize(model.load(name), layout.parse("", 8), steps=1)
        servers, _ = wires(with_servers(job, "ps=8,colocated=yes"))
        hybrid, _ = wires(with_servers(job, f"poseidon=8,model={name},batch=32"))
        saved[name] = 1 - sum(hybrid.values()) / sum(servers.values())
    print({name: f"{share:.1%} of the bytes saved" for name, share in saved.items()})
    assert saved["vgg16"] > 0.7
    assert 0 < saved["resnet50"] < 0.08
    assert saved["bert-base"] == 0


def test_poseidon_chooses_by_bytes() -> None:
    """Algorithm 1 of the paper, both sides counted as they cross the wire of a host that is worker and server."""
    for batch in (1, 32, 256, 512, 1024, 4096):
        factors = Factors(4096, 4096, batch)
        here = batch * (4096 + 4096) * (8 - 1)
        servers = 4096 * 4096 * (8 + 8 - 2) // 8
        assert smaller(factors, 8, 8) == (here <= servers), batch
    assert smaller(Factors(4096, 4096, 512), 8, 8)
    assert not smaller(Factors(4096, 4096, 513), 8, 8)


def test_hybrid_jobs_keep_their_other_groups() -> None:
    job = synthesize(model.load("gpt2"), layout.parse("tp=2", 4), steps=1)
    made = with_servers(job, "ps=2,along=dp-0-0")
    before, after = (
        Counter(op.kind for op in trace.programs[0].ops if isinstance(op, Collective) and op.group == tensor)
        for trace in (job, made)
        for tensor in [next(group.id for group in trace.groups if group.name == "tp-0-0")]
    )
    assert before == after
    assert sum(before.values()) > 0
    assert Network(lower(made)).run().steps


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["ps=0"], "whole number"),
        (["ps=5,colocated=yes"], "whole number from 1 to 4"),
        (["ps=2,sync=ssp"], "number of steps"),
        (["ps=2,sync=soon"], "bsp, async, or ssp:3"),
        (["ps=2,sync=async:2"], "bsp, async, or ssp:3"),
        (["ps=2,partition=8B"], "next to nothing"),
        (["ps=2", "byteps=1"], "what-if 'byteps=1': the job has servers by now"),
        (["ina=16", "compute=2"], "come last"),
        (["byteps=5"], "whole number from 0 to 4"),
        (["ina=16,packet=1MiB"], "no packet"),
        (["poseidon=4"], "model=vgg16"),
    ],
)
def test_what_can_not_be_is_said(texts: list[str], said: str) -> None:
    with pytest.raises(TraceError, match=said):
        apply(all_reduces(4, M, 1), texts)


def test_sharded_gradients_have_no_all_reduce_to_replace() -> None:
    job = synthesize(model.load("resnet50"), layout.parse("zero=3", 4), steps=1)
    with pytest.raises(TraceError, match="no gradients are all-reduced"):
        apply(job, ["ps=1"])


def test_servers_have_hosts_of_their_own_or_share() -> None:
    own = load_seated("ethernet-10g", with_servers(all_reduces(3, M, 1), "ps=2"), {})
    assert [host.ranks for host in own.hosts] == [(0,), (1,), (2,), (3,), (4,)]
    shared = load_seated("ethernet-10g", with_servers(all_reduces(3, M, 1), "ps=2,colocated=yes"), {})
    assert [host.ranks for host in shared.hosts] == [(0, 3), (1, 4), (2,)]
    byteps = load_seated("ethernet-10g", with_servers(all_reduces(3, M, 1), "byteps=1"), {})
    assert [host.ranks for host in byteps.hosts] == [(0, 4), (1, 5), (2, 6), (3,)]
    assert all(from_dict(to_dict(network)) == network for network in (own, shared, byteps))


def test_a_switch_that_adds_up_has_a_link_that_takes_no_time() -> None:
    network = load_seated("ethernet-10g", with_servers(all_reduces(2, M, 1), "ina=16"), {"link.loss": "1%"})
    free = [link for link in network.links if link.a_to_b.rate is None]
    assert [link.name for link in free] == ["host2"]
    assert free[0].a_to_b == free[0].b_to_a
    assert not free[0].a_to_b.delay
    assert free[0].a_to_b.loss is None
    assert from_dict(to_dict(network)) == network


def test_a_server_that_would_share_a_host_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text("profile: ethernet-10g\ntopology: {star: {hosts: 2}}\n")
    with pytest.raises(NetworkError, match="rank 3, a server, needs a host of its own, and 'host1' is also rank 2's"):
        load_seated(file, with_servers(all_reduces(3, M, 1), "ps=1"), {})
