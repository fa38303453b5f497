"""Damaged logs and workloads are one-line errors, or traces that can be kept: never a traceback, never a hang."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.traces import test_horovod, test_inspector, test_nccl_log, test_pmpi, test_workloads
from tests.traces.test_mutations import MUTATIONS, damaged
from traces import archive
from traces.errors import TraceError
from traces.files import Opened
from traces.formats import FORMATS, ProgramFormat

_NCCL = [
    *(test_nccl_log.init(rank, 2) for rank in (0, 1)),
    *(test_nccl_log.call(rank, "AllReduce", 1, 8, at="[2025-04-01 12:00:01.5] ") for rank in (0, 1)),
    *(test_nccl_log.call(rank, "Send", 2, 8, root=1 - rank) for rank in (0, 1)),
    *(test_nccl_log.call(rank, "Recv", 2, 8, root=1 - rank, end=f" task 1 globalrank {rank}") for rank in (0, 1)),
]
SAMPLES: Mapping[str, bytes] = {
    "nccl-log": "\n".join(_NCCL).encode(),
    "horovod": test_horovod.text_of(test_horovod.TWO_STEPS),
    "nccl-inspector": "\n".join(
        [
            *(test_inspector.line(0, "AllReduce", 9_000, ran=(1_000 * n, 1_000 * n + 500)) for n in (1, 2)),
            *(test_inspector.message(0, way, 1) for way in ("Send", "Recv")),
        ]
    ).encode(),
    "pmpi": test_pmpi.of(0).encode(),
    "simai": (test_workloads.HEAD + "2\n" + test_workloads.ROWS).encode(),
    "aicb": "".join(
        [
            "[ pp_stage0: [rank0, rank1] ]\n",
            test_workloads.COLUMNS,
            test_workloads.row("all_reduce", "tp_group", 2, 64),
            test_workloads.row("isend", "pp_group", 1, 8, "send_next"),
            test_workloads.row("epoch_end"),
            "[ pp_stage1: [rank2, rank3] ]\n",
            test_workloads.COLUMNS,
            test_workloads.row("computation", elapsed=1.5),
            test_workloads.row("irecv", "pp_group", 1, 8, "recv_prev"),
            test_workloads.row("all_to_all", "ep_group", "None", 64),
        ]
    ).encode(),
}


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_damage_is_never_a_traceback(name: str, tmp_path: Path) -> None:
    known, data, dice = FORMATS[name], SAMPLES[name], random.Random(f"damage {name}")
    assert isinstance(known, ProgramFormat)
    kept = refused = 0
    for _ in range(MUTATIONS):
        try:
            trace = known.read([Opened("x", damaged(data, dice), "", True)])
            if kept % 50 == 0:  # writing takes longer than reading
                archive.write(trace, tmp_path / "x.trace")
            kept += 1
        except TraceError:
            refused += 1
    assert kept > MUTATIONS // 100
    assert refused > MUTATIONS // 10
