"""`--library`: which there are, what they can't be used with, what a result rests on, and who starts their ranks."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version

from emulator.errors import MachineError, NetworkError
from emulator.network import Network
from emulator.transport import NO_COSTS
from replay.coordinator import Start
from replay.library.program import World
from replay.library.rank import start_rank
from replay.plan import Plan, RankPlan
from replay.request import Request, takes_costs
from replay.worker import Worker, WorkerOptions
from traces.errors import TraceError

_TCP: Mapping[str, object] = {"streams": 1, "mss": None, "nodelay": True, "pacing": None}
"""What a socket is told by whoever opens it; the rest of `tcp` a host tells all its sockets."""


@dataclass(frozen=True, slots=True)
class _Known:
    """`package`: what has to be installed, by `extra` of tracebed."""

    package: str
    extra: str
    module: str
    does: str


_KNOWN = {
    "gloo": _Known(
        "torch",
        "torch",
        "replay.library.gloo",
        "operations by gloo of torch {version}: its own algorithms, connections and threads (two a group, so two operations of a "
        "group may overlap); sums for reductions that it lacks; an operation's end is when its wait saw it; its begin, its "
        "connections and what holds the steps are not known; in virtual time its processor work is free",
    ),
}


def check_library(request: Request, network: Network, *, servers: bool, ordered: bool) -> None:
    """That the request's library, if it has one, is here and can do what the rest of the request asks for. `servers`,
    `ordered`: a what-if adds servers, or orders messages.

    Raises:
        MachineError: it is not installed.
        TraceError, NetworkError: it can't.
    """
    if not request.library:
        return
    known, here = _KNOWN[request.library], f"--library {request.library}"
    if importlib.util.find_spec(known.package) is None:
        mend = f"pip install 'tracebed[{known.extra}]'"
        raise MachineError(f"{here} needs {known.package}, which is not installed", mend=mend)
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
    known = _KNOWN[library]
    return (known.does.format(version=version(known.package)),)


def starter(library: str, plan: Plan) -> Start:
    """Starts ranks of `plan` as `replay.worker.start_worker` does. The library is imported here, before any is forked."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # it warns that hosts have no names
    make = importlib.import_module(_KNOWN[library].module).make  # a replay.library.rank.Make
    world = World.of(plan)

    def start(own: RankPlan, addresses: Mapping[int, tuple[str, int]], options: WorkerOptions) -> Worker:
        return start_rank(own, world, make, addresses, options)

    return start
