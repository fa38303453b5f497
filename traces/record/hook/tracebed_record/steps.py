"""Where training steps end: at an optimizer's step, at a profiler's, or where the job says so."""

from __future__ import annotations

import functools
import os
import sys
from typing import Any, Callable

_marks: list[Callable[[str], None]] = []


def window(variable: str) -> tuple[int, int]:
    """The steps, first and beyond last, that an environment variable asks for as "A:B"; all where it is not set."""
    first, _, beyond = os.environ.get(variable, "").partition(":")
    return int(first or 0), int(beyond or sys.maxsize)


def listen(mark: Callable[[str], None]) -> None:
    """Call `mark` where the job says that a step ends, from now on."""
    _marks.append(mark)


def watch(mark: Callable[[str], None]) -> None:
    """Call `mark` at each of them from now on."""
    import torch.profiler
    from torch.optim.optimizer import register_optimizer_step_post_hook

    listen(mark)
    first: list[int] = []

    def stepped(optimizer: Any, *_: Any) -> None:
        """Of several optimizers, the one that steps first ends a step."""
        first.append(id(optimizer))
        if id(optimizer) == first[0]:
            mark("optimizer")
        del first[1:]

    register_optimizer_step_post_hook(stepped)

    profile = torch.profiler.profile
    step = profile.step

    @functools.wraps(step)
    def profiled(self: Any) -> Any:
        mark("profiler")
        return step(self)

    profile.step = profiled  # type: ignore[method-assign]


def step() -> None:
    """A training step ends here: for jobs whose steps no optimizer ends. Where nobody records it does nothing."""
    for mark in _marks:
        mark("step")
