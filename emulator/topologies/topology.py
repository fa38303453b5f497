"""What a topology is to those who expand one, and what the files of this package share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from emulator.links import NONE, UNLIMITED
from emulator.marked import Node
from emulator.shape import Shape

MOST = 2**16
CABLE: Mapping[str, str] = {
    "delay": "0", "jitter": "0", "loss": NONE, "reorder": NONE, "duplicate": NONE, "corrupt": NONE, "queue": UNLIMITED,
}  # fmt: skip
"""Settings of the cable between a host and a switch that are one node to the user: a rate and nothing else."""


@dataclass(frozen=True, slots=True)
class Expanded:
    """Names, and for some links settings of their own, as a file would say them: over `link`, under `links`."""

    shape: Shape
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Topology:
    """`keys` are those a file may set. `expand(asked, hosts, rate)` gets the file's mapping, how many hosts the ranks
    need, and what `link.rate` says where it says anything; it raises NetworkError."""

    keys: tuple[str, ...]
    expand: Callable[[Node, int, Node | None], Expanded]


def count(asked: Node, key: str, least: int = 1, default: int | None = None) -> int:
    """The whole number at `key`; one without a default must be there. Raises NetworkError."""
    settings = asked.mapping()
    if key in settings:
        return settings[key].integer(least, MOST)
    if default is None:
        raise asked.error(f"expected '{key}', a whole number from {least}")
    return default


def host_names(hosts: int) -> tuple[str, ...]:
    return tuple(f"host{index}" for index in range(hosts))
