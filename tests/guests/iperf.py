"""`iperf.py LINK ARGUMENTS...`: an unmodified iperf3 from `a` to `b`; its own report, as its `--json` gives it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

from tests.guests.pair import Task, pair, report


def serve() -> None:
    subprocess.run(["iperf3", "--server", "--one-off"], check=True, stdout=subprocess.DEVNULL)


def measure(address: str, arguments: list[str]) -> Any:
    time.sleep(1)  # by then the server listens
    command = ["iperf3", "--client", address, "--json", *arguments]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    with pair(json.loads(sys.argv[1])) as bed:
        server = Task(bed, "b", serve)
        said = Task(bed, "a", lambda: measure(bed.address("b"), sys.argv[2:])).result()
        server.result()
    report(said["end"])
