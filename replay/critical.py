"""What holds a run's steps: the critical path, by what was computed, by operation and by link; and the step without each. Pure.

From the moment in which the last rank passed a step's mark, the way back leads to whichever moment came last of those that it
waited for, until the step before ends. All time on that path is somebody's: every ns less there is one less of the step, until
another path is the longest. How much that gives is asked of the graph itself (`replay.moments`): all moments anew, without the
time of one rank's compute, of one operation's messages or of one link.

What it assumes: messages that stay take as long as they did, so one that shared a link with what is taken away would in truth
be faster still; and who goes first on a lane or connection stays so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
import numpy as np

from emulator.beds.bed import LinkCounters
from emulator.network import Network
from replay.hindering import Hindrance, hindrances
from replay.moments import Cause, Message, Moments, Work
from traces.program import Collective, op_bytes

Kind = Literal["compute", "operation", "link", "process"]
MOST_ROWS = 6
"""Of each kind: for what takes less of the path, the step without it is not asked for."""


_UNITS = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


class Holder(msgspec.Struct, frozen=True):
    """What is on the critical path, for how long, and how long a step would be without it: means over steps, in ns.

    `process`: a rank's process took longer than what it waited for; in virtual time none does. Operations and links show the
    same time from two sides.
    """

    kind: Kind
    name: str
    path_ns: float
    free_step_ns: float


def holders(
    moments: Moments, network: Network, counters: Iterable[LinkCounters], first_step: int = 0
) -> tuple[Holder, ...]:
    """The holders of each kind that take most of the critical path of steps `first_step` (counted from 0) and later."""
    carried = [index for index, cause in enumerate(moments.cause) if isinstance(cause, Message)]
    messages = [cause for cause in moments.cause if isinstance(cause, Message)]
    found = hindrances(network, counters, messages, [moments.took[index] for index in carried])
    asking = _Asking(moments, carried, found, first_step)
    return tuple(holder for kind in asking.on_path for holder in asking.of_kind(kind))


class _Asking:
    """One run's graph, what its links did, and the path through it."""

    def __init__(self, moments: Moments, carried: Sequence[int], found: Sequence[Hindrance], first_step: int) -> None:
        self._moments = moments
        self._carried = np.array(carried, np.intp)
        self._links = {" or ".join(each.links): each for each in found}
        self._owned: dict[tuple[Kind, str], list[int]] = defaultdict(list)
        for index, cause in enumerate(moments.cause):
            self._owned[_owner(cause)].append(index)
        self._first = first_step
        self._steps = len(moments.marks) - first_step
        self.on_path: dict[Kind, dict[str, float]] = {"compute": {}, "operation": {}, "link": {}, "process": {}}
        self._walk()

    def of_kind(self, kind: Kind) -> list[Holder]:
        largest = sorted(self.on_path[kind].items(), key=lambda item: (-item[1], item[0]))
        return [
            Holder(kind, name, time / self._steps, self._without(kind, name))
            for name, time in largest[:MOST_ROWS]
            if time
        ]

    def _walk(self) -> None:
        moments, spent = self._moments, defaultdict[int, int](int)
        begins = 0
        for number, step in enumerate(sorted(moments.marks)):
            here = max(moments.marks[step], key=lambda moment: moments.at[moment])
            ends = moments.at[here]
            if number >= self._first:
                while moments.at[here] > begins and moments.after[here]:
                    spent[here] += min(moments.took[here], moments.at[here] - begins)
                    here = max(moments.after[here], key=lambda moment: moments.at[moment])
            begins = ends
        for index, time in spent.items():
            kind, name = _owner(moments.cause[index])
            self.on_path[kind][name] = self.on_path[kind].get(name, 0) + time
        weight = np.zeros(len(moments.at))
        for index, time in spent.items():
            weight[index] = time / moments.took[index] if time else 0
        for name, link in self._links.items():
            self.on_path["link"][name] = float(link.against @ weight[self._carried[link.messages]])

    def _without(self, kind: Kind, name: str) -> float:
        moments = self._moments
        took = np.array(moments.took, np.int64)
        if kind == "link":
            link = self._links[name]
            took[self._carried[link.messages]] = np.round(link.without)
        else:
            took[self._owned[kind, name]] = 0
        steps = moments.step_ns(moments.retimed(took.tolist()))[self._first :]
        return sum(steps) / len(steps)


def _owner(cause: Cause) -> tuple[Kind, str]:
    """Whose time it is, but for links."""
    if isinstance(cause, Work):
        return ("compute" if cause.compute else "process"), f"rank {cause.rank}"
    op = cause.transfer.op
    what = op.kind.value if isinstance(op, Collective) else type(op).__name__.lower()
    return "operation", f"{what} of {_size(op_bytes(op))}" + (f" {op.name!r}" if op.name else "")


def _size(nbytes: int) -> str:
    """For people: three significant digits, in units of 1,000."""
    number, unit = next(((nbytes / size, unit) for size, unit in _UNITS if nbytes >= size), (nbytes, "B"))
    return f"{number:.3g} {unit}"
