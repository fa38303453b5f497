"""What a bed is to those who use one: a network that is up, with hosts that processes can run on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from emulator.events import Change
from emulator.network import Network
from emulator.shaping import Fidelity


@dataclass(frozen=True, slots=True)
class LinkCounters:
    """One direction of one link since the bed is up. `drops`: queue overflow, early drops and random loss together, in
    packets. `backlog_bytes`: what waits in its queue now; where one qdisc makes the whole direction, what is on its way as
    well. `marks`: packets that the queue marked (ECN).

    With `burst` fidelity a GSO super-packet counts as its segments in `packets` and as one in `drops`
    (bstats_update and qdisc_qstats_drop in include/net/sch_generic.h).
    """

    link: str
    source: str
    target: str
    packets: int
    bytes: int
    drops: int
    overlimits: int
    backlog_bytes: int
    marks: int

    def since(self, earlier: LinkCounters) -> LinkCounters:
        """What was counted after `earlier`, of the same direction."""
        counted = ("packets", "bytes", "drops", "overlimits", "marks")
        return replace(self, **{name: getattr(self, name) - getattr(earlier, name) for name in counted})


class Queues(Protocol):
    """Reads what waits in the queues of a bed that is up."""

    def read(self) -> list[int]:
        """Bytes in the queue of each direction, in the order of the bed's counters."""
        ...

    def close(self) -> None:
        """Give back what reading takes."""
        ...


class Bed(Protocol):
    """Hosts joined by shaped links. A bed is up when it is made; it is a context manager that takes it down again.

    `exact`: whether the kernel has all that links are made of.
    """

    network: Network
    fidelity: Fidelity
    exact: bool

    def address(self, host: str) -> str:
        """The host's IP address on the emulated network."""
        ...

    def enter(self, host: str) -> None:
        """Move the calling process onto the host for good: to be called by a process that was forked for it."""
        ...

    def enter_link(self, link: str) -> tuple[str, str]:
        """Move the calling process, for good, to where both ends of a link are.

        Returns:
            The device that sends what leaves the link at its first end, and that of its second.
        """
        ...

    def counters(self) -> tuple[LinkCounters, ...]:
        """What each direction of each link has carried and dropped."""
        ...

    def queues(self) -> Queues:
        """What waits in the links, to be read again and again."""
        ...

    def apply(self, change: Change) -> None:
        """Make a direction of a link what the change says, from now on. What is queued stays queued.

        Raises:
            BedError: the kernel refused it or reports another setting than was asked.
        """
        ...

    def close(self) -> None:
        """Take everything down. Harmless when it is down already."""
        ...
