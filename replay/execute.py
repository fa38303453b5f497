"""Does one request on the kernel that this process runs on: bed up, plan run, results written, bed down.

`python -m replay.execute FOLDER [IMAGE]` does so inside the lab kernel, for the run folder whose `run.json` holds the request;
what it has to say goes to the kernel's progress device, a JSON line each. A docker bed's daemon is one that is started there
for the run; IMAGE is a file of `emulator.containers.save_image`, the image that the request names.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import msgspec

from emulator.beds.docker import DockerBed
from emulator.beds.netns import NetnsBed
from emulator.containers import load_image
from emulator.dilation import dilate
from emulator.dockerd import own_daemon
from emulator.errors import BedError, MachineError, NetworkError
from emulator.kernel.init import PROGRESS_DEVICE
from emulator.ledger import Ledger
from emulator.network import Network
from emulator.shaping import Fidelity
from emulator.transport import NO_COSTS
from replay import capture, control, coordinator, dilation
from replay.coordinator import Start
from replay.fidelity import fidelity_of, held_back
from replay.library.choice import starter
from replay.measured import write_measurement
from replay.muster import called
from replay.plan import Plan
from replay.request import Request, plan_of, takes_costs
from replay.results import Run
from replay.watch import Watch
from replay.worker import start_worker
from traces.errors import TraceError

FAILURES: dict[str, type[Exception]] = {
    kind.__name__: kind for kind in (TraceError, NetworkError, MachineError, BedError)
}


class Up(msgspec.Struct, frozen=True, tag=True):
    """The bed is up, with this fidelity, and `exact` as a bed has it; the ranks are about to start."""

    fidelity: Fidelity
    exact: bool


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
    plan, factor = plan_of(request), Fraction(request.dilation)
    asked = request.resolved_network()
    network = dilate(asked if takes_costs(request) else replace(asked, costs=NO_COSTS), factor)
    fidelity = fidelity_of(request.fidelity, network, held_back(plan))
    placed = _mustered if request.bed == "compose" else _forked
    with placed(request, network, fidelity, plan, ledger) as (bed, start):
        say(Up(bed.fidelity, bed.exact))
        watch = Watch(network, bed) if request.ground == "host" else None
        with ledger.processes() as started:
            measured = coordinator.run(
                plan,
                bed,
                verify=request.verify,
                companions=capture.companions(bed, request.pcap, folder, factor),
                on_progress=lambda said: say(dilation.step_mark(said, factor)),
                on_start=started,
                start=start,
                stall_s=request.stall_s * float(factor),
            )
        if watch is not None:
            (folder / "truth.json").write_bytes(msgspec.json.encode(watch.seen(measured.results)) + b"\n")
        write_measurement(folder, plan, asked, dilation.measurement(measured, factor))
    for name, missed in measured.missed.items():
        if missed:
            raise BedError(f"{name} missed {missed} packets: its file is not whole, though the rest of the run is")


@contextmanager
def _forked(
    request: Request, network: Network, fidelity: Fidelity, plan: Plan, ledger: Ledger
) -> Iterator[tuple[NetnsBed, Start]]:
    """A bed whose hosts are ours, and ranks that are forked into them."""
    docker = request.bed == "docker"
    with DockerBed(network, ledger, fidelity, request.image) if docker else NetnsBed(network, ledger, fidelity) as bed:
        yield bed, starter(request.library, plan) if request.library else start_worker


@contextmanager
def _mustered(
    request: Request, network: Network, fidelity: Fidelity, plan: Plan, ledger: Ledger
) -> Iterator[tuple[NetnsBed, Start]]:
    """A bed round the hosts in which the ranks are already that report here."""
    hosts = {rank: host.name for host in network.hosts for rank in host.ranks if rank in plan.ranks}
    with called(hosts) as muster, NetnsBed(network, ledger, fidelity, muster.namespaces) as bed:
        yield bed, muster.start


@contextmanager
def _daemon(ledger: Ledger, image: Path | None) -> Iterator[None]:
    """A daemon of this kernel's own, which beds use from now on, and which has the image in the file."""
    with own_daemon(ledger) as address:
        os.environ["DOCKER_HOST"] = address
        if image is not None:
            load_image(image)
        yield


def _main(folder: Path, image: Path | None = None) -> int:
    request = msgspec.json.decode((folder / "run.json").read_bytes(), type=Run).request
    with open(PROGRESS_DEVICE, "wb", buffering=0) as device, Ledger("lab") as ledger:

        def say(message: Said) -> None:
            device.write(msgspec.json.encode(message) + b"\n")

        try:
            with _daemon(ledger, image) if request.bed == "docker" else nullcontext():
                execute(request, folder, ledger, say)
        except tuple(FAILURES.values()) as error:
            kind = next(name for name, known in FAILURES.items() if isinstance(error, known))
            say(Failure(kind, str(error)))
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(*map(Path, sys.argv[1:])))
