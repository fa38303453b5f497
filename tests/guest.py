"""Runs a test's other half inside the lab kernel: a script of tests/guests, which reports its result through a file.

Not through what it prints: the kernel's own warnings come on the same console, even after the script's last line.
"""

from __future__ import annotations

import json
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

from emulator.kernel.boot import Guest, run
from emulator.ledger import Ledger

ROOT = Path(__file__).parents[1]
RESULT = "TRACEBED_TEST_RESULT"  # the variable that names the file


def run_guest(script: str, *arguments: str, virtual: bool = True) -> Any:
    """What `tests/guests/SCRIPT.py ARGUMENTS` says when it is run in the lab kernel, in virtual or in real time."""
    lines: list[str] = []
    argv = (sys.executable, str(ROOT / "tests" / "guests" / f"{script}.py"), *arguments)
    with tempfile.TemporaryDirectory(prefix="tracebed-test-") as folder:
        result = Path(folder, "result.json")
        env = {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0", RESULT: str(result)}
        guest = Guest(argv, virtual=virtual, cwd=ROOT, env=env)
        with Ledger(f"test-{script}-{uuid.uuid4().hex[:8]}") as ledger:
            status = run(guest, ledger, on_output=lines.append)
        assert status == 0, "\n".join(lines)
        return json.loads(result.read_text())
