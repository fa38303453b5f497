"""One replay from a caller's side: the request checked, a run folder made, the run done on its ground, the summary written."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

import msgspec

from emulator import buckets
from emulator.dilation import dilate
from emulator.ledger import Ledger
from emulator.network import Network, to_dict
from emulator.shaping import Fidelity
from replay import control
from replay.capture import check_links
from replay.choosing import with_algorithms
from replay.costs import statement as statement_of_costs
from replay.dilation import read_dilation, statement
from replay.execute import Said, Up
from replay.fidelity import fidelity_of, held_back, in_bursts
from replay.grounds import GROUNDS, describe_kernel
from replay.ideal import ideal_step_ns
from replay.library.choice import check_library
from replay.library.choice import statement as statement_of_library
from replay.plan import lower
from replay.request import How, Request, prepare, takes_costs
from replay.results import FORMAT, Run, RunFolder, read_evidence, read_holders, read_totals, summarise
from replay.seats import load_seated
from replay.truth import doubts
from traces import archive
from traces.errors import TraceError
from traces.program import Trace
from traces.steps import recorded_step_ns


@dataclass(frozen=True, slots=True)
class Job:
    """A trace that is ready to be replayed on any number of networks: read, checked and changed once. `ordered`: a
    what-if orders its messages."""

    path: Path
    trace_hash: str
    what_if: tuple[str, ...]
    steps: str
    trace: Trace
    assumed: tuple[str, ...]
    ordered: bool
    ideal_step_ns: tuple[int, ...]
    recorded_step_ns: tuple[int, ...]
    held_back: float  # as `replay.fidelity.held_back` says


def read_job(path: Path, what_if: Sequence[str] = (), steps: str = "") -> Job:
    """Read, check and change a trace.

    Raises:
        TraceError: it can't be read, or can't be replayed.
    """
    scenario = prepare(path, tuple(what_if), steps)
    trace = scenario.trace
    plan = lower(trace)
    return Job(
        path=path,
        trace_hash=archive.trace_hash(path),
        what_if=tuple(what_if),
        steps=steps,
        trace=trace,
        assumed=scenario.assumed,
        ordered=scenario.sending is not None,
        ideal_step_ns=ideal_step_ns(plan),
        recorded_step_ns=recorded_step_ns(trace),
        held_back=held_back(plan),
    )


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that can be done, on `network`, and what its result will rest on."""

    request: Request
    network: Network
    kernel: dict[str, str]
    fidelity: Fidelity
    assumed: tuple[str, ...]


def ask(job: Job, network: Network, **how: Unpack[How]) -> Asked:
    """`job` on `network`, checked; nothing is made.

    Raises:
        TraceError, NetworkError, MachineError: it can't be done so.
    """
    request = Request(
        trace=str(job.path.resolve()),
        trace_hash=job.trace_hash,
        network=to_dict(network),
        what_if=job.what_if,
        steps=job.steps,
        **how,
    )
    kernel, fidelity = describe_kernel(request.ground), fidelity_of(request.fidelity, network, job.held_back)
    check_links(network, request.pcap)
    factor = read_dilation(request.dilation, request.ground)
    dilate(network, factor)  # raises where it can't be
    check_library(request, network, servers=bool(job.trace.servers), ordered=job.ordered)
    chosen: tuple[str, ...] = ()
    if request.algorithms:
        _, chosen = with_algorithms(lower(job.trace, segment=request.segment), request.algorithms, network)
    assumed = (
        *job.assumed,
        *([statement(factor)] if factor != 1 else []),
        *statement_of_costs(network, takes_costs(request)),
        *(statement_of_library(request.library) if request.library else chosen),
        *in_bursts(fidelity, job.held_back),
    )
    return Asked(request, network, kernel, fidelity, assumed)


def replay(job: Job, network: Network, folder: Path, **how: Unpack[How]) -> Run:
    """`job` on `network`, as `ask` and `carry_out` say."""
    return carry_out(job, ask(job, network, **how), folder)


def carry_out(
    job: Job,
    asked: Asked,
    folder: Path,
    *,
    command: Sequence[str] = (),
    say: Callable[[Said], None] = lambda said: None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Run:
    """Do what `asked` says of `job`, leave the run in `folder`, and return what `run.json` says then.

    The folder keeps what was measured also where the run fails, or its user stops it. Then `is_stopped`, which is asked when
    it breaks off, is true, and what there is of the run is returned.

    Raises:
        TraceError, NetworkError, MachineError, BedError: as their names say.
    """
    request = asked.request
    run = Run(
        format=FORMAT,
        tracebed=_version(),
        command=tuple(command),
        request=request,
        kernel=asked.kernel,
        fidelity=asked.fidelity,
        assumed=asked.assumed,
        status="running",
    )
    results = RunFolder(folder, job.trace.workers)
    results.write_run(run)

    def listen(said: Said) -> None:
        nonlocal run
        if isinstance(said, Up) and not said.exact:
            run = msgspec.structs.replace(run, assumed=(*run.assumed, buckets.STATEMENT))
        if isinstance(said, control.Progress):
            results.progress(said)
        say(said)

    try:
        with Ledger(uuid.uuid4().hex[:8]) as ledger:
            GROUNDS[request.ground](request, folder.resolve(), ledger, listen)
    except BaseException as error:
        if not is_stopped() and not isinstance(error, KeyboardInterrupt):
            results.write_run(msgspec.structs.replace(run, status="failed", error=str(error) or type(error).__name__))
            raise
        ended = len(results.step_ns())
        text = f"after {ended} of {job.trace.step_count} steps"
        summary = summarise(results, job.recorded_step_ns, job.ideal_step_ns) if ended else None
        run = msgspec.structs.replace(run, status="stopped", error=text, summary=summary)
        results.write_run(run)
        if not is_stopped():
            raise
        return run
    summary = summarise(results, job.recorded_step_ns, job.ideal_step_ns, read_totals(folder), read_holders(folder))
    why = doubts(read_evidence(folder)) if request.ground == "host" else ()
    done = msgspec.structs.replace(run, status="complete", summary=summary, doubts=why)
    results.write_run(done)
    return done


def load_network(name: str, job: Job, settings: dict[str, str]) -> Network:
    """The network for the job's ranks. Raises NetworkError."""
    return load_seated(name, job.trace, settings)


def new_folder(base: Path, job: Job, network: Network) -> Path:
    """A folder for one run under `base`, which no run has yet: TRACE-NETWORK, numbered from the second."""
    stem = plain_name(f"{job.path.stem}-{network.name}")
    for number in range(1, 10_000):
        folder = base / (stem if number == 1 else f"{stem}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise TraceError(f"{base} is full of runs called {stem}", mend="name another folder with -o")


def plain_name(text: str) -> str:
    """`text` as a file's name that no shell and no file format takes for more."""
    return re.sub(r"[^\w.-]+", "_", text, flags=re.ASCII)


def _version() -> str:
    from importlib.metadata import version

    return version("tracebed")
