"""What parameter servers, BytePS and aggregation in the network have in common: ranks are added that serve the others, and
gradients go through them instead of being all-reduced among the workers.

A served group holds some workers and, last, one server (`replay.collectives.central`). Its operations wait for none of each
other, so tensors do not block each other, but what goes from one rank to another keeps its order.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from emulator.units import Size
from replay.collectives.schedule import part
from replay.whatif.gradients import shared_groups
from replay.whatif.options import Options
from traces.program import (
    UNORDERED,
    Collective,
    CollectiveKind,
    Group,
    Op,
    Program,
    Seat,
    Serving,
    StepMark,
    Trace,
    Wait,
    op_bytes,
)

PARTITION = "4.096 MB"
"""What a tensor must have to be cut, and the most that goes in one piece: BytePS's BYTEPS_PARTITION_BYTES; MXNet's
MXNET_KVSTORE_BIGARRAY_BOUND is a million elements, which is as much."""


@dataclass(frozen=True, slots=True)
class Sync:
    """Who waits for whom. `together`: an answer comes when all workers have sent; else each is answered by itself.

    `staleness`: a worker may be so many steps ahead of the slowest; None is no bound besides `together`.
    """

    together: bool
    staleness: int | None = None

    @property
    def ahead(self) -> int | None:
        """How many steps may be under way at a server; None: all."""
        if self.together:
            return 2
        return None if self.staleness is None else self.staleness + 2


BSP = Sync(together=True)


@dataclass(frozen=True, slots=True)
class Architecture:
    """`shares` is how much of the gradients each server gets, of 1; `seats` is where it is.

    A tensor of `serving.partition` bytes or more is cut by shares, a smaller one goes whole to who has least. `dealt`: each
    partition does.
    """

    seats: Mapping[int, Seat]
    shares: Mapping[int, Fraction]
    serving: Serving
    sync: Sync = BSP
    dealt: bool = False
    lane: int = UNORDERED


def even(servers: Sequence[int]) -> dict[int, Fraction]:
    """As much for each."""
    return dict.fromkeys(servers, Fraction(1, len(servers)))


def partition(options: Options) -> Size:
    """The option `partition` in bytes. TraceError for less than any element has."""
    size = options.size("partition", PARTITION)
    if size < 64:
        raise options.error(f"a partition of {size} holds next to nothing", "write partition=256KiB, say")
    return size


def gradient_groups(trace: Trace, options: Options) -> frozenset[int]:
    """The groups whose all-reduces are of gradients: those of all ranks, or what `traces.replicas` finds along a group.

    TraceError where there are none.
    """
    ops = (op for rank in trace.workers for op in trace.programs[rank].ops if isinstance(op, Collective))
    reduced = {op.group for op in ops if op.kind is CollectiveKind.ALL_REDUCE}
    whole = {group.id for group in trace.groups if len(group.ranks) == trace.world_size} & reduced
    if whole and "along" not in options:
        return frozenset(whole)
    found = shared_groups(trace, options) & reduced
    if not found:
        raise options.error("no gradients are all-reduced", "it takes a job of data parallelism without ZeRO")
    return found


def serve(trace: Trace, groups: frozenset[int], architecture: Architecture) -> tuple[Trace, str]:
    """`trace` with the servers, and what became of its operations, for people."""
    serving = _Serving(trace, groups, architecture)
    made = serving.trace()
    return made, serving.statement()


@dataclass(slots=True)
class _Shards:
    """Which server gets what of a tensor; a tensor goes to the same servers in every step."""

    shares: Mapping[int, Fraction]
    partition: int
    dealt: bool
    known: dict[tuple[int, int, int], tuple[tuple[int, int], ...]] = field(default_factory=dict)
    load: Counter[int] = field(default_factory=Counter)

    def of(self, op: Collective, place: int) -> tuple[tuple[int, int], ...]:
        """(server, elements) of the `place`-th tensor of its group in a step, in order."""
        key = op.group, place, op.count
        if key not in self.known:
            if self.dealt:
                pieces = -(-op_bytes(op) // self.partition)
                cut = [self._least(part(op.count, pieces, piece)[1]) for piece in range(pieces)]
            elif op_bytes(op) < self.partition:
                cut = [self._least(op.count)]
            else:
                cut = self._shares(op.count)
            self.known[key] = tuple((server, count) for server, count in cut if count)
        return self.known[key]

    def _shares(self, count: int) -> list[tuple[int, int]]:
        cut, before, until = [], 0, Fraction(0)
        for server, share in self.shares.items():
            until += share
            cut.append((server, round(count * until) - before))
            before += cut[-1][1]
        return cut

    def _least(self, count: int) -> tuple[int, int]:
        """All of it to the server that is then nearest to its share."""
        server = min(self.shares, key=lambda server: (self.load[server] + count) / self.shares[server])
        self.load[server] += count
        return server, count


class _Serving:
    """Writes the programs of one trace anew."""

    def __init__(self, trace: Trace, groups: frozenset[int], architecture: Architecture) -> None:
        self._trace, self._gradients, self._how = trace, groups, architecture
        self._groups = {group.id: group for group in trace.groups}
        self._shards = _Shards(architecture.shares, architecture.serving.partition, architecture.dealt)
        self._made: dict[tuple[int, ...], Group] = {}
        self._calls: dict[int, dict[int, list[Collective]]] = defaultdict(lambda: defaultdict(list))
        self._bytes: Counter[int] = Counter()
        self._left_out: Counter[str] = Counter()
        self._kept: Counter[str] = Counter()

    def trace(self) -> Trace:
        trace = self._trace
        programs = {rank: self._worker(program) for rank, program in sorted(trace.programs.items())}
        for server in self._how.seats:
            programs[server] = self._server(server)
        return replace(
            trace,
            world_size=trace.world_size + len(self._how.seats),
            groups=(*trace.groups, *self._made.values()),
            programs=programs,
            servers=self._how.seats,
        )

    def statement(self) -> str:
        """What became of rank 0's operations in a step."""
        steps = max(1, self._trace.step_count)
        count, nbytes = self._bytes[0] / steps, self._bytes[1] / steps
        said = [f"{count:g} all-reduces of {nbytes / 1e6:.6g} MB a step go through the servers"]
        for what, counted in (("left out", self._left_out), ("as recorded, ranks still wait in them", self._kept)):
            said += [f"{number / steps:g} {kind} a step {what}" for kind, number in sorted(counted.items())]
        return "; ".join(said)

    def _worker(self, program: Program) -> Program:
        rank, sync = program.rank, self._how.sync
        ops: list[Op] = []
        where: dict[int, tuple[int, ...]] = {}
        clocks: list[int] = []
        places: Counter[int] = Counter()
        step = 0
        for index, op in enumerate(program.ops):
            if isinstance(op, Wait):
                ops += [Wait(target, op.origin) for target in where[op.op]]
                continue
            made: list[Op] = [op]
            if isinstance(op, Collective) and op.group in self._gradients:
                made = self._instead(rank, op, places[op.group], step)
                places[op.group] += op.kind is CollectiveKind.ALL_REDUCE
            elif isinstance(op, StepMark) and sync.staleness is not None:
                clocks.append(len(ops))
                ops.append(self._clock(rank, step))
                if step >= sync.staleness:
                    ops.append(Wait(clocks[step - sync.staleness]))
            where[index] = tuple(range(len(ops), len(ops) + len(made)))
            ops += made
            if isinstance(op, StepMark):
                step += 1
                places.clear()
        return Program(rank, tuple(ops))

    def _instead(self, rank: int, op: Collective, place: int, step: int) -> list[Op]:
        """What the worker starts in place of an operation of a group of gradients."""
        first = rank == min(self._trace.programs)
        if op.kind is not CollectiveKind.ALL_REDUCE:
            drop = op.kind is CollectiveKind.BROADCAST and not self._how.sync.together
            if first:
                (self._left_out if drop else self._kept)[op.kind.value] += 1
            return [] if drop else [op]
        if first:
            self._bytes.update({0: 1, 1: op_bytes(op)})
        made: list[Op] = []
        for server, count in self._shards.of(op, place):
            call = replace(op, group=self._group(op.group, server, rank), count=count)
            if not self._how.sync.together or rank == self._groups[op.group].ranks[0]:
                self._calls[server][step].append(call)
            made.append(call)
        return made

    def _group(self, group: int, server: int, worker: int) -> int:
        """The group in which `worker`, or all of its group together, meet `server`."""
        together = self._how.sync.together
        workers = self._groups[group].ranks if together else (worker,)
        name = f"{self._groups[group].name}-server-{server}" + ("" if together else f"-{worker}")
        return self._new((group, server, *workers), name, (*workers, server))

    def _clock(self, rank: int, step: int) -> Collective:
        """All workers tell the first server that they are at the end of a step, and hear when all are."""
        server, workers = next(iter(self._how.seats)), tuple(sorted(self._trace.programs))
        tick = Collective(CollectiveKind.BARRIER, self._new((), "clock", (*workers, server)), 0, name=f"clock {step}")
        if rank == workers[0]:
            self._calls[server][step].append(tick)
        return tick

    def _new(self, key: tuple[int, ...], name: str, ranks: tuple[int, ...]) -> int:
        if key not in self._made:
            number = max(self._groups, default=-1) + 1 + len(self._made)
            self._made[key] = Group(number, name, ranks, self._how.lane, "served", self._how.serving)
        return self._made[key].id

    def _server(self, server: int) -> Program:
        """It takes part in everything, and looks no further ahead than a worker may be."""
        ops: list[Op] = []
        under_way: deque[range] = deque()
        for _, calls in sorted(self._calls[server].items()):
            if len(under_way) == self._how.sync.ahead:
                ops += map(Wait, under_way.popleft())
            under_way.append(range(len(ops), len(ops) + len(calls)))
            ops += calls
        return Program(server, tuple(ops))
