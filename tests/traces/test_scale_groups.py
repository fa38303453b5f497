"""Jobs of more than one rank a replica, scaled: what comes out is what synth makes of that layout."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from replay.ideal import ideal_step_ns
from replay.plan import lower
from tests.traces.build import reduce, sync
from tests.traces.build import trace as job_of
from tests.traces.test_commands import Capture, tracebed
from tests.traces.test_synth_layouts import tiny
from traces import archive
from traces.checks import check
from traces.errors import TraceError
from traces.program import Collective, CollectiveKind, Op, Recv, Send, Trace
from traces.scale import with_ranks


def said(trace: Trace) -> dict[int, list[Op | tuple[Op, tuple[int, ...]]]]:
    """Each rank's operations, their groups by their ranks."""
    ranks = {group.id: group.ranks for group in trace.groups}
    return {
        rank: [
            (replace(op, group=0), ranks[op.group]) if isinstance(op, Collective | Send | Recv) else op
            for op in program.ops
        ]
        for rank, program in trace.programs.items()
    }


@pytest.mark.parametrize(
    ("text", "along", "size"),
    [
        ("tp=2", "dp-0-0", 2),
        ("tp=2", "dp-0-1", 2),
        ("tp=4,sp=1", "dp-0-3", 4),
        ("pp=2,microbatches=2", None, 2),
        ("pp=2,vpp=2,microbatches=2", None, 2),
        ("tp=2,pp=2,zero=1,microbatches=3", "dp-0-0", 4),
        ("tp=2,zero=3", "dp-0-0", 2),
        ("tp=2,pp=2,zero=3", "dp-1-1", 4),
        ("zero=3", None, 1),
        ("ep=2", "edp-0-0-1", 2),
        ("tp=2,pp=2,ep=2", "edp-1-0-0", 8),
    ],
)
@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2)])
def test_a_job_scaled_is_the_job_of_that_size(text: str, along: str | None, size: int, before: int, after: int) -> None:
    scaled = with_ranks(tiny(before * size, text), after * size, along=along)
    expected = tiny(after * size, text)

    assert said(scaled) == said(expected)
    assert [finding.code for finding in check(scaled)] == ["synthetic", "assumed-ranks"]
    assert ideal_step_ns(lower(scaled)) == ideal_step_ns(lower(expected))


def test_what_is_assumed_names_replicas_and_their_groups() -> None:
    (*_, finding) = with_ranks(tiny(4, "tp=2"), 8, along="dp-0-0").findings
    assert finding.message.startswith(
        "8 ranks from 4 recorded of 4, 2 ranks a replica, joined by groups dp-0-0, dp-0-1: "
        "replica r does what recorded replica r mod 2 did, with as much compute"
    )


def test_groups_of_replicas_that_are_added_have_names_of_their_own() -> None:
    groups = with_ranks(tiny(4, "tp=2"), 6, along="dp-0-0").groups
    assert [(group.name, group.ranks) for group in groups] == [
        ("dp-0-0", (0, 2, 4)),
        ("dp-0-1", (1, 3, 5)),
        ("tp-0-0", (0, 1)),
        ("tp-0-1", (2, 3)),
        ("tp-0-0, replica 2", (4, 5)),
    ]
    assert len({group.id for group in groups}) == 5


def test_a_root_in_a_replica_s_own_group_is_its_own_rank() -> None:
    def ops(rank: int) -> tuple[Op, ...]:
        own = Collective(CollectiveKind.BROADCAST, 1 + rank // 2, 4, root=rank // 2 * 2 + 1)
        return (*sync(own), *sync(reduce(group=3 + rank % 2), 2))

    scaled = with_ranks(job_of(*map(ops, range(4)), groups=[(0, 1), (2, 3), (0, 2), (1, 3)]), 6, along="3")
    roots = [next(op.root for op in scaled.programs[rank].ops if isinstance(op, Collective)) for rank in range(6)]
    assert roots == [1, 1, 3, 3, 5, 5]


@pytest.mark.parametrize(
    ("trace", "ranks", "along", "text"),
    [
        (
            tiny(4, "tp=2"),
            8,
            None,
            "groups 'dp-0-0', 'tp-0-0' each join replicas, and which are data-parallel is not said",
        ),
        (tiny(4, "tp=2"), 7, "dp-0-0", "7 ranks are no whole replicas: each is 2 ranks (say a multiple of 2)"),
        (tiny(4, "tp=2"), 8, "dp", "0 groups that are used are called 'dp' (there are dp-0-0, dp-0-1, tp-0-0, tp-0-1)"),
        (tiny(4, "ep=2"), 8, "dp-0-0", "group 'dp-0-0' does not join replicas: rank 0 would correspond to ranks "),
        (tiny(4, "cp=2"), 8, "dp-0-0", "group 'dp-0-0' does not join replicas: rank "),
        (
            tiny(8, "cp=2,tp=2"),
            16,
            None,
            "group 'tp-0-0' joins replicas, 'dp-0-0' does not, and which is data-parallel is not said",
        ),
        (tiny(4, "pp=4"), 8, None, "not data-parallel over all 4 ranks: group 'pp-0-1' (rank 0-1)"),
        (tiny(4, "pp=2"), 8, "pp-0-2", "ranks 0 and 2 do not call the same"),
    ],
    ids=["either", "part", "unknown", "experts", "ring", "tensors", "pipeline", "stages"],
)
def test_what_can_t_be_scaled_says_why(trace: Trace, ranks: int, along: str | None, text: str) -> None:
    with pytest.raises(TraceError, match=re.escape(text)):
        with_ranks(trace, ranks, along=along)


def test_a_rank_of_a_replica_that_is_missing() -> None:
    whole = tiny(4, "tp=2")
    part = replace(whole, programs={rank: whole.programs[rank] for rank in (0, 1, 2)})
    with pytest.raises(TraceError, match="rank 1 or 3 was not recorded"):
        with_ranks(part, 8, along="dp-0-0")


def test_the_command_takes_the_group(tmp_path: Path, capsys: Capture) -> None:
    small, large = tmp_path / "small.trace", tmp_path / "large.trace"
    archive.write(tiny(4, "tp=2", steps=2), small)

    assert tracebed("scale", small, "--ranks", 8, "-o", large) == 2
    assert "--along dp-0-0 takes the first's" in capsys.readouterr().err
    assert tracebed("scale", small, "--ranks", 8, "--along", "dp-0-0", "--repeat", 3, "-o", large) == 0
    assert "8 ranks, 6 steps" in capsys.readouterr().out
    assert tracebed("check", large) == 0


def test_the_command_finds_the_group_when_names_go(tmp_path: Path, capsys: Capture) -> None:
    small, large = tmp_path / "small.trace", tmp_path / "large.trace"
    archive.write(tiny(4, "tp=2", steps=3), small)

    arguments = ["scale", small, "--ranks", 6, "--along", "dp-0-0", "--anonymise", "-o", large]
    assert tracebed(*arguments, "--steps", "1:2") == 0
    made = archive.read(large)
    assert (made.world_size, made.step_count) == (6, 1)
    assert "dp-0" not in capsys.readouterr().out
    assert not any("dp" in group.name or group.description for group in made.groups)

    assert tracebed(*arguments, "--steps", "1:2", "--drop-warm-up", 1) == 2
    assert "both say where to begin" in capsys.readouterr().err
    assert tracebed(*arguments, "--steps", "2:9") == 2
    assert "no steps 2:9" in capsys.readouterr().err
