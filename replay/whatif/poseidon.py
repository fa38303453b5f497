"""Poseidon: each layer's gradients go the way that takes fewer bytes."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

from replay.whatif.options import VALUE, Options
from replay.whatif.registry import Scenario, what_if
from replay.whatif.servers import Architecture, even, gradient_groups, partition, serve
from traces.model import Layer, load
from traces.program import Collective, CollectiveKind, Group, Op, Program, Seat, Serving, Trace


@dataclass(frozen=True, slots=True)
class Factors:
    """A layer whose gradient is a sum of `rank` outer products, of a vector of `height` and one of `width`."""

    height: int
    width: int
    rank: int

    @property
    def elements(self) -> int:
        """Of both vectors of all products: what a worker tells the others."""
        return self.rank * (self.height + self.width)


def smaller(factors: Factors, workers: int, servers: int) -> bool:
    """Whether sending factors to all takes no more than parameter servers do: 2K(P1-1)(M+N) <= 2MN(P1+P2-2)/P2.

    Source: Poseidon, algorithm 1; both sides are elements sent and received at a host that is worker and server.
    """
    matrix = factors.height * factors.width
    return 2 * factors.elements * (workers - 1) * servers <= 2 * matrix * (workers + servers - 2)


@what_if(
    "poseidon=SERVERS,model=NAME,batch=SAMPLES,partition=SIZE,along=GROUP",
    does="gradients go to parameter servers colocated with the workers, but fully connected layers' as sufficient factors from "
    "each worker to each other, where those are fewer bytes at this batch (samples a worker)",
    assumes="a layer is known by its number of parameters, so one that shares its bucket with others goes to the servers; "
    "factors are exchanged in a ring, which puts as many bytes on each wire; gradients from factors cost nothing",
    source="Zhang et al. (Poseidon), USENIX ATC 2017, algorithm 1; Xie et al., UAI 2016 (sufficient factors)",
)
def poseidon(scenario: Scenario, options: Options) -> tuple[Scenario, str]:
    """`model` is a shipped description or a file; its batch counts where `batch` is not written."""
    trace = scenario.trace
    groups, smallest = gradient_groups(trace, options), partition(options)
    workers = trace.world_size
    servers = options.whole(VALUE, 1, workers)
    if "model" not in options:
        raise options.error(
            "which layers are fully connected is not said", "write model=vgg16, or a description's file"
        )
    model = load(options.said["model"])
    batch = options.whole("batch", 1, 1 << 16, model.batch)
    layers = [(layer, _factors(layer, batch)) for layer in model.layers]
    known = {_elements(layer): (layer.name, factors) for layer, factors in layers if factors}
    chosen = {
        elements: (name, factors) for elements, (name, factors) in known.items() if smaller(factors, workers, servers)
    }
    found: Counter[str] = Counter()
    exchanged = _exchange(trace, groups, chosen, found)
    architecture = Architecture(
        seats={workers + index: Seat(index) for index in range(servers)},
        shares=even(range(workers, workers + servers)),
        serving=Serving(smallest),
    )
    made, became = serve(exchanged, groups, architecture)
    names = ", ".join(sorted(found)) or "no layer"
    statement = (
        f"Poseidon, {servers} servers colocated with workers 0 to {servers - 1}, batch {batch}: {names} of "
        f"{len(known)} fully connected in {model.name} as factors; {became}"
    )
    return scenario.on(made), statement


def _elements(layer: Layer) -> int:
    return sum(math.prod(shape) for shape in layer.tensors)


def _factors(layer: Layer, batch: int) -> Factors | None:
    """Those of a layer whose only matrix is used alike for each sample, a number of times (once for each token)."""
    matrices = [shape for shape in layer.tensors if len(shape) == 2]
    if len(matrices) != 1 or any(len(shape) > 2 for shape in layer.tensors) or layer.experts:
        return None
    height, width = matrices[0]
    uses = (layer.flops - layer.scores) // (2 * height * width)
    return Factors(height, width, batch * uses) if uses else None


def _exchange(
    trace: Trace, groups: frozenset[int], chosen: dict[int, tuple[str, Factors]], found: Counter[str]
) -> Trace:
    """The chosen layers' all-reduces as all-gathers of factors, in groups of their own; `found` counts them by layer."""
    free, lane = (1 + max(numbers) for numbers in zip(*((group.id, group.lane) for group in trace.groups), strict=True))
    beside = {
        group.id: Group(free + number, f"{group.name}-factors", group.ranks, lane + number)
        for number, group in enumerate(group for group in trace.groups if group.id in groups)
    }

    def instead(op: Op) -> Op:
        if not (isinstance(op, Collective) and op.kind is CollectiveKind.ALL_REDUCE and op.group in groups):
            return op
        if op.count not in chosen:
            return op
        name, factors = chosen[op.count]
        found[name] += 1
        return replace(op, kind=CollectiveKind.ALL_GATHER, count=factors.elements, group=beside[op.group].id)

    programs = {rank: Program(rank, tuple(map(instead, own.ops))) for rank, own in trace.programs.items()}
    return replace(trace, programs=programs, groups=(*trace.groups, *beside.values()))
