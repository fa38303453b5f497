"""What any format's reader hands back for one file of one rank, before files are joined into a job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from traces.program import Finding
from traces.pytorch.calls import UNKNOWN, Call


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A process group as one rank's file lists it; `ranks` are global, in group order."""

    name: str
    description: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TimedCall:
    """A call and what its rank did about it, in ns since the epoch of the rank's own clock.

    The rank started it at `issue_ns`, it ended at `end_ns` (UNKNOWN where the recording lost it), and the rank stopped
    for it at `wait_ns` (None: never within the recording). Between `wait_ns` and `end_ns` the rank waited.
    """

    call: Call
    issue_ns: int
    end_ns: int = UNKNOWN
    wait_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Timeline:
    """One rank's recorded steps: they start at `start_ns`; `marks` are (step number, the moment it ended)."""

    start_ns: int
    marks: tuple[tuple[int, int], ...]
    calls: tuple[TimedCall, ...]
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class Recording:
    """One file of one rank. `rank`, `world_size` and `pid` are UNKNOWN where the format does not tell.

    `timeline`, where the format has times, places calls in time; it takes this recording's `calls`, one for one, as
    they are known after other files of the rank have added to them. `findings` hold whether its times are used or not.
    """

    file: str
    format: str
    rank: int = UNKNOWN
    world_size: int = UNKNOWN
    pid: int = UNKNOWN
    host: str = ""
    groups: tuple[GroupInfo, ...] = ()
    calls: tuple[Call, ...] = ()
    findings: tuple[Finding, ...] = ()
    timeline: Callable[[tuple[Call, ...]], Timeline] | None = None
