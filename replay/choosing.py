"""From the algorithms that a user asks for to a Plan that runs them: each operation by itself, and said in a few lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from emulator.network import Network
from replay.choosers.asked import Asked, Choice, in_words
from replay.choosers.rules import CHOOSERS, Rule, read_rules
from replay.collectives.central import CENTRAL
from replay.collectives.registry import Need, need_of
from replay.collectives.schedule import Call
from replay.collectives.wires import Fabric
from replay.plan import Plan, PlannedOp, RankPlan, Transfer
from traces.errors import TraceError
from traces.program import CollectiveKind


def with_algorithms(plan: Plan, texts: Sequence[str], network: Network) -> tuple[Plan, tuple[str, ...]]:
    """The plan with the algorithms that the rules in `texts` name (`replay.choosers.rules`), and what was chosen and why: a line
    for each kind, group size and reason, over the sizes that it holds for.

    Raises:
        TraceError: a rule can't be read, or an algorithm can't do an operation that it is asked for.
    """
    choosing = _Choosing(read_rules(texts), Fabric(network), plan)
    ranks = {rank: RankPlan(rank, tuple(map(choosing.op, own.ops))) for rank, own in plan.ranks.items()}
    return Plan(ranks), choosing.lines()


@dataclass(slots=True)
class _Sizes:
    """The sizes that one reason held for, and in how many operations."""

    least: int
    most: int
    operations: set[int] = field(default_factory=set)


class _Choosing:
    def __init__(self, rules: Sequence[Rule], fabric: Fabric, plan: Plan) -> None:
        self._rules, self._fabric = rules, fabric
        self._blocks = _blocks(plan)
        self._chosen: dict[tuple[object, ...], Choice] = {}
        self._calls: dict[tuple[Call, tuple[int, ...], str], Call] = {}
        self._said: dict[tuple[str, int, str, str], _Sizes] = {}

    def op(self, op: PlannedOp) -> PlannedOp:
        if not isinstance(op, Transfer) or op.p2p or op.call.algorithm == CENTRAL:
            return op  # so lowered only where a what-if put a server
        asked = self._asked(op)
        rule = next((rule for rule in reversed(self._rules) if rule.fits(asked)), None)
        if rule is None:
            return op
        choice = self._choice(rule, asked)
        if need_of(asked.kind, choice.algorithm) is Need.EVEN and not asked.even:
            text = (
                f"{choice.algorithm} moves blocks by way of other ranks, so they must be of one size, and these differ"
            )
            raise TraceError(f"{op.label}: {text}", place=f"--algorithm {rule.text}", mend="use pairwise or direct")
        said = asked.kind, len(asked.ranks), choice.algorithm, choice.because
        sizes = self._said.setdefault(said, _Sizes(asked.nbytes, asked.nbytes))
        sizes.least, sizes.most = min(sizes.least, asked.nbytes), max(sizes.most, asked.nbytes)
        sizes.operations.add(op.number)
        return replace(op, call=self._call(op.call, op.ranks, choice.algorithm))

    def lines(self) -> tuple[str, ...]:
        found = []
        for (kind, ranks, algorithm, because), sizes in sorted(
            self._said.items(), key=lambda item: (*item[0][:2], item[1].least)
        ):
            span = (
                in_words(sizes.least)
                if sizes.least == sizes.most
                else f"{in_words(sizes.least)} to {in_words(sizes.most)}"
            )
            times = f"{len(sizes.operations)}x " if len(sizes.operations) > 1 else ""
            found.append(f"{times}{kind} of {span} on {ranks} ranks: {algorithm}, because {because}")
        return tuple(found)

    def _asked(self, transfer: Transfer) -> Asked:
        call = transfer.call
        nbytes, even = self._blocks.get(transfer.number) or (call.nbytes, True)
        return Asked(call, transfer.ranks, nbytes, even)

    def _choice(self, rule: Rule, asked: Asked) -> Choice:
        if rule.name not in CHOOSERS:
            return Choice(rule.name, f"--algorithm {rule.text} asks for it")
        call = asked.call
        same = (rule.name, asked.kind, asked.ranks, asked.nbytes, asked.even, call.itemsize, call.root)
        if rule.name == "auto":
            same = (rule.name, asked.kind, asked.ranks, asked.size_class, asked.even, call.itemsize, call.root)
        if same not in self._chosen:
            self._chosen[same] = CHOOSERS[rule.name](asked, self._fabric)
        return self._chosen[same]

    def _call(self, call: Call, ranks: tuple[int, ...], algorithm: str) -> Call:
        key = call, ranks, algorithm
        if key not in self._calls:
            need = need_of(call.kind, algorithm)
            islands = self._fabric.islands(ranks) if need is Need.ISLANDS else ()
            wires = self._fabric.wires(ranks) if need is Need.WIRES else None
            self._calls[key] = replace(call, algorithm=algorithm, islands=islands, wires=wires)
        return self._calls[key]


def _blocks(plan: Plan) -> Mapping[int, tuple[int, bool]]:
    """Of each all-to-all, by its number: the most that any rank sends or receives, and whether all blocks are of one size."""
    found: dict[int, tuple[int, bool]] = {}
    for own in plan.ranks.values():
        for op in own.ops:
            if isinstance(op, Transfer) and op.call.kind == CollectiveKind.ALL_TO_ALL:
                nbytes, even = found.get(op.number, (0, True))
                same = len({*op.call.send_splits, *op.call.recv_splits}) == 1
                found[op.number] = max(nbytes, op.call.nbytes), even and same
    return found
