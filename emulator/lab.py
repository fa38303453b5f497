"""A bed in the lab kernel, there for one errand: to be probed, or to have a command run on one of its hosts.

`main(FILE)` does the errand of the file inside; what it has to say goes to the kernel's progress device, a JSON line each.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import msgspec

from emulator.beds.netns import NetnsBed
from emulator.errors import BedError, MachineError, NetworkError
from emulator.kernel.boot import Guest, own_folder, run
from emulator.kernel.init import PROGRESS_DEVICE
from emulator.ledger import Ledger
from emulator.measure import survey
from emulator.namespace import run_inside
from emulator.network import Network, from_dict, to_dict
from emulator.probe import VIRTUAL, Report

# Not by PYTHONPATH, which the command that is run would have as well.
_ERRAND = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r}); from emulator.lab import main; main(sys.argv[1])"
_ENVIRONMENT = {"PYTHONHASHSEED": "0"}  # the same errand gives the same bytes
_FAILURES = {kind.__name__: kind for kind in (NetworkError, MachineError, BedError)}


class _Probe(msgspec.Struct, frozen=True, tag=True):
    network: dict[str, object]


class _Execute(msgspec.Struct, frozen=True, tag=True):
    network: dict[str, object]
    host: str
    command: tuple[str, ...]


class _Found(msgspec.Struct, frozen=True, tag=True):
    report: Report


class _Ended(msgspec.Struct, frozen=True, tag=True):
    status: int


class _Failed(msgspec.Struct, frozen=True, tag=True):
    kind: str
    text: str


_Errand = _Probe | _Execute
_Said = _Found | _Ended | _Failed


def probe(network: Network) -> tuple[Report, ...]:
    """Probe a fresh bed in virtual time: a report for each of `emulator.probe.paths`.

    Raises:
        NetworkError, MachineError, BedError: as `NetnsBed`, `survey` and `emulator.kernel.boot.run` do.
    """
    said = _run(_Probe(to_dict(network)), on_output=lambda line: None)
    return tuple(found.report for found in said if isinstance(found, _Found))


def execute(network: Network, host: str, command: tuple[str, ...], on_output: Callable[[str], None]) -> int:
    """Run an unmodified command on a host of a fresh bed in virtual time; its exit status, negative for a signal.

    Its standard input is empty; `on_output` is called with each line of its output and of its errors.

    Raises:
        NetworkError, MachineError, BedError: as `probe`.
    """
    said = _run(_Execute(to_dict(network), host, command), on_output)
    (ended,) = (each for each in said if isinstance(each, _Ended))
    return ended.status


def _run(errand: _Errand, on_output: Callable[[str], None]) -> list[_Said]:
    """What the errand says. Raises what it failed with."""
    said: list[_Said] = []
    decoder = msgspec.json.Decoder(_Said)
    with Ledger(f"errand-{uuid.uuid4().hex[:8]}") as ledger, own_folder(ledger) as folder:
        file = folder / "errand.json"
        file.write_bytes(msgspec.json.encode(errand))
        guest = Guest((sys.executable, "-c", _ERRAND, str(file)), env=_ENVIRONMENT)
        status = run(guest, ledger, on_output=on_output, on_progress=lambda line: said.append(decoder.decode(line)))
    for failed in said:
        if isinstance(failed, _Failed):
            raise _FAILURES[failed.kind](failed.text)
    if status != 0:
        raise BedError(f"the errand in the lab kernel ended with status {status}")
    return said


def _do(errand: _Errand, say: Callable[[_Said], None]) -> None:
    network = from_dict(errand.network)
    with Ledger("lab") as ledger, NetnsBed(network, ledger) as bed:
        if isinstance(errand, _Probe):
            for report in survey(network, bed.namespace, VIRTUAL):
                say(_Found(report))
            return
        say(_Ended(run_inside(bed.namespace(errand.host), errand.command)))


def main(file: str) -> None:
    """Do the errand of a file; what it fails with is said, not raised."""
    errand = msgspec.json.decode(Path(file).read_bytes(), type=_Errand)
    with open(PROGRESS_DEVICE, "wb", buffering=0) as device:

        def say(said: _Said) -> None:
            device.write(msgspec.json.encode(said) + b"\n")

        try:
            _do(errand, say)
        except (NetworkError, MachineError, BedError) as error:
            say(_Failed(next(name for name, kind in _FAILURES.items() if isinstance(error, kind)), str(error)))
