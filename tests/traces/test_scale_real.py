"""A recording of four ranks made two, against the same job really run on two."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.traces.jobs import free_port
from traces.importer import import_files
from traces.program import Collective, Trace
from traces.scale import with_ranks

pytestmark = [pytest.mark.corpus, pytest.mark.torch, pytest.mark.usefixtures("torch")]

ROW = 513  # elements of one row of the job's widest layers, weight and bias


def recorded(script: Path, mode: str, folder: Path) -> Trace:
    """The corpus's own job, run here on two ranks."""
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    argv = [sys.executable, str(script), str(folder), mode]
    ranks = [
        subprocess.Popen(argv, env={**os.environ, **where, "RANK": str(rank)}, stdout=subprocess.DEVNULL)
        for rank in range(2)
    ]
    try:
        assert [rank.wait(timeout=300) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return import_files([folder])


def calls(trace: Trace) -> list[list[tuple[str, str, int]]]:
    """Kind, type and elements of each collective, by rank."""
    return [
        [(op.kind.value, op.dtype.value, op.count) for op in program.ops if isinstance(op, Collective)]
        for program in trace.programs.values()
    ]


def test_ddp_on_two_ranks_is_what_four_ranks_scale_to(corpus: Path, tmp_path: Path) -> None:
    source = corpus / "self-recorded-gloo"
    real = recorded(source / "rec.py", "ddp", tmp_path)
    assert calls(with_ranks(import_files([source / "ddp"]), 2)) == calls(real)


def test_fsdp2_differs_by_no_more_than_the_row_it_pads_with(corpus: Path, tmp_path: Path) -> None:
    """FSDP2 cuts each parameter by rows and pads the last rank's; a recording has no rows, so its padding is scaled too."""
    source = corpus / "self-recorded-gloo"
    real = calls(recorded(source / "rec.py", "fsdp2", tmp_path))
    scaled = calls(with_ranks(import_files([source / "fsdp2"]), 2))
    for ours, theirs in zip(scaled, real, strict=True):
        assert [call[:2] for call in ours] == [call[:2] for call in theirs]
        assert {abs(a - b) for (*_, a), (*_, b) in zip(ours, theirs, strict=True)} == {0, ROW}
