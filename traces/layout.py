"""How a job's ranks share the work: which are replicas of each other, which share a layer, which are stages of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from traces.errors import TraceError
from traces.program import Group


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes of data, tensor and pipeline parallelism, the stage of ZeRO (0: DDP), and passes a step.

    Ranks are numbered as Megatron does: tensor parallel ranks are neighbours, then data parallel, then stages.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    zero: int = 0
    microbatches: int = 1

    @property
    def ranks(self) -> int:
        return self.dp * self.tp * self.pp

    def rank(self, stage: int, replica: int, part: int) -> int:
        return (stage * self.dp + replica) * self.tp + part

    def place(self, rank: int) -> tuple[int, int, int]:
        """Stage, replica and part of `rank`."""
        rest, part = divmod(rank, self.tp)
        stage, replica = divmod(rest, self.dp)
        return stage, replica, part


def parse(text: str, ranks: int) -> Layout:
    """The layout that "dp=4,tp=2,zero=1" says for `ranks` ranks; what is left over is data parallel. Raises TraceError."""
    known = [field.name for field in fields(Layout)]
    said: dict[str, int] = {}
    for item in filter(None, text.split(",")):
        key, _, value = item.partition("=")
        if key not in known or key in said:
            raise TraceError(f"{item!r} in the layout: expected each of {', '.join(known)} once", place="--layout")
        if not (value.isascii() and value.isdigit() and len(value) < 7 and (int(value) or key == "zero")):
            raise TraceError(f"{item!r} in the layout: expected a whole number above 0", place="--layout")
        said[key] = int(value)
    rest = said.get("tp", 1) * said.get("pp", 1)
    layout = Layout(**{"dp": max(1, ranks // rest), **said})
    if layout.ranks != ranks:
        product = f"dp {layout.dp} x tp {layout.tp} x pp {layout.pp}"
        raise TraceError(f"{product} is {layout.ranks} ranks, not {ranks}", place="--layout")
    if layout.zero > 3:
        raise TraceError(f"zero={layout.zero}: expected a stage of ZeRO, 0 to 3", place="--layout")
    if layout.zero and layout.dp == 1:
        raise TraceError(f"zero={layout.zero} shards over data parallel ranks, and there is one", place="--layout")
    return layout


def groups_of(layout: Layout) -> tuple[Group, ...]:
    """The groups that have more than one rank, each a lane of its own; between stages one for each direction."""
    stages, replicas, parts = range(layout.pp), range(layout.dp), range(layout.tp)
    members: list[tuple[str, Sequence[int]]] = []
    members += [(f"dp-{s}-{t}", [layout.rank(s, d, t) for d in replicas]) for s in stages for t in parts]
    members += [(f"tp-{s}-{d}", [layout.rank(s, d, t) for t in parts]) for s in stages for d in replicas]
    for stage in stages[1:]:
        for replica in replicas:
            for part in parts:
                before, after = layout.rank(stage - 1, replica, part), layout.rank(stage, replica, part)
                members += [(f"pp-{before}-{after}", (before, after)), (f"pp-{after}-{before}", (before, after))]
    real = [(name, tuple(ranks)) for name, ranks in members if len(ranks) > 1]
    return tuple(Group(number, name, ranks, number) for number, (name, ranks) in enumerate(real))
