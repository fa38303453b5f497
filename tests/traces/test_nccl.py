"""What a rank on NCCL did, from small recordings whose program is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.traces.recordings import span, step, write_job
from tests.traces.test_gloo import ACCUMULATE, BACKWARD, outline
from traces.importer import import_files

COMPUTE_STREAM, COMM_STREAM = 7, 24


def launch(
    at: float, correlation: int, *, name: str = "cudaLaunchKernel", until: float | None = None
) -> dict[str, Any]:
    return span(name, at, until or at + 1, cat="cuda_runtime", args={"correlation": correlation})


def kernel(start: float, end: float, correlation: int, *, name: str = "gemm") -> dict[str, Any]:
    stream = COMM_STREAM if name.startswith("nccl") else COMPUTE_STREAM
    return span(name, start, end, cat="kernel", tid=stream, args={"stream": stream, "correlation": correlation})


def comms(start: float, end: float, ident: int, name: str, seq: int) -> dict[str, Any]:
    described = {"Collective name": name, "dtype": "Float", "In msg nelems": 8, "Out msg nelems": 8, "Seq": seq}
    group = {"Process Group Name": "0", "Group size": 2}
    return span("record_param_comms", start, end, args={"Record function id": ident} | described | group)


def test_an_operation_starts_when_its_compute_is_done_and_waiting_for_peers_is_not_compute(tmp_path: Path) -> None:
    """The collective is launched at 12, its compute ends at 40, its kernel at 90; the next compute waits."""
    events = [
        step(0, 0, 30),
        launch(5, 1),
        kernel(10, 40, 1),
        comms(12, 15, 3, "allreduce", 1),
        launch(13, 2),
        kernel(41, 90, 2, name="ncclDevKernel_AllReduce"),
        comms(16, 17, 4, "wait", 1),
        launch(20, 3),
        kernel(91, 120, 3),
    ]
    trace = import_files([write_job(tmp_path, [events, events])])

    assert outline(trace) == [40, ("all_reduce", 8), "wait 1", 30, "|"]


def test_compute_that_runs_beside_an_operation_keeps_doing_so(tmp_path: Path) -> None:
    events = [
        step(0, 0, 40),
        launch(5, 1),
        kernel(10, 20, 1),
        comms(12, 15, 3, "allreduce", 1),
        launch(13, 2),
        kernel(21, 60, 2, name="ncclKernel_AllReduce"),
        launch(20, 3),
        kernel(22, 50, 3),
        comms(25, 26, 4, "wait", 1),
        launch(30, 4),
        kernel(61, 70, 4),
    ]
    trace = import_files([write_job(tmp_path, [events, events])])

    assert outline(trace) == [20, ("all_reduce", 8), 30, "wait 1", 10, "|"]


def test_a_late_host_is_compute_but_a_host_that_waits_for_the_gpu_is_not(tmp_path: Path) -> None:
    def job(folder: Path, blocked_from: float | None) -> list[object]:
        events = [
            step(0, 0, 100),
            launch(5, 1),
            kernel(10, 20, 1),
            comms(12, 15, 3, "allreduce", 1),
            launch(13, 2),
            kernel(21, 60, 2, name="ncclKernel_AllReduce"),
            comms(16, 17, 4, "wait", 1),
            launch(70, 3),
            kernel(72, 90, 3),
        ]
        if blocked_from is not None:
            events.append(launch(blocked_from, 4, name="cudaStreamSynchronize", until=62))
        folder.mkdir()
        return outline(import_files([write_job(folder, [events, events])]))

    assert job(tmp_path / "late", None) == [20, ("all_reduce", 8), 50, "wait 1", 30, "|"]
    assert job(tmp_path / "blocked", 30) == [20, ("all_reduce", 8), 10, "wait 1", 40, "|"]


def test_ddp_buckets_wait_behind_backward_though_no_wait_is_recorded(tmp_path: Path) -> None:
    events = [
        step(0, 0, 100),
        span(BACKWARD, 4, 10),
        launch(5, 1),
        kernel(10, 20, 1),
        span(ACCUMULATE, 11, 16),
        comms(12, 15, 3, "allreduce", 1),
        launch(13, 2),
        kernel(21, 60, 2, name="ncclKernel_AllReduce"),
        span(BACKWARD, 18, 25),
        launch(20, 3),
        kernel(21, 40, 3),
        span("aten::add", 30, 35),
        launch(31, 4),
        kernel(61, 80, 4),
    ]
    trace = import_files([write_job(tmp_path, [events, events])])

    assert outline(trace) == [20, ("all_reduce", 8), 20, "wait 1", 40, "|"]


def test_waits_for_nothing_and_operations_without_a_kernel_are_said(tmp_path: Path) -> None:
    events = [
        step(0, 0, 100),
        launch(2, 1),
        kernel(3, 4, 1),
        comms(5, 6, 3, "wait", 1),
        comms(12, 15, 4, "allreduce", 2),
    ]
    trace = import_files([write_job(tmp_path, [events, events])])

    codes = {finding.code for finding in trace.findings}
    assert codes == {"kernel-lost", "dangling-wait", "wait-after-window"}
    assert outline(trace) == [12, ("all_reduce", 8), 88, "wait 1", "|"]


def test_calls_of_a_coalesced_group_share_the_kernel_behind_them(tmp_path: Path) -> None:
    events = [
        step(0, 0, 100),
        launch(2, 1),
        kernel(3, 4, 1),
        comms(10, 11, 3, "allreduce", 1),
        comms(12, 13, 4, "allreduce", 2),
        launch(15, 2),
        kernel(16, 50, 2, name="ncclDevKernel_AllReduce"),
        comms(17, 18, 5, "wait", 1),
        comms(18, 19, 6, "wait", 2),
        launch(20, 3),
        kernel(51, 60, 3),
    ]
    trace = import_files([write_job(tmp_path, [events, events])])

    assert outline(trace) == [10, ("all_reduce", 8), 2, ("all_reduce", 8), 8, "wait 1", "wait 3", 50, "|"]
    assert trace.findings == ()
