"""Runs as each Python of a recorded job starts, for `tracebed record` puts this folder first on PYTHONPATH.

Nothing here needs more than Python 3.8, and nothing may break the job: it goes on unrecorded instead. A sitecustomize of the
job's own is run as well.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _run_the_next_one() -> None:
    elsewhere = [path for path in sys.path if os.path.abspath(path or os.curdir) != _HERE]
    found = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if found is not None and found.loader is not None:
        found.loader.exec_module(importlib.util.module_from_spec(found))


if os.environ.get("TRACEBED_RECORD"):
    try:
        from tracebed_record import imports

        imports.watch()
    except Exception as error:
        print(f"tracebed: this process is not recorded: {error!r}", file=sys.stderr)
_run_the_next_one()
