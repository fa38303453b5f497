"""Which algorithm runs: the rules that users write, the choosers, and the model that `auto` asks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from emulator.network import Network, load
from replay.choosers import auto, gloo, mpi, nccl
from replay.choosers.asked import Asked, in_words
from replay.choosers.rules import CHOOSERS, Range, read_rules, read_segment
from replay.choosing import with_algorithms
from replay.cli.replay import command
from replay.collectives.model import duration_ns
from replay.collectives.packing import ANYWHERE, on_a_switch, pack
from replay.collectives.registry import known
from replay.collectives.schedule import Call
from replay.collectives.wires import Fabric
from replay.plan import RankPlan, Transfer, lower
from tests.replay.network import everywhere, trace_of
from tests.replay.schedules import groups
from traces.errors import TraceError
from traces.program import Collective, CollectiveKind, DType, Group, StepMark, Trace, Wait


def network(folder: Path, text: str = "", ranks: int = 8, profile: str = "ethernet-10g") -> Network:
    path = folder / "net.yaml"
    path.write_text(f"profile: {profile}\n{text}\n")
    return load(path, ranks=ranks)


def asked(kind: str, nbytes: int, ranks: int = 8, even: bool = True) -> Asked:
    in_slots = kind in ("all_gather", "gather", "reduce_scatter", "scatter")
    count = nbytes // 4 // (ranks if in_slots else 1)
    splits = (count // ranks,) * ranks if kind == "all_to_all" else ()
    root = 0 if kind in ("broadcast", "reduce", "gather", "scatter") else -1
    call = Call(kind, "", ranks, 0, count, 4, 1 << 20, root=root, send_splits=splits, recv_splits=splits)
    return Asked(call, tuple(range(ranks)), call.nbytes, even)


def transfers(plan: RankPlan) -> list[Transfer]:
    return [op for op in plan.ops if isinstance(op, Transfer)]


def job(sizes: tuple[int, ...], ranks: int = 8) -> Trace:
    """All-reduces of so many bytes."""
    ops = [
        op
        for n, size in enumerate(sizes)
        for op in (Collective(CollectiveKind.ALL_REDUCE, 0, size // 4, DType.FLOAT32), Wait(2 * n))
    ]
    return trace_of(dict.fromkeys(range(ranks), (*ops, StepMark(0))), steps=1)


def test_the_last_rule_that_fits_wins(tmp_path: Path) -> None:
    plan = lower(job((1 << 10, 64 << 10, 1 << 20, 16 << 20)))
    rules = (
        "halving-doubling",
        "all_reduce=tree:..64KiB",
        "all_reduce=torus:1MiB..,ranks=9..",
        "all_reduce=ring:16 MiB..",
    )
    changed, said = with_algorithms(plan, rules, network(tmp_path))
    for own in changed.ranks.values():
        assert [t.call.algorithm for t in transfers(own)] == ["tree", "tree", "halving-doubling", "ring"]
    assert said == (
        "2x all_reduce of 1 KiB to 64 KiB on 8 ranks: tree, because --algorithm all_reduce=tree:..64KiB asks for it",
        "all_reduce of 1 MiB on 8 ranks: halving-doubling, because --algorithm halving-doubling asks for it",
        "all_reduce of 16 MiB on 8 ranks: ring, because --algorithm all_reduce=ring:16 MiB.. asks for it",
    )


def test_what_no_rule_fits_is_as_before(tmp_path: Path) -> None:
    plan = lower(job((1 << 10,)))
    changed, said = with_algorithms(plan, ("broadcast=tree", "bruck", "ring:2KiB.."), network(tmp_path))
    assert changed == plan
    assert said == ()


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("telepathy", "no algorithm is called 'telepathy'"),
        ("allreduce=ring", "no collective is called 'allreduce'"),
        ("all_reduce=bruck", "no algorithm is called 'bruck'"),
        ("ring:64KiB", "'64KiB' is no range"),
        ("ring:..", "'..' is no range"),
        ("ring:1MiB..64KiB", "ends before it begins"),
        ("ring:1..2", "'1' is not a size"),
        ("ring:ranks=a..", "invalid literal"),
        ("ring:hosts=1..2", "no condition is called 'hosts'"),
        ("", "no algorithm is called ''"),
    ],
)
def test_a_rule_that_can_t_be_read_says_why_and_what_would_do(rule: str, message: str) -> None:
    with pytest.raises(TraceError, match=message) as error:
        read_rules((rule,))
    assert f"--algorithm {rule}" in str(error.value)
    assert "write NAME" in str(error.value) or "known: " in str(error.value) or "choosers: " in str(error.value)


def test_segments() -> None:
    assert read_segment("64 KiB") == 65536
    for wrong in ("0", "64", "fast"):
        with pytest.raises(TraceError, match=f"--segment {wrong}"):
            read_segment(wrong)


def test_ranges_include_their_ends() -> None:
    assert [value in Range(2, 4) for value in (1, 2, 4, 5)] == [False, True, True, False]
    assert 10**12 in Range(2)


def test_blocks_that_differ_can_t_go_by_way_of_others(tmp_path: Path) -> None:
    """Only one rank's blocks differ in size; all ranks must then do without."""
    splits = {0: ((1, 1, 2), (1, 1, 1)), 1: ((1, 1, 1), (1, 1, 1)), 2: ((1, 1, 1), (2, 1, 1))}
    programs = {
        rank: (Collective(CollectiveKind.ALL_TO_ALL, 0, sum(s), DType.INT8, send_splits=s, recv_splits=r), Wait(0))
        for rank, (s, r) in splits.items()
    }
    plan = lower(trace_of(programs))
    with pytest.raises(TraceError, match=r"bruck moves blocks .* must be of one size") as error:
        with_algorithms(plan, ("all_to_all=bruck",), network(tmp_path, ranks=3))
    assert "use pairwise or direct" in str(error.value)
    for chooser in ("auto", "mpi"):
        changed, _ = with_algorithms(plan, (chooser,), network(tmp_path, ranks=3))
        assert {transfers(own)[0].call.algorithm for own in changed.ranks.values()} <= {"pairwise", "direct"}


