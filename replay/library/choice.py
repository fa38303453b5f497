"""`--library`: which there are, what they can't be used with, what a result rests on, and who starts their ranks."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Protocol, cast

from emulator.errors import MachineError, NetworkError
from emulator.network import Network
from emulator.transport import NO_COSTS
from replay.coordinator import Start
from replay.library.program import Make, World
from replay.library.rank import start_rank
from replay.plan import Plan, RankPlan
from replay.request import LIBRARIES, Request, takes_costs
from replay.worker import Worker, WorkerOptions
from traces.errors import TraceError

_TCP: Mapping[str, object] = {"streams": 1, "mss": None, "nodelay": True, "pacing": None}
"""What a socket is told by whoever opens it; the rest of `tcp` a host tells all its sockets."""


class _Module(Protocol):
    """A library's module: what the library is called, with its version; what to know of it; and how a rank's is made."""

    NAME: str
    KNOWN: str

    def prepare(self, world: World) -> Make: ...


def check_library(request: Request, network: Network, *, servers: bool, ordered: bool) -> None:
    """That the request's library, if it has one, is here and can do what the rest of the request asks for. `servers`,
    `ordered`: a what-if adds servers, or orders messages.

    Raises:
        MachineError: it is not installed.
        TraceError, NetworkError: it can't.
    """
    if not request.library:
        return
    here = f"--library {request.library}"
    try:
        _module(request.library)
    except (ImportError, RuntimeError) as error:  # mpi4py raises the latter where there is no MPI
        mend = f"pip install 'tracebed[{LIBRARIES[request.library]}]'"
        raise MachineError(f"{here} can't be used: {error}", mend=mend) from error
    refused = (
        (request.verify, "--verify", "it can't look into the library's messages"),
        (bool(request.algorithms), "--algorithm", "the library chooses its own"),
        (ordered, "--what-if priority", "the library orders its own messages"),
        (servers, "a what-if that adds servers", "the library knows none"),
    )
    for asked, what, why in refused:
        if asked:
            raise TraceError(f"{what} does not go with {here}: {why}", mend="leave out one of the two")
    if network.transport != "tcp":
        text = f"{network.name}: {here} has TCP, not transport {network.transport}"
        raise NetworkError(f"{text}; try --set transport=tcp")
    if takes_costs(request) and network.costs != NO_COSTS:
        text = f"{network.name}: {here} does its own work, which its hosts' costs can't be put into"
        raise NetworkError(f"{text}; try --set costs=none")
    for key, default in _TCP.items():
        if getattr(network.tcp, key) != default:
            raise NetworkError(f"{network.name}: {here} opens its own sockets, so tcp.{key} can't be set; leave it out")


def statement(library: str) -> tuple[str, ...]:
    """What whoever reads a result of a library's has to know."""
    module = _module(library)
    return (
        f"operations by {module.NAME}: {module.KNOWN}; sums for reductions that it lacks; an operation's end is when its wait saw "
        "it; its begin, its connections and what holds the steps are not known; in virtual time its processor work is free",
    )


def starter(library: str, plan: Plan) -> Start:
    """Starts ranks of `plan` as `replay.worker.start_worker` does. The library is imported here, before any is forked."""
    make = _module(library).prepare(World.of(plan))

    def start(own: RankPlan, addresses: Mapping[int, tuple[str, int]], options: WorkerOptions) -> Worker:
        return start_rank(own, make, addresses, options)

    return start


def _module(library: str) -> _Module:
    return cast(_Module, importlib.import_module(f"replay.library.{library}"))
