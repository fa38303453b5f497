"""How many ranks the job has, and which of them is where in the network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random

from replay.whatif.options import VALUE, Options
from replay.whatif.registry import Scenario, what_if
from traces.errors import TraceError
from traces.program import Collective, Program, Recv, Send, Trace
from traces.scale import with_ranks


@what_if(
    "ranks=N,along=GROUP",
    does="more or fewer replicas of the model, N ranks in all, each with the batch that one had (weak scaling)",
    assumes="new replicas do what recorded ones did; see `tracebed scale`",
)
def ranks(scenario: Scenario, options: Options) -> tuple[Scenario, str]:
    """Other numbers of data-parallel ranks."""
    before, wanted = scenario.trace.world_size, options.whole(VALUE, 2, 1 << 20)
    try:
        changed = with_ranks(scenario.trace, wanted, along=options.said.get("along"))
    except TraceError as error:
        raise options.error(str(error), "along=GROUP names a group that joins replicas") from None
    return scenario.on(changed), f"ranks: {before} become {wanted}, each new one with the work of a recorded one"


@what_if(
    "place=RANKS|round-robin|shuffled,hosts=N,seed=N",
    does="puts ranks at other places of the network: RANKS (0+2+1+3) says which rank is at place 0, 1...; round-robin deals them "
    "out to hosts=N; shuffled draws with seed",
    assumes="collectives keep their groups' order of ranks, as a library that knows no topology does",
)
def place(scenario: Scenario, options: Options) -> tuple[Scenario, str]:
    """A permutation of the ranks: the network gives its places by number."""
    world = scenario.trace.world_size
    how = options.said[VALUE]
    if how == "round-robin":
        hosts = options.whole("hosts", 1, world)
        if world % hosts:
            raise options.error(f"{world} ranks are not as many on each of {hosts} hosts", "say a divisor")
        order = [number * hosts + host for host in range(hosts) for number in range(world // hosts)]
    elif how == "shuffled":
        order = list(range(world))
        Random(options.whole("seed", 0, 2**32, 1)).shuffle(order)
    else:
        order = options.numbers(VALUE, world)
        if len(order) < world:
            raise options.error(f"{len(order)} of {world} ranks have a place", "name each once")
    changed = _renumbered(scenario.trace, {rank: place for place, rank in enumerate(order)})
    listed = " ".join(map(str, order[:16])) + (" ..." if world > 16 else "")
    return scenario.on(
        changed
    ), f"place: the network's places 0, 1... have the job's ranks {listed}, which results call 0, 1..."


def _renumbered(trace: Trace, new: Mapping[int, int]) -> Trace:
    """The trace with rank r called new[r] everywhere."""
    return replace(
        trace,
        groups=tuple(replace(group, ranks=tuple(new[rank] for rank in group.ranks)) for group in trace.groups),
        programs={
            rank: _moved(program, rank, new)
            for rank, program in sorted((new[old], program) for old, program in trace.programs.items())
        },
        findings=tuple(
            replace(finding, rank=new[finding.rank]) if finding.rank >= 0 else finding for finding in trace.findings
        ),
        hosts={new[rank]: host for rank, host in trace.hosts.items()},
        clock_residual_ns={new[rank]: residual for rank, residual in trace.clock_residual_ns.items()},
    )


def _moved(program: Program, rank: int, new: Mapping[int, int]) -> Program:
    ops = [
        replace(op, root=new[op.root])
        if isinstance(op, Collective) and op.root >= 0
        else replace(op, peer=new[op.peer])
        if isinstance(op, Send | Recv)
        else op
        for op in program.ops
    ]
    return Program(rank, tuple(ops))