def test_ranks_of_a_group_are_told_what_they_share(tmp_path: Path) -> None:
    on = network(tmp_path, "topology: {star: {hosts: 2, ranks_per_host: 4, island: nvlink-h100}}")
    fabric = Fabric(on)
    assert fabric.islands((0, 1, 4, 5)) == (0, 0, 1, 1)
    assert fabric.islands((5, 0, 4)) == (0, 1, 0)
    assert fabric.islands((0, 1, 2)) == fabric.islands((0, 4)) == ()
    assert fabric.nodes((0, 1, 4)) == 2
    group = Group(1, "some", (6, 1, 0), 0)
    op = Collective(CollectiveKind.ALL_REDUCE, 1, 8)
    plan = lower(trace_of(dict.fromkeys(group.ranks, (op, Wait(0))), (group,)))
    changed, _ = with_algorithms(plan, ("hierarchical",), on)
    assert {transfers(own)[0].call.islands for own in changed.ranks.values()} == {(0, 1, 1)}
    changed, _ = with_algorithms(plan, ("blink",), on)
    assert len({id(transfers(own)[0].call.wires) for own in changed.ranks.values()}) == 1


def test_a_way_leads_over_the_links_between_two_ranks(tmp_path: Path) -> None:
    on = network(tmp_path, "topology: {star: {hosts: 2, ranks_per_host: 2, island: nvlink-h100}}", ranks=4)
    wires = Fabric(on).wires((0, 1, 2))
    ends = [ends for link in on.links for ends in ((link.a, link.b), (link.b, link.a))]
    assert [ends[way] for way in wires.ways[0][2]] == [
        ("host0-0", "host0"), ("host0", "switch"), ("switch", "host1"), ("host1", "host1-0"),
    ]  # fmt: skip
    assert [ends[way] for way in wires.ways[1][0]] == [("host0-1", "host0"), ("host0", "host0-0")]
    assert wires.ways[1][1] == ()


