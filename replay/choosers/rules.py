"""How a user says which algorithms run: `[KIND=]NAME[:CONDITION[,CONDITION]]`, several of them, of which a later one wins.

    auto                              what an alpha-beta model of the network finds fastest, for every collective
    nccl | gloo | mpi                 what that library would choose
    halving-doubling                  by name, for each kind that has such an algorithm
    all_reduce=double-tree            for one kind
    all_reduce=tree:64KiB..1MiB       of these sizes, ends included; `..1MiB` and `1MiB..` are open
    all_to_all=bruck:..256B,ranks=8.. and in groups of so many ranks

What no rule fits runs as without rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from emulator.errors import NetworkError
from emulator.units import Size
from replay.choosers import auto, gloo, mpi, nccl
from replay.choosers.asked import Asked, Chooser
from replay.collectives.registry import known
from traces.errors import TraceError
from traces.program import CollectiveKind

CHOOSERS: dict[str, Chooser] = {"auto": auto.choose, "nccl": nccl.choose, "gloo": gloo.choose, "mpi": mpi.choose}

_GRAMMAR = "write NAME, KIND=NAME or KIND=NAME:64KiB..1MiB,ranks=4..8"


@dataclass(frozen=True, slots=True)
class Range:
    """From `least` to `most`, both included; None is open."""

    least: int = 0
    most: int | None = None

    def __contains__(self, value: int) -> bool:
        return self.least <= value and (self.most is None or value <= self.most)


@dataclass(frozen=True, slots=True)
class Rule:
    """`name`, a chooser or an algorithm, for operations of `kind` ("" for all that have it), in these sizes and groups."""

    text: str
    kind: str
    name: str
    nbytes: Range = Range()
    ranks: Range = Range()

    def fits(self, asked: Asked) -> bool:
        if self.kind not in ("", asked.kind) or asked.nbytes not in self.nbytes or len(asked.ranks) not in self.ranks:
            return False
        return self.name in CHOOSERS or self.name in known(asked.kind)


def read_rules(texts: Sequence[str]) -> tuple[Rule, ...]:
    """The rules that a user wrote. Raises TraceError for one that can't be read, or names what there is not."""
    return tuple(map(_read, texts))


def read_segment(text: str) -> int:
    """The most bytes of a pipelined message. Raises TraceError."""
    try:
        size = Size.parse(text)
    except NetworkError as error:
        raise TraceError(f"--segment {text}: {error}", mend="write a size, like 64KiB") from None
    if not size:
        raise TraceError(f"--segment {text}: a message holds at least a byte", mend="write a size, like 64KiB")
    return int(size)


def _read(text: str) -> Rule:
    what, _, conditions = text.partition(":")
    kind, named, name = what.rpartition("=")
    place = f"--algorithm {text}"
    if named and kind not in set(CollectiveKind):
        raise TraceError(f"{place}: no collective is called {kind!r}", mend=f"known: {', '.join(CollectiveKind)}")
    names = known(kind) if named else sorted({name for kind in CollectiveKind for name in known(kind)})
    if name not in CHOOSERS and name not in names:
        of = f" of {kind}" if named else ""
        mend = f"choosers: {', '.join(CHOOSERS)}; algorithms{of}: {', '.join(names)}"
        raise TraceError(f"{place}: no algorithm is called {name!r}", mend=mend)
    nbytes, ranks = Range(), Range()
    for condition in conditions.split(",") if ":" in text else ():
        head, counted, span = condition.partition("=")
        if not counted:
            nbytes = _range(condition, place, lambda end: int(Size.parse(end)))
        elif head.strip() == "ranks":
            ranks = _range(span, place, int)
        else:
            raise TraceError(f"{place}: no condition is called {head.strip()!r}", mend=_GRAMMAR)
    return Rule(text, kind, name, nbytes, ranks)


def _range(text: str, place: str, number: Callable[[str], int]) -> Range:
    least, dots, most = text.partition("..")
    try:
        if not dots or not (least.strip() or most.strip()):
            raise ValueError(f"{text.strip()!r} is no range")
        found = Range(number(least) if least.strip() else 0, number(most) if most.strip() else None)
        if found.most is not None and found.most < found.least:
            raise ValueError(f"{text.strip()!r} ends before it begins")
    except (ValueError, NetworkError) as error:
        raise TraceError(f"{place}: {error}", mend=_GRAMMAR) from None
    return found
