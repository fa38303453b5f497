"""Does one request on the kernel that this process runs on: bed up, plan run, results written, bed down.

`python -m replay.execute FOLDER` does so inside the lab kernel, for the run folder whose `run.json` holds the request; what it
has to say goes to the kernel's progress device, a JSON line each.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from emulator.beds.bed import Bed
from emulator.beds.netns import NetnsBed
from emulator.errors import BedError, MachineError, NetworkError
from emulator.kernel.init import PROGRESS_DEVICE
from emulator.ledger import Ledger
from replay import control, coordinator
from replay.coordinator import Start
from replay.muster import called
from replay.plan import Plan, RankPlan
from replay.request import Request, plan_of
from replay.results import Run, write_measurement
from replay.worker import Worker, WorkerOptions, start_worker
from traces.errors import TraceError

FAILURES: dict[str, type[Exception]] = {
    kind.__name__: kind for kind in (TraceError, NetworkError, MachineError, BedError)
}


class Up(msgspec.Struct, frozen=True, tag=True):
    """The bed is up, with this fidelity; the ranks are about to start."""

    fidelity: Literal["packet", "burst"]


class Failure(msgspec.Struct, frozen=True, tag=True):
    """The run failed: the error's class, one of FAILURES, and its text."""

    kind: str
    text: str


Said = Up | control.Progress | Failure


def execute(request: Request, folder: Path, ledger: Ledger, say: Callable[[Said], None]) -> None:
    """Run `request` here and leave its measurement in `folder`; `say` is told how it goes.

    Raises:
        TraceError, NetworkError, MachineError, BedError: as their names say.
    """
    plan = plan_of(request)
    with _BEDS[request.bed](request, plan, ledger) as (bed, start):
        say(Up(bed.fidelity))
        measured = coordinator.run(plan, bed, verify=request.verify, on_progress=say, start=start)
        write_measurement(folder, plan, measured)


@contextmanager
def _netns(request: Request, plan: Plan, ledger: Ledger) -> Iterator[tuple[Bed, Start]]:
    """Hosts that are namespaces of ours; ranks are forked into them."""
    with NetnsBed(request.resolved_network(), ledger, _fidelity(request)) as bed, ledger.processes() as started:

        def start(plan: RankPlan, addresses: Mapping[int, tuple[str, int]], options: WorkerOptions) -> Worker:
            worker = start_worker(plan, addresses, options)
            started(worker.pid)
            return worker

        yield bed, start


@contextmanager
def _compose(request: Request, plan: Plan, ledger: Ledger) -> Iterator[tuple[Bed, Start]]:
    """Hosts that are containers, whose ranks report here."""
    network = request.resolved_network()
    hosts = {rank: host.name for host in network.hosts for rank in host.ranks if rank in plan.ranks}
    with called(hosts) as muster, NetnsBed(network, ledger, _fidelity(request), muster.namespaces) as bed:
        yield bed, muster.start


_BEDS = {"netns": _netns, "compose": _compose}


def _fidelity(request: Request) -> Literal["packet", "burst"] | None:
    if request.fidelity == "auto":
        return None
    return "packet" if request.fidelity == "packet" else "burst"


def _main(folder: Path) -> int:
    request = msgspec.json.decode((folder / "run.json").read_bytes(), type=Run).request
    with open(PROGRESS_DEVICE, "wb", buffering=0) as device, Ledger("lab") as ledger:

        def say(message: Said) -> None:
            device.write(msgspec.json.encode(message) + b"\n")

        try:
            execute(request, folder, ledger, say)
        except tuple(FAILURES.values()) as error:
            kind = next(name for name, known in FAILURES.items() if isinstance(error, known))
            say(Failure(kind, str(error)))
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(Path(sys.argv[1])))
