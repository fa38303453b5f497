"""Fixtures that more than one package's tests use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def corpus() -> Path:
    """The recorded traces: TRACEBED_CORPUS, else shared/traces beside the repository. CI must have them."""
    folder = Path(os.environ.get("TRACEBED_CORPUS", ROOT.parent / "shared" / "traces"))
    if not folder.is_dir():
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI must have the trace corpus; {folder} is not a folder (set TRACEBED_CORPUS)")
        pytest.skip("not run: no trace corpus (set TRACEBED_CORPUS)")
    return folder
