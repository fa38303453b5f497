"""What hosts take besides the wire, as timed work. In virtual time a processor's work is free, so it is stated.

A message passes these in a row, each of which does one thing after the other:

    the sender's thread      half of `message`; one thread a rank for all that it sends
    the sender's copying     its bytes: a core a connection at `stream`, and all ranks of a machine together at `copy`
    the wire
    the receiver's copying   as the sender's
    the receiver's thread    the other half of `message`; one thread a rank for all that it receives
    the receiver's adding    its bytes at `reduce`, where they are combined with what is there

One thread for all messages is what gloo (one loop a device) and NCCL (one proxy a communicator) have. What stays inside a
machine, on a host or on its island, takes nothing here: no network carries it, and an island's link has its own delay.
No I/O but the memory that the ranks of a machine share; times are nanoseconds of the caller's clock.
"""

from __future__ import annotations

import mmap
import multiprocessing
import struct
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from emulator.network import Network
from emulator.transport import NO_COSTS, Costs
from emulator.units import Rate
from replay.plan import Stream

_TIME = struct.Struct("=q")


class Work(Protocol):
    """Who does one thing after the other."""

    def take(self, now: int, ns: int) -> int:
        """Gives it `ns` more to do at `now`; when it will have done that."""
        ...


class OwnWork:
    """Work for one process."""

    def __init__(self) -> None:
        self._free = 0

    def take(self, now: int, ns: int) -> int:
        self._free = max(now, self._free) + ns
        return self._free


class SharedWork:
    """Work that processes share which are forked after it was made."""

    def __init__(self) -> None:
        self._free = mmap.mmap(-1, _TIME.size)
        # A semaphore that nobody holds is taken without a system call.
        self._lock = multiprocessing.get_context("fork").Lock()

    def take(self, now: int, ns: int) -> int:
        with self._lock:
            (free,) = _TIME.unpack_from(self._free)
            done: int = max(now, free) + ns
            _TIME.pack_into(self._free, 0, done)
        return done


@dataclass(frozen=True, slots=True)
class RankCosts:
    """What one rank takes. `near`: the ranks of its machine, itself included; `out` and `into`: the machine's copying."""

    costs: Costs
    near: frozenset[int]
    out: Work
    into: Work


def costs_of(network: Network) -> Mapping[int, RankCosts]:
    """By rank, for processes that are forked from this one; none where the network's hosts take nothing."""
    if network.costs == NO_COSTS:
        return {}
    islands = {switch.name for switch in network.switches if switch.island}
    on = {
        end: other for link in network.links for end, other in ((link.a, link.b), (link.b, link.a)) if other in islands
    }
    machines: dict[str, list[int]] = defaultdict(list)
    for host in network.hosts:
        machines[on.get(host.name, host.name)] += host.ranks
    return {
        rank: costs
        for ranks in machines.values()
        for costs in (RankCosts(network.costs, frozenset(ranks), SharedWork(), SharedWork()),)
        for rank in ranks
    }


def statement(network: Network, applied: bool) -> tuple[str, ...]:
    """What whoever reads a result has to know of what its hosts took; nothing where they take nothing."""
    costs = network.costs
    if costs == NO_COSTS:
        return ()
    if not applied:
        return (
            "host costs are not applied: they are in virtual time, and with --dilate, on beds that are made for the run",
        )
    said = [f"{costs.message} a message, half on each host"] if costs.message else []
    if network.transport == "tcp":
        rates = (("copying {} a host each way", costs.copy), ("{} a connection", costs.stream))
        said += [words.format(rate) for words, rate in rates if rate is not None]
    elif costs.copy is not None or costs.stream is not None:
        said.append("copying nothing, for with rdma the card does")
    if costs.reduce is not None:
        said.append(f"adding up {costs.reduce} a rank")
    return (f"host costs, as timed work: {', '.join(said)}",) if said else ()


class Handling:
    """A rank's threads: when a message that is to be sent may go to the transport, and one that has come to the program."""

    def __init__(self, own: RankCosts) -> None:
        self._own = own
        self._sending, self._receiving, self._adding = OwnWork(), OwnWork(), OwnWork()

    def send(self, stream: Stream, now: int) -> int:
        """When a message is ready for the transport; never earlier than the one before."""
        if stream.peer in self._own.near:
            return now
        return self._sending.take(now, self._own.costs.message // 2)

    def receive(self, stream: Stream, added: int, now: int) -> int:
        """When a message that has come at `now` is in its place, `added` bytes of it being added to what is there."""
        if stream.peer not in self._own.near:
            now = self._receiving.take(now, self._own.costs.message - self._own.costs.message // 2)
        return self._adding.take(now, _ns(added, self._own.costs.reduce)) if added else now


class Copying:
    """One direction of one connection: a core of its own, and a share of what the machine can do."""

    def __init__(self, core: Rate | None, machine: Work, all_cores: Rate | None) -> None:
        self._core, self._core_rate = OwnWork(), core
        self._machine, self._machine_rate = machine, all_cores

    def take(self, now: int, nbytes: int) -> int:
        """When `nbytes` more will be copied, if they can be at `now`."""
        return max(
            self._core.take(now, _ns(nbytes, self._core_rate)),
            self._machine.take(now, _ns(nbytes, self._machine_rate)),
        )


def copying(own: RankCosts | None, stream: Stream) -> tuple[Copying, Copying] | None:
    """That of a connection of `stream`, to the network and from it; None where it takes no time."""
    if own is None or stream.peer in own.near or own.costs.copy is own.costs.stream is None:
        return None
    core, machine = own.costs.stream, own.costs.copy
    return Copying(core, own.out, machine), Copying(core, own.into, machine)


def _ns(nbytes: int, rate: Rate | None) -> int:
    """To the nearest ns."""
    return 0 if rate is None else (nbytes * 8 * 10**9 + rate // 2) // rate
