"""A Kineto file's events sorted by what they tell; times are ns since the epoch of the rank's own clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """An interval on a host thread. `ident` is the file's "Record function id", -1 where there is none."""

    name: str
    thread: int | str
    start: int
    end: int
    ident: int = -1


@dataclass(frozen=True, slots=True)
class Device:
    """An interval on a GPU stream; `correlation` is that of the host call that launched it."""

    span: Span
    stream: int
    correlation: int

    @property
    def is_comm(self) -> bool:
        """NCCL and RCCL kernels: ncclKernel_* before NCCL 2.19, ncclDevKernel_* since."""
        return self.span.name.startswith(("ncclKernel", "ncclDevKernel"))


@dataclass(frozen=True, slots=True)
class Spans:
    """One rank's events.

    `calls` are the communication calls in the order they were made; `workers[i]` are the `gloo:` annotations that
    belong to call i, from enqueue to finish. `operators` is sorted by start, outer ones first. `launches` is by
    correlation. `groups` are the names of the process groups this rank is in, in the order they were made.
    """

    file: str
    pid: int
    steps: tuple[tuple[int, Span], ...]
    operators: tuple[Span, ...]
    calls: tuple[Span, ...]
    workers: tuple[tuple[Span, ...], ...]
    kernels: tuple[Device, ...]
    launches: Mapping[int, Span]
    groups: tuple[str, ...]
