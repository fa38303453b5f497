"""SimGrid's replay of what we export (Debian's libsimgrid-dev)."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from replay.export import export
from traces.program import Trace

RATE = 125_000_000
"""Bytes a second of a host's link, where nothing else is said."""
_PLATFORM = """\
<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <cluster id="c" prefix="h" radical="0-{last}" suffix="" speed="1Gf" bw="{rate}Bps" lat="{delay_us}us"/>
</platform>
"""


def simulated_s(job: Trace, folder: Path, *options: str, rate: int = RATE, delay_us: float = 10) -> float:
    """How long SimGrid says that `job` takes on a star; fails where it can't read or end it. `options` are its --cfg."""
    data, _ = export(job, "smpi-ti")
    assert isinstance(data, bytes)
    files = {
        "job.txt": data.decode(),
        "list.txt": f"{folder / 'job.txt'}\n",
        "platform.xml": _PLATFORM.format(last=job.world_size - 1, rate=rate, delay_us=delay_us),
        "hosts": "".join(f"h{rank}\n" for rank in range(job.world_size)),
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    where = ("-platform", folder / "platform.xml", "-hostfile", folder / "hosts", "-replay", folder / "list.txt")
    program = next(Path("/usr/lib").glob("*/simgrid/smpireplaymain"))  # smpirun takes options behind a program only
    done = subprocess.run(
        ["smpirun", "-np", str(job.world_size), *where, program, *(f"--cfg={option}" for option in options)],
        capture_output=True, text=True, timeout=120, check=False, env={**os.environ, "TMPDIR": str(folder)},
    )  # fmt: skip
    found = re.search(r"Simulation time ([\d.]+)", done.stdout + done.stderr)
    assert done.returncode == 0, done.stderr
    assert found, done.stderr
    return float(found[1])
