"""Links on a kernel without netem: what tbf alone can do, which is a rate and a queue in bytes.

It is no wire: what comes after a pause passes at once, up to a bucket, which holds what passes in 1 ms or one packet.
"""

from __future__ import annotations

from collections.abc import Sequence

from emulator.errors import MachineError
from emulator.links import ETHERNET_HEADER, Direction
from emulator.qdisc.tbf import U32_MAX, Tbf
from emulator.shaping import Fidelity, without_overhead
from emulator.units import Rate, Size

STATEMENT = "this kernel has no netem: links are token buckets, which pass up to 1 ms of their rate at once"
_FAULTS = ("delay", "jitter", "loss", "reorder", "duplicate", "corrupt")
_LATE_MS = 1  # a bucket holds what passes in this time, so that a timer that is late takes nothing from the rate


def bucket(link: str, direction: Direction, mtu: int, fidelity: Fidelity) -> tuple[Tbf, ...]:
    """The stages of one direction of `link`; none where nothing is asked. Raises MachineError where tbf isn't enough."""
    wanted = [name for name in _FAULTS if getattr(direction, name)]
    if direction.queue and (direction.queue.unit == "packets" or direction.queue.early):
        wanted.append(f"a queue of {direction.queue}")
    if wanted:
        raise _lacking(f"link {link} has {', '.join(wanted)}")
    if direction.rate is None:
        return ()
    frame = mtu + ETHERNET_HEADER
    rate, overhead = direction.rate, direction.overhead
    if fidelity == "burst":  # tbf adds the overhead once to a super-packet that fits into its bucket
        rate, overhead = without_overhead(rate, frame, overhead), 0
    holds = max(frame + overhead, late_bytes(rate))
    waiting = max(frame, direction.queue.limit) if direction.queue else U32_MAX
    return (Tbf(rate=rate, burst=Size(holds), limit=Size(waiting), overhead=overhead),)


def check_changes(link: str, directions: Sequence[Direction], mtu: int, fidelity: Fidelity) -> None:
    """One direction that is each of these at some time has the same stages all the while. Raises MachineError."""
    if len({len(bucket(link, direction, mtu, fidelity)) for direction in directions}) > 1:
        raise _lacking(f"link {link} is limited at some times only")


def late_bytes(rate: Rate) -> int:
    """What passes in the time that a timer may be late."""
    return rate * _LATE_MS // 8000


def _lacking(what: str) -> MachineError:
    mend = "load sch_netem, or take a kernel that has it"
    return MachineError(f"this kernel has no netem, and {what}", mend=mend)
