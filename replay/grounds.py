"""Where a run happens: in the lab kernel in virtual time, or on this machine's own kernel. One function each."""

from __future__ import annotations

import platform
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from emulator.containers import save_image
from emulator.errors import BedError
from emulator.kernel import build
from emulator.kernel.boot import Guest, own_folder, run
from emulator.ledger import Ledger
from replay.execute import FAILURES, Failure, Said, execute
from replay.request import Request

_ROOT = Path(__file__).parents[1]
ENVIRONMENT = {
    "PYTHONHASHSEED": "0",  # the same request gives the same bytes
    "OPENBLAS_NUM_THREADS": "1",  # its threads would only cost time: the lab kernel has one processor
}
"""What the programs of a run are started with."""

Runner = Callable[[Request, Path, Ledger, Callable[[Said], None]], None]


def on_virtual(request: Request, folder: Path, ledger: Ledger, say: Callable[[Said], None]) -> None:
    """Run the request whose `run.json` is in `folder` inside the lab kernel; what it prints goes to `console.log`.

    An image of a docker bed's is copied there from the daemon that DOCKER_HOST names.

    Raises:
        MachineError: the lab kernel is not built.
        TraceError, NetworkError, BedError: as on any ground; BedError also where the kernel itself failed.
    """
    failures: list[Failure] = []
    decoder = msgspec.json.Decoder(Said)

    def relay(line: str) -> None:
        said = decoder.decode(line)
        if isinstance(said, Failure):
            failures.append(said)
        else:
            say(said)

    with own_folder(ledger) as lent, (folder / "console.log").open("w") as console:
        argv = [sys.executable, "-m", "replay.execute", str(folder)]
        if request.image:
            save_image(request.image, lent / "image.tar")
            argv.append(str(lent / "image.tar"))
        guest = Guest(tuple(argv), env={"PYTHONPATH": str(_ROOT), **ENVIRONMENT})
        status = run(guest, ledger, on_output=lambda line: print(line, file=console, flush=True), on_progress=relay)
    if failures:
        raise FAILURES[failures[0].kind](failures[0].text)
    if status != 0:
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        raise BedError(f"the coordinator {how} in the lab kernel; see {folder / 'console.log'}")


GROUNDS: Mapping[str, Runner] = {"virtual": on_virtual, "host": execute}


def describe_kernel(ground: str) -> dict[str, str]:
    """Which kernel and clock a run on `ground` measures with.

    Raises:
        MachineError: the lab kernel is not built.
    """
    if ground == "virtual":
        return {"kernel": "lab", "clock": "virtual", **build.describe(build.require())}
    return {"kernel": "this machine's", "clock": "real", "version": platform.release()}
