"""What a chooser is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from replay.collectives.schedule import Call
from replay.collectives.wires import Fabric

_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


@dataclass(frozen=True, slots=True)
class Asked:
    """One operation that an algorithm is wanted for. `call` is one rank's, `ranks` the group's; `nbytes` is its size: the
    tensor's, of all slots where each rank has one, of all that a rank sends in an all-to-all (the most of any rank);
    `even`: an all-to-all's blocks are of one size.
    """

    call: Call
    ranks: tuple[int, ...]
    nbytes: int
    even: bool

    @property
    def kind(self) -> str:
        return self.call.kind

    @property
    def size_class(self) -> int:
        """The power of two that is not less than `nbytes`: operations of one class are treated alike."""
        return 1 << max(0, self.nbytes - 1).bit_length()


class Choice(NamedTuple):
    """An algorithm's name, and why it was taken, in words that fit behind "because"."""

    algorithm: str
    because: str


Chooser = Callable[[Asked, Fabric], Choice]


def in_words(nbytes: int) -> str:
    """A size for people, of four digits at most."""
    unit, name = next(((unit, name) for unit, name in _UNITS if nbytes >= unit), (1, "B"))
    return f"{nbytes / unit:.4g} {name}"
