"""Runs a job with the hook in all its Pythons."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from traces.errors import TraceError

HOOK = Path(__file__).parent / "hook"
GPU_STEPS = 10  # a profile of more is large, and ten are enough to know a step


def environment(
    folder: Path, base: Mapping[str, str], *, warmup: int = 0, steps: tuple[int, int] | None = None
) -> dict[str, str]:
    """`base` with what makes ranks write into `folder`, operations of `steps` (first, beyond last) only.

    GPUs are profiled in the first GPU_STEPS of them, or behind the first `warmup` where all are recorded.
    """
    first, beyond = steps or (warmup, warmup + GPU_STEPS)
    asked = {
        "TRACEBED_RECORD": str(folder.absolute()),
        "TRACEBED_RECORD_GPU_STEPS": f"{first}:{min(beyond, first + GPU_STEPS)}",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(HOOK), base.get("PYTHONPATH", "")])),
    }
    if steps is not None:
        asked["TRACEBED_RECORD_STEPS"] = f"{steps[0]}:{steps[1]}"
    return {**base, **asked}


def run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """The command's exit status, -N for a signal N. It stays in the terminal's hands; asked to stop, it is told to.

    Raises TraceError where it can't be started.
    """
    try:
        process = subprocess.Popen(command, env=dict(environment))
    except OSError as error:
        raise TraceError(f"can't run {command[0]}: {error.strerror}", mend="say the command behind --") from error
    told = [signal.SIGTERM, signal.SIGKILL]
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.send_signal(told[0])
            told = told[1:] or told