@pytest.mark.parametrize(
    ("kind", "nbytes", "ranks", "name"),
    [
        ("all_reduce", 2048, 8, "recursive-doubling"),
        ("all_reduce", 2052, 8, "halving-doubling"),
        ("all_reduce", 12, 8, "recursive-doubling"),
        ("reduce", 2048, 8, "binomial"),
        ("reduce", 1 << 20, 8, "rabenseifner"),
        ("broadcast", 12 << 10, 8, "scatter-allgather"),
        ("broadcast", (12 << 10) - 4, 8, "binomial"),
        ("broadcast", 1 << 20, 7, "binomial"),
        ("all_gather", (512 << 10) - 32, 8, "recursive-doubling"),
        ("all_gather", 512 << 10, 8, "ring"),
        ("all_gather", 60 << 10, 6, "bruck"),
        ("all_gather", 120 << 10, 6, "ring"),
        ("reduce_scatter", 256 << 10, 8, "recursive-halving"),
        ("reduce_scatter", 512 << 10, 8, "pairwise"),
        ("all_to_all", 256 * 8, 8, "bruck"),
        ("all_to_all", 260 * 8, 8, "direct"),
        ("all_to_all", 256 * 4, 4, "direct"),
        ("all_to_all", (32 << 10) * 8 + 32, 8, "pairwise"),
        ("gather", 64, 8, "binomial"),
        ("barrier", 0, 8, "dissemination"),
    ],
)
def test_mpi_chooses_by_mpichs_thresholds(kind: str, nbytes: int, ranks: int, name: str, tmp_path: Path) -> None:
    assert mpi.choose(asked(kind, nbytes, ranks), Fabric(network(tmp_path, ranks=ranks))).algorithm == name


def test_every_chooser_names_an_algorithm_of_the_kind(tmp_path: Path) -> None:
    fabric = Fabric(network(tmp_path, ranks=6))
    for kind in CollectiveKind:
        for nbytes in (0, 1 << 10, 1 << 20):
            for chooser in CHOOSERS.values():
                choice = chooser(asked(kind, 0 if kind is CollectiveKind.BARRIER else nbytes, 6), fabric)
                assert choice.algorithm in known(kind)
                assert choice.because


def test_nccl_takes_trees_for_many_nodes_and_small_tensors(tmp_path: Path) -> None:
    """As its tuner's latencies have it: a ring's grow with the nodes, a tree's with their logarithm."""
    few, many = Fabric(network(tmp_path, ranks=2)), Fabric(network(tmp_path, ranks=64))
    assert nccl.choose(asked("all_reduce", 8, 64), many).algorithm == "double-tree"
    assert nccl.choose(asked("all_reduce", 8, 2), few).algorithm == "ring"
    assert nccl.choose(asked("all_reduce", 1 << 30, 64), many).algorithm == "ring"
    assert gloo.choose(asked("all_reduce", 8, 64), many).algorithm == "ring"


def sizes() -> Iterator[tuple[str, int, float]]:
    """On 8 ranks, alpha 4 us and 0.8 ns a byte: what the textbooks have, in ns."""
    for s in (8 << 10, 8 << 20):
        yield "ring", s, 14 * (4000 + s / 8 * 0.8)
        yield "halving-doubling", s, 6 * 4000 + 2 * 7 / 8 * s * 0.8
        yield "recursive-doubling", s, 3 * (4000 + s * 0.8)
        yield "torus", s, 8 * 4000 + 2 * 7 / 8 * s * 0.8


