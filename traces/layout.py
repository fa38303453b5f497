"""How a job's ranks share the work: which are replicas of each other, which share a layer, which are stages of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from traces.errors import TraceError
from traces.program import Group

_WHAT = {
    "dp": "data parallel",
    "tp": "tensor parallel",
    "pp": "pipeline",
    "cp": "context parallel",
    "ep": "expert parallel",
    "edp": "data parallel experts",
}


@dataclass(frozen=True, slots=True)
class Layout:
    """How many parts each kind of parallelism makes, the stage of ZeRO (0: DDP), and passes a step.

    Ranks are numbered as Megatron does: tensor parallel ranks are neighbours, then context parallel, then data parallel, then
    stages. Ranks that share a context also share gradients, so the `dp x cp` ranks of a part are its replicas; each run of
    `ep` replicas shares the experts out. `vpp` is chunks of the model a rank (interleaved stages); `sp=1` is Megatron's
    sequence parallelism.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    vpp: int = 1
    sp: int = 0
    zero: int = 0
    microbatches: int = 1

    @property
    def replicas(self) -> int:
        return self.dp * self.cp

    @property
    def ranks(self) -> int:
        return self.replicas * self.tp * self.pp

    def rank(self, stage: int, replica: int, part: int) -> int:
        return (stage * self.replicas + replica) * self.tp + part

    def next_in_ring(self, replica: int, by: int = 1) -> int:
        """The replica `by` places on in the ring of those that share `replica`'s context."""
        first = replica - replica % self.cp
        return first + (replica - first + by) % self.cp

    def place(self, rank: int) -> tuple[int, int, int]:
        """Stage, replica and part of `rank`."""
        rest, part = divmod(rank, self.tp)
        stage, replica = divmod(rest, self.replicas)
        return stage, replica, part


def parse(text: str, ranks: int) -> Layout:
    """The layout that "dp=4,tp=2,zero=1" says for `ranks` ranks; what is left over is data parallel. Raises TraceError."""
    known = [field.name for field in fields(Layout)]
    said: dict[str, int] = {}
    for item in filter(None, text.split(",")):
        key, _, value = item.partition("=")
        if key not in known or key in said:
            raise TraceError(f"{item!r} in the layout: expected each of {', '.join(known)} once", place="--layout")
        if not (value.isascii() and value.isdigit() and len(value) < 7 and (int(value) or key in ("zero", "sp"))):
            raise TraceError(f"{item!r} in the layout: expected a whole number above 0", place="--layout")
        said[key] = int(value)
    rest = said.get("tp", 1) * said.get("pp", 1) * said.get("cp", 1)
    layout = Layout(**{"dp": max(1, ranks // rest), **said})
    if layout.ranks != ranks:
        context = f" x cp {layout.cp}" if layout.cp > 1 else ""
        product = f"dp {layout.dp} x tp {layout.tp} x pp {layout.pp}{context}"
        raise TraceError(f"{product} is {layout.ranks} ranks, not {ranks}", place="--layout")
    for wrong, why in _impossible(layout):
        if wrong:
            raise TraceError(why, place="--layout")
    return layout


def _impossible(layout: Layout) -> tuple[tuple[bool, str], ...]:
    """What a layout can't be, and why."""
    return (
        (layout.zero > 3, f"zero={layout.zero}: expected a stage of ZeRO, 0 to 3"),
        (
            layout.zero > 0 and layout.replicas == 1,
            f"zero={layout.zero} shards over data parallel ranks, and there is one",
        ),
        (
            layout.replicas % layout.ep > 0,
            f"ep={layout.ep} has to divide dp x cp, which is {layout.replicas}: data parallel ranks share the experts out",
        ),
        (layout.vpp > 1 and layout.pp == 1, f"vpp={layout.vpp} needs a pipeline, pp above 1"),
        (
            layout.vpp > 1 and layout.microbatches % layout.pp > 0,
            f"vpp={layout.vpp} needs microbatches that pp={layout.pp} divides, not {layout.microbatches}",
        ),
        (layout.sp > 1, f"sp={layout.sp}: expected 0 or 1"),
        (layout.sp == 1 and layout.tp == 1, "sp=1 divides sequences over tensor parallel ranks, and there is one"),
    )


def groups_of(layout: Layout) -> tuple[Group, ...]:
    """The groups that have more than one rank, each a lane of its own.

    Between neighbours of a ring of context parallel ranks, and of a pipeline, there is one for each direction; a pipeline's
    gradients have their own, for with two interleaved stages they go the way of activations too.
    """
    stages, replicas, parts = range(layout.pp), range(layout.replicas), range(layout.tp)
    rank = layout.rank
    members: dict[str, Sequence[int]] = {}
    for s in stages:
        for t in parts:
            members[f"dp-{s}-{t}"] = [rank(s, r, t) for r in replicas]
    for s in stages:
        for r in replicas:
            members[f"tp-{s}-{r}"] = [rank(s, r, t) for t in parts]
    if layout.ep > 1:
        for s in stages:
            for t in parts:
                for first in replicas[:: layout.ep]:
                    members[f"ep-{s}-{t}-{first}"] = [rank(s, first + e, t) for e in range(layout.ep)]
                for e in range(layout.ep):
                    members[f"edp-{s}-{t}-{e}"] = [rank(s, r, t) for r in replicas[e :: layout.ep]]
    for s in stages:
        for r in replicas:
            for t in parts:
                members |= _links(layout, s, r, t)
    real = [(name, tuple(ranks)) for name, ranks in members.items() if len(set(ranks)) > 1]
    return tuple(
        Group(number, name, ranks, number, _WHAT[name.partition("-")[0]]) for number, (name, ranks) in enumerate(real)
    )


def _links(layout: Layout, stage: int, replica: int, part: int) -> dict[str, tuple[int, int]]:
    """The lanes from one rank to the next of its ring and to the next stage, and back."""
    here, after = layout.rank(stage, replica, part), layout.rank(stage, layout.next_in_ring(replica), part)
    made = {f"cp-{here}-{after}": (here, after), f"cp-{after}-{here}": (here, after)}
    if layout.pp > 1 and (layout.vpp > 1 or stage + 1 < layout.pp):
        there = layout.rank((stage + 1) % layout.pp, replica, part)
        made |= {f"pp-{here}-{there}": (here, there), f"pp-{there}-{here}-gradients": (here, there)}
    return made
