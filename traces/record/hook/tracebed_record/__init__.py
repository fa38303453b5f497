"""What runs inside a recorded job: only what the job has, torch or mpi4py, and Python's own library, Python 3.8 or newer."""

from __future__ import annotations

from tracebed_record.steps import step

__all__ = ["step"]
