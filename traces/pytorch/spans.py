"""A Kineto file's events sorted by what they tell; times are ns since the epoch of the rank's own clock."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]

# What an operator's name says of it: nothing, a leaf's work (ATen, c10d), backward, and of that a gradient's accumulation.
OTHER, WORK, BACKWARD, ACCUMULATE = range(4)
BACKWARD_NAME = "autograd::engine::evaluate_function"
ACCUMULATE_NAME = f"{BACKWARD_NAME}: torch::autograd::AccumulateGrad"
_STEP = re.compile(r"ProfilerStep#(\d{1,18})$")


@lru_cache(1 << 12)
def kind_of(name: str) -> int:
    """OTHER, WORK, BACKWARD or ACCUMULATE."""
    if name.startswith(("aten::", "c10d::")):
        return WORK
    if name.startswith(BACKWARD_NAME):
        return ACCUMULATE if name.startswith(ACCUMULATE_NAME) else BACKWARD
    return OTHER


def step_number(name: str) -> int | None:
    """Which step the profiler's annotation `name` is of; None where it is another."""
    step = _STEP.match(name)
    return int(step.group(1)) if step else None


@dataclass(frozen=True, slots=True)
class Span:
    """An interval on a host thread. `ident` is the file's "Record function id", -1 where there is none."""

    name: str
    thread: int | str
    start: int
    end: int
    ident: int = -1


@dataclass(frozen=True, slots=True)
class Operators:
    """Intervals on host threads, of which there are too many for objects: columns of one length.

    `thread` is an index into `threads`; `kind` is what `kind_of` says of the name; both in few bits.
    """

    threads: tuple[int | str, ...]
    thread: npt.NDArray[np.int32]
    start: Integers
    end: Integers
    kind: npt.NDArray[np.int8]

    def without(self, threads: Set[int | str]) -> Operators:
        """Those on other threads."""
        left = np.array([thread not in threads for thread in self.threads], bool)[self.thread]
        return Operators(self.threads, self.thread[left], self.start[left], self.end[left], self.kind[left])


@dataclass(frozen=True, slots=True)
class Device:
    """A communication kernel on a GPU stream; `correlation` is that of the host call that launched it."""

    span: Span
    stream: int
    correlation: int


def is_comm(kernel: str) -> bool:
    """NCCL and RCCL kernels: ncclKernel_* before NCCL 2.19, ncclDevKernel_* since."""
    return kernel.startswith(("ncclKernel", "ncclDevKernel"))


@dataclass(frozen=True, slots=True)
class Gpu:
    """What the GPU did, in columns, in any order.

    Communication kernels are `kernels`, and `launches` are the host calls that launched these, by correlation. The i-th
    other kernel or copy was launched at `launched[i]` and ended at `ended[i]`; `streams` are all that such ran on, those
    whose launch was not recorded too. Host calls that wait for the GPU are from `sync_start` to `sync_end`. All of it
    lies between `first` and `last`.
    """

    kernels: tuple[Device, ...]
    launches: Mapping[int, Span]
    launched: Integers
    ended: Integers
    streams: frozenset[int]
    sync_start: Integers
    sync_end: Integers
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Spans:
    """One rank's events.

    `calls` are the communication calls in the order they were made; `workers[i]` are the `gloo:` annotations that
    belong to call i, from enqueue to finish. `gpu` is None where no GPU was recorded. `groups` are the names of the
    process groups this rank is in, in the order they were made.
    """

    file: str
    steps: tuple[tuple[int, Span], ...]
    operators: Operators
    calls: tuple[Span, ...]
    workers: tuple[tuple[Span, ...], ...]
    gpu: Gpu | None
    groups: tuple[str, ...]
