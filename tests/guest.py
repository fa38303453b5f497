"""Runs a test's other half inside the lab kernel: a script of tests/guests, whose last line of output is its result in JSON."""

from __future__ import annotations

import json
import sys
import uuid
from pathlib import Path
from typing import Any

from emulator.kernel.boot import Guest, run
from emulator.ledger import Ledger

ROOT = Path(__file__).parents[1]


def run_guest(script: str, *arguments: str, virtual: bool = True) -> Any:
    """What `tests/guests/SCRIPT.py ARGUMENTS` says when it is run in the lab kernel, in virtual or in real time."""
    lines: list[str] = []
    argv = (sys.executable, str(ROOT / "tests" / "guests" / f"{script}.py"), *arguments)
    guest = Guest(argv, virtual=virtual, cwd=ROOT, env={"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"})
    with Ledger(f"test-{script}-{uuid.uuid4().hex[:8]}") as ledger:
        status = run(guest, ledger, on_output=lines.append)
    assert status == 0, "\n".join(lines)
    return json.loads(lines[-1])
