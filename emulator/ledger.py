"""Who owns what on this machine: written down before it is made, so that what a dead run left can be removed.

One file a run, under TRACEBED_STATE (default: /run/tracebed as root, else the user's cache folder). A run is dead when
its process is gone; a process id that has been given to somebody else since then has another start time. What is kept on
purpose belongs to no process, so it is never dead.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from emulator.errors import BedError

Kind = Literal["netns", "process", "folder", "container", "image", "ingress", "device"]
_PREFIX = "tracebed-"


@dataclass(frozen=True, slots=True)
class Claim:
    """One thing a run made or is about to make. `name`: a namespace's or a device's name, a folder's path, "pid start-time",
    "daemon name" of a container or an image of Docker's, or "index name txqueuelen owner" of our filters at a foreign device.
    """

    kind: Kind
    name: str


def state_folder() -> Path:
    """Where the ledgers are."""
    if chosen := os.environ.get("TRACEBED_STATE"):
        return Path(chosen)
    if os.geteuid() == 0:
        return Path("/run/tracebed")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tracebed" / "runs"


def process_name(pid: int) -> str | None:
    """`pid` and when it started, in clock ticks since boot (field 22 of proc(5) stat); None where it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *rest = stat.rpartition(")")[2].split()
    return None if state == "Z" else f"{pid} {rest[18]}"


class Ledger:
    """The claims of one run; a context manager that takes the file away when all is released."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self._path = state_folder() / f"{_PREFIX}{run_id}.json"
        self._claims: list[Claim] = []
        self._owner = process_name(os.getpid())
        self._kept: Mapping[str, object] | None = None
        self._writes = True

    def __enter__(self) -> Self:
        """Raises BedError where the run id is taken."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._write_fresh()
        try:
            os.link(fresh, self._path)
        except FileExistsError:
            raise BedError(f"{self.run_id} is there already, or left things behind; see tracebed clean") from None
        finally:
            fresh.unlink()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if not self._claims:
            self._path.unlink(missing_ok=True)

    def claim(self, kind: Kind, name: str) -> Claim:
        """Write down that the run owns this; to be called before it is made. Once more is harmless."""
        (made,) = self.claim_all(kind, [name])
        return made

    def claim_all(self, kind: Kind, names: Iterable[str]) -> tuple[Claim, ...]:
        """Write down together that the run owns all these, which takes the file one change."""
        made = tuple(Claim(kind, name) for name in names)
        if fresh := [claim for claim in made if claim not in self._claims]:
            self._claims.extend(fresh)
            self._write()
        return made

    def claim_process(self, pid: int) -> Claim | None:
        """Write down a process that was just started; None if it has ended already."""
        name = process_name(pid)
        return self.claim("process", name) if name else None

    @contextmanager
    def processes(self) -> Iterator[Callable[[int], None]]:
        """A function that writes down each process it is told of; all are released, having ended, when the block ends."""
        claims: list[Claim] = []

        def started(pid: int) -> None:
            if claim := self.claim_process(pid):
                claims.append(claim)

        try:
            yield started
        finally:
            for claim in claims:
                self.release(claim)

    def release(self, claim: Claim) -> None:
        """Forget a claim: the thing is gone."""
        self._claims.remove(claim)
        self._write()

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is forgotten in this block is written down at its end: what is gone already does no harm in a ledger."""
        self._writes = False
        try:
            yield
        finally:
            self._writes = True
            self._write()

    def keep(self, description: Mapping[str, object]) -> None:
        """From now on what is claimed outlives this process; `description` (plain data) is what `kept` tells of it."""
        self._kept = description
        self._write()

    def _write(self) -> None:
        if self._writes:
            self._write_fresh().replace(self._path)

    def _write_fresh(self) -> Path:
        """The content in a file of this process's own, to be put in place at once."""
        claims = [[claim.kind, claim.name] for claim in self._claims]
        fresh = self._path.with_suffix(f".{os.getpid()}.new")
        fresh.write_text(json.dumps({"owner": self._owner, "claims": claims, "kept": self._kept}))
        return fresh


@dataclass(frozen=True, slots=True)
class Written:
    """What one ledger says. `kept`: the description of what is kept on purpose, or None."""

    path: Path
    run_id: str
    owner: str
    claims: tuple[Claim, ...]
    kept: Mapping[str, object] | None


def written() -> Iterator[Written]:
    """Every ledger there is."""
    for path in sorted(state_folder().glob(f"{_PREFIX}*.json")):
        with suppress(FileNotFoundError):  # its run has just ended
            content = json.loads(path.read_text())
            claims = tuple(Claim(kind, name) for kind, name in content["claims"])
            yield Written(path, path.stem.removeprefix(_PREFIX), content["owner"], claims, content.get("kept"))


def leftovers() -> Iterator[Written]:
    """The ledgers whose run is dead."""
    return (ledger for ledger in written() if ledger.kept is None and not lives(ledger.owner))


def lives(process: str) -> bool:
    """Whether a process that was written down still runs."""
    return process_name(int(process.split()[0])) == process


def redescribe(ledger: Written, description: Mapping[str, object]) -> None:
    """From now on `kept` tells this of something that is kept."""
    _rewrite(ledger, ledger.owner, description)


def disown(ledger: Written) -> None:
    """What was kept isn't any more: it belongs to this process."""
    _rewrite(ledger, process_name(os.getpid()), None)


def _rewrite(ledger: Written, owner: str | None, kept: Mapping[str, object] | None) -> None:
    claims = [[claim.kind, claim.name] for claim in ledger.claims]
    fresh = ledger.path.with_suffix(f".{os.getpid()}.new")
    fresh.write_text(json.dumps({"owner": owner, "claims": claims, "kept": kept}))
    fresh.replace(ledger.path)


def remove_unfinished() -> None:
    """Remove what processes that are gone had written but not put in place."""
    for path in state_folder().glob(f"{_PREFIX}*.new"):
        if process_name(int(path.suffixes[-2].removeprefix("."))) is None:
            path.unlink(missing_ok=True)