@pytest.mark.parametrize(("name", "nbytes", "expected"), [*sizes()])
def test_the_model_has_the_alpha_beta_formulas(name: str, nbytes: int, expected: float, tmp_path: Path) -> None:
    wires = Fabric(network(tmp_path)).wires(tuple(range(8)))
    (schedules,) = groups(CollectiveKind.ALL_REDUCE, name, 8, nbytes // 4, segment=1 << 30)
    assert duration_ns(schedules, wires, 4) == pytest.approx(expected)


def test_auto_changes_with_size_and_delay_and_islands(tmp_path: Path) -> None:
    """Few steps for small tensors; little sent for large ones; and a hierarchy where islands are fast."""
    flat = Fabric(network(tmp_path, "link: {delay: 500 us}", 6))
    assert auto.choose(asked("all_reduce", 1 << 10, 6), flat).algorithm in ("recursive-doubling", "blink", "bcube")
    assert auto.choose(asked("broadcast", 64 << 20, 6), flat).algorithm in ("chain", "blink")
    islands = Fabric(network(tmp_path, "topology: {star: {hosts: 2, ranks_per_host: 4, island: nvlink-h100}}"))
    choice = auto.choose(asked("all_reduce", 64 << 20), islands)
    assert choice.algorithm in ("hierarchical", "halving-doubling", "bcube", "torus")
    assert "us for ring" in choice.because


def test_auto_says_what_it_chose_by_size_class(tmp_path: Path) -> None:
    plan = lower(job((5 << 10, 6 << 10, 7 << 10, 24 << 20)))
    _, said = with_algorithms(plan, ("auto",), network(tmp_path))
    assert len(said) == 2
    assert said[0].startswith("3x all_reduce of 5 KiB to 7 KiB on 8 ranks: ")
    assert "the model has" in said[0]


def test_packed_trees_use_all_links(tmp_path: Path) -> None:
    """Of L links both ways, each tree needs N-1: no packing keeps the busiest link busy for less than (N-1)/L of the tensor."""
    fast = ", ".join(f"host{n}: {{rate: 80 gbit}}" for n in range(16))
    for topology, ranks, links, most in (
        ("ring: {hosts: 8}", 8, 8, 1.0),
        ("torus: {sizes: [2, 2, 2]}", 8, 12, 1.08),
        ("torus: {sizes: [4, 4]}", 16, 32, 1.08),
    ):
        hosts = ", ".join(fast.split(", ")[:ranks])
        wires = Fabric(network(tmp_path, f"topology: {{{topology}}}\nlinks: {{{hosts}}}", ranks)).wires(
            tuple(range(ranks))
        )
        packing = pack(wires, ANYWHERE, up=True, down=True)
        least = (ranks - 1) / links * 0.8
        print(f"{topology}: {len(packing.trees)} trees, {packing.busy_ns / least:.3f} of the bound")
        assert least * 0.999 <= packing.busy_ns <= least * most * 1.001


def test_on_a_switch_trees_are_of_one_hop() -> None:
    """And send what a ring does, 2(N-1)/N of the tensor over each port."""
    packing = pack(on_a_switch(6), ANYWHERE, up=True, down=True)
    assert packing.trees == tuple((middle,) * 6 for middle in range(6))
    assert packing.busy_ns == pytest.approx(2 * 5 / 6)


def test_sizes_in_words() -> None:
    words = {0: "0 B", 4: "4 B", 65536: "64 KiB", 5000: "4.883 KiB", 1234567: "1.177 MiB", 102_400_004: "97.66 MiB"}
    assert {n: in_words(n) for n in words} == words


def test_what_there_is_can_be_listed() -> None:
    result = CliRunner().invoke(command, ["--algorithm", "list"])
    assert result.exit_code == 0
    assert "choosers: auto, nccl, gloo, mpi" in result.output
    assert "all_reduce: ring, bcube, blink, central, double-tree" in result.output


def test_everything_is_one_algorithm_deep(tmp_path: Path) -> None:
    """A rule changes nothing but the algorithm: the operations keep their numbers, and equal calls their schedule."""
    plan = lower(everywhere(Collective(CollectiveKind.BROADCAST, 0, 99, root=1), 4))
    changed, _ = with_algorithms(plan, ("binomial",), network(tmp_path, ranks=4))
    for rank, own in plan.ranks.items():
        (before,), (after,) = transfers(own), transfers(changed.ranks[rank])
        assert (before.number, before.op, before.ranks, before.lane) == (
            after.number,
            after.op,
            after.ranks,
            after.lane,
        )
        assert (before.call.algorithm, after.call.algorithm) == ("chain", "binomial")
