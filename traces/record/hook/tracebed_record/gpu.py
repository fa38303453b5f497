"""What ran on the GPU, and when: only CUPTI or rocTracer know, so torch's own profiler records it for some steps.

Its file, one a rank, holds NCCL's kernels and everything else that the GPU did; the operations themselves, with what the profiler
does not say of them, are in the rank's own recording.
"""

from __future__ import annotations

import os
from typing import Any, Callable


class Profile:
    """torch.profiler over the steps `window`, first to beyond, into `folder`; the steps are marked in it."""

    def __init__(self, folder: str, rank: int, window: tuple[int, int]) -> None:
        import torch.profiler

        self._path = os.path.join(folder, f"kineto-rank-{rank}.json")
        self._first, self._beyond = window
        always = torch.profiler.ProfilerAction.RECORD
        self._profile: Any = torch.profiler.profile(schedule=lambda _: always)
        self._step: Callable[[Any], None] = getattr(
            torch.profiler.profile.step, "__wrapped__", torch.profiler.profile.step
        )
        self._runs = self._done = False

    def reached(self, step: int) -> None:
        """So many steps are over."""
        if not self._done and not self._runs and self._first <= step < self._beyond:
            self._profile.start()
            self._runs = True
        elif self._runs and step >= self._beyond:
            self.stop()
        elif self._runs:
            self._step(self._profile)

    def stop(self) -> None:
        """Write the file, if anything was recorded."""
        if self._runs:
            self._runs, self._done = False, True
            self._profile.stop()
            self._profile.export_chrome_trace(self._path)
