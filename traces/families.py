"""Groups of a job that are alike, such as the 64 of data parallel ranks: to be shown as one. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from traces.program import Group

_NUMBER = re.compile(r"[-_.]?\d+")


@dataclass(frozen=True, slots=True)
class Family:
    """Groups that are alike: one at least."""

    groups: tuple[Group, ...]

    @property
    def name(self) -> str:
        """Of one group its name; of several what their names share, as in "dp, 64 groups of 2"."""
        first = self.groups[0]
        if len(self.groups) == 1:
            return first.name
        return ", ".join(filter(None, (_stem(first), f"{len(self.groups)} groups of {len(first.ranks)}")))

    @property
    def ranks(self) -> tuple[int, ...]:
        """Of one group its ranks in its order; of several all of them, sorted."""
        if len(self.groups) == 1:
            return self.groups[0].ranks
        return tuple(sorted({rank for group in self.groups for rank in group.ranks}))


def families(groups: tuple[Group, ...], kinds: Mapping[int, frozenset[str]]) -> tuple[Family, ...]:
    """`groups` by kin, in the order of the first of each. `kinds` are a group's operations, such as "all_reduce", by its id.

    Kin have the same name but for its numbers, description, size and kinds of operations; recordings number their groups, so
    there only the last two tell data parallel groups from tensor parallel ones.
    """
    kin: dict[object, list[Group]] = defaultdict(list)
    for group in groups:
        kin[_stem(group), group.description, len(group.ranks), kinds.get(group.id, frozenset())].append(group)
    return tuple(Family(tuple(alike)) for alike in kin.values())


def _stem(group: Group) -> str:
    return _NUMBER.sub("", group.name)
