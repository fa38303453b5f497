"""Records what torch.distributed does, whoever calls it: Python, DDP's reducer, functional collectives, compiled code.

Every collective and message of every backend is an operator of the dispatcher, `c10d::NAME`
(torch/csrc/distributed/c10d/Ops.cpp); a kernel of ours at the key BackendSelect sees each and passes it on. Waits are where
Python calls Work.wait, where `wait_tensor` is called, and, for DDP, whose reducer waits in C++ when a backward pass is over
(reducer.cpp, finalize_backward), what lies between two callbacks of the autograd engine, one before the reducer's and one behind.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Callable

from tracebed_record import steps
from tracebed_record.gpu import Profile
from tracebed_record.operators import Describer, first_tensor, operators
from tracebed_record.stream import Stream

_REDUCING = ("allreduce", "allreduce_coalesced", "reduce", "reduce_scatter", "_reduce_scatter_base",
             "reduce_scatter_tensor_coalesced")  # fmt: skip
_REDUCING_OPERATORS = frozenset(name + "_" for name in _REDUCING)
_FUNCTIONAL_REDUCING = ("all_reduce", "all_reduce_", "all_reduce_coalesced", "all_reduce_coalesced_",
                        "reduce_scatter_tensor", "reduce_scatter_tensor_out", "reduce_scatter_tensor_coalesced")  # fmt: skip
_MOST_OUTPUTS = 10_000
_now = time.monotonic_ns
_cpu = time.thread_time_ns


def install(c10d: ModuleType) -> None:
    """Record from the moment the job makes its first process group."""
    make = c10d.init_process_group

    @functools.wraps(make)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        made = make(*args, **kwargs)
        try:
            _begin(c10d)
        except Exception as error:
            print(f"tracebed: this rank is not recorded: {error!r}", file=sys.stderr)
        return made

    end = c10d.destroy_process_group

    @functools.wraps(end)
    def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
        if _current and not args and not kwargs:  # all groups
            _current[0].close()
        return end(*args, **kwargs)

    c10d.init_process_group = init_process_group
    c10d.destroy_process_group = destroy_process_group


_current: list[Recorder] = []


def _begin(c10d: ModuleType) -> None:
    folder = os.environ.get("TRACEBED_RECORD")
    if folder:
        _recorder(c10d).open(folder, steps.window("TRACEBED_RECORD_STEPS"))
        _current[0].profile(folder, steps.window("TRACEBED_RECORD_GPU_STEPS"))


def record(folder: str) -> Recorder:
    """Record into `folder` from now on; the process group is there."""
    import torch.distributed.distributed_c10d as c10d

    recorder = _recorder(c10d)
    recorder.open(folder, (0, sys.maxsize))
    return recorder


def _recorder(c10d: ModuleType) -> Recorder:
    """The hooks stay once they are there; without a stream they only pass on."""
    if not _current:
        _current.append(Recorder(c10d))
    return _current[0]


class Recorder:
    """The hooks of this process, and the stream that they write while recording is on."""

    def __init__(self, c10d: ModuleType) -> None:
        import torch

        self._torch, self._c10d = torch, c10d
        self._work, self._process_group = torch._C._distributed_c10d.Work, torch._C._distributed_c10d.ProcessGroup
        self._file: Stream | None = None
        self._stream: Stream | None = None  # the file, in the steps whose operations are asked for
        self._profile: Profile | None = None
        self._numbers: weakref.WeakKeyDictionary[Any, Sequence[int]] = weakref.WeakKeyDictionary()
        self._said_errors: set[str] = set()
        self._futureless: set[str] = set()
        self._unknown_senders: set[int] = set()
        self._last_work: Any = None  # held until Python has got the same object from the call under way
        self._outputs: dict[int, int] = {}  # address of an output's data -> the operation
        self._groups: dict[str, str] = {}  # names, and as JSON
        self._count = self._spent = 0
        self._coalesced: list[int] | None = None
        self._backward = -1
        self._thread = threading.local()
        self._libraries = []
        self._hook_operators()
        self._hook_waits()
        steps.watch(self.step)

    def open(self, folder: str, window: tuple[int, int]) -> None:
        """Start a file for the rank that this process is now; it gets the operations of steps `window`, first to beyond."""
        c10d = self._c10d
        about = {
            "rank": c10d.get_rank(), "world_size": c10d.get_world_size(), "torch": self._torch.__version__,
            "backend": str(c10d.get_backend()),
        }  # fmt: skip
        self._groups.clear()
        self._outputs.clear()
        self._count = self._spent = 0
        self._marks: dict[str, int] = {}
        self._window = window
        self._file = Stream(folder, about)
        self._stream = self._file if window[0] == 0 else None

    def profile(self, folder: str, window: tuple[int, int]) -> None:
        """Have the GPU's part of the steps `window` recorded, if operations run there."""
        if self._torch.cuda.is_available() and "nccl" in str(self._c10d.get_backend()):
            self._profile = Profile(folder, self._c10d.get_rank(), window)
            self._profile.reached(0)
            atexit.register(self._profile.stop)

    def close(self) -> None:
        """Record no more."""
        self._stream = self._file = None
        if self._profile is not None:
            self._profile.stop()

    def step(self, kind: str) -> None:
        """A training step ends now."""
        if self._file is None:
            return
        self._file.write(["s", kind, _now(), self._count, self._spent])
        self._marks[kind] = self._marks.get(kind, 0) + 1
        step = max(self._marks.values())
        self._stream = self._file if self._window[0] <= step < self._window[1] else None
        if self._profile is not None:
            self._profile.reached(step)

    def failed(self, error: Exception) -> None:
        """Say once that something could not be recorded."""
        text = repr(error)[:200]
        if self._stream is not None and text not in self._said_errors:
            self._said_errors.add(text)
            self._stream.write(["!", text])

    # -- operations

    def _hook_operators(self) -> None:
        torch = self._torch
        library = torch.library.Library("c10d", "IMPL")
        below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
        for name in operators(torch):
            kernel = self._kernel(name, getattr(torch.ops.c10d, name).default, below)
            library.impl(name, kernel, "BackendSelect", with_keyset=True)
        functional = torch.library.Library("_c10d_functional", "IMPL")
        for name in ("wait_tensor", *_FUNCTIONAL_REDUCING):
            if hasattr(torch.ops._c10d_functional, name):
                operator = getattr(torch.ops._c10d_functional, name).default
                make = self._wait_tensor if name == "wait_tensor" else self._noting_name
                functional.impl(name, make(operator, below), "BackendSelect", with_keyset=True)
        self._libraries = [library, functional]

    def _kernel(self, name: str, operator: Any, below: Any) -> Callable[..., Any]:
        describe = Describer(operator._schema.arguments)

        def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            stream = self._stream
            if stream is None:
                return operator.redispatch(keyset & below, *args, **kwargs)
            entered = _cpu()
            line = None
            try:
                line = self._started(name, describe, args)
            except Exception as error:
                self.failed(error)
            ready, begun = _cpu(), _now()
            result = operator.redispatch(keyset & below, *args, **kwargs)
            passed, returned = _cpu(), _now()
            if line is not None:
                try:
                    number = self._count
                    self._count += 1
                    stream.line(f'["o",{number},{begun},{returned},{line}]')
                    if name == "monitored_barrier_":  # it has no work: it is over
                        stream.write(["w", [number], begun, returned, -1])
                    else:
                        self._follow(stream, number, name, result, args, describe.async_at)
                except Exception as error:
                    self.failed(error)
            self._spent += _cpu() - passed + ready - entered
            return result

        return kernel

    def _started(self, name: str, describe: Describer, args: Sequence[Any]) -> str:
        """What the operation's line says behind its number and times."""
        group = self._process_group.unbox(args[describe.group_at])
        group_name = group.group_name
        said = self._groups.get(group_name) or self._tell(group, group_name)
        reduce = getattr(self._thread, "reduce", "sum") if name in _REDUCING_OPERATORS else ""
        return f'"{name}",{said},{describe(args)},"{reduce}",{self._backward_pass()}'

    def _tell(self, group: Any, name: str) -> str:
        """Write who is in a group that has not been met; its name as JSON."""
        ranks = self._c10d._world.pg_group_ranks.get(group, {})
        backend = self._c10d._world.pg_map.get(group, ("",))[0]
        assert self._file is not None
        self._file.write(["g", name, getattr(group, "group_desc", ""), sorted(ranks, key=ranks.get), str(backend)])
        return self._groups.setdefault(name, json.dumps(name))

    def _follow(self, stream: Stream, number: int, name: str, result: Any, args: Sequence[Any], async_at: int) -> None:
        """Make sure that the operation's end and the wait for it will be known."""
        if self._coalesced is not None:
            self._coalesced.append(number)
        work = self._work.unbox(result[-1] if isinstance(result, (list, tuple)) else result)
        self._numbers[work] = (number,)
        self._last_work = work
        if name == "recv_any_source_":
            self._unknown_senders.add(number)
        if 0 <= async_at < len(args) and not args[async_at]:
            return  # Python waits for it at once
        first = first_tensor(args)
        if first is not None:
            if len(self._outputs) > _MOST_OUTPUTS:  # of operations for which nobody calls wait_tensor
                self._outputs.clear()
            self._outputs[first.data_ptr()] = number
            if first.device.type != "cpu":
                return  # a GPU's queue: the host's view of the end says nothing
        if name not in self._futureless:
            try:
                work.get_future().add_done_callback(functools.partial(stream.ended, number))
            except RuntimeError:  # messages have none; they end when they are waited for
                self._futureless.add(name)

    # -- waits

    def _hook_waits(self) -> None:
        torch, c10d = self._torch, self._c10d
        work = torch._C._distributed_c10d.Work
        work.wait = self._waiting(work.wait)
        work.synchronize = self._waiting(work.synchronize)
        group = torch._C._distributed_c10d.ProcessGroup
        for name in _REDUCING:
            if hasattr(group, name):
                setattr(group, name, self._noting_operation(getattr(group, name)))
        group._start_coalescing = self._coalescing(group._start_coalescing)
        group._end_coalescing = self._coalesced_work(group._end_coalescing)
        for module in (torch.distributed, c10d, torch._C._distributed_c10d.Reducer):
            for name in ("_broadcast_coalesced", "_verify_params_across_processes", "_rebuild_buckets"):
                if hasattr(module, name):
                    setattr(module, name, self._waiting_within(getattr(module, name)))

    def _waiting(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(wait)
        def recorded(work: Any, *args: Any, **kwargs: Any) -> Any:
            numbers = self._numbers.pop(work, None)
            if numbers is None or self._stream is None:
                return wait(work, *args, **kwargs)
            begun = _now()
            try:
                return wait(work, *args, **kwargs)
            finally:
                ended, passed = _now(), _cpu()
                sender = work._source_rank() if not self._unknown_senders.isdisjoint(numbers) else -1
                said = str(numbers[0]) if len(numbers) == 1 else ",".join(map(str, numbers))
                self._stream.line(f'["w",[{said}],{begun},{ended},{sender}]')
                self._spent += _cpu() - passed

        return recorded

    def _wait_tensor(self, operator: Any, below: Any) -> Callable[..., Any]:
        def kernel(keyset: Any, tensor: Any) -> Any:
            begun = _now()
            result = operator.redispatch(keyset & below, tensor)
            ended, passed = _now(), _cpu()
            try:
                number = self._outputs.pop(tensor.data_ptr(), None) if tensor.device.type != "meta" else None
                if number is not None and self._stream is not None:
                    self._stream.line(f'["w",[{number}],{begun},{ended},-1]')
                    self._spent += _cpu() - passed
            except Exception as error:
                self.failed(error)
            return result

        return kernel

    def _waiting_within(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A call in C++ that waits for what it starts, an operation as soon as the next one has been started."""

        @functools.wraps(call)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            first = self._count
            result = call(*args, **kwargs)
            if self._stream is not None and self._count > first:
                self._stream.write(["c", first, self._count, _now()])
            return result

        return recorded

    def _noting_name(self, operator: Any, below: Any) -> Callable[..., Any]:
        def kernel(keyset: Any, tensor: Any, reduce: str, *args: Any, **kwargs: Any) -> Any:
            self._thread.reduce = reduce
            try:
                return operator.redispatch(keyset & below, tensor, reduce, *args, **kwargs)
            finally:
                self._thread.reduce = "sum"

        return kernel

    def _noting_operation(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The operator's own argument can't be read, so what Python asks for is kept while the call is made."""

        @functools.wraps(call)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            self._thread.reduce = next(filter(None, map(_operation, (*args[1:], *kwargs.values()))), "sum")
            try:
                return call(*args, **kwargs)
            finally:
                self._thread.reduce = "sum"

        return recorded

    def _coalescing(self, start: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(start)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            self._coalesced = []
            return start(*args, **kwargs)

        return recorded

    def _coalesced_work(self, end: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(end)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            work = end(*args, **kwargs)
            if work is not None and self._coalesced:
                self._numbers[work] = self._coalesced
            self._coalesced = None
            return work

        return recorded

    def _backward_pass(self) -> int:
        """The number of the backward pass that this thread is in, -1 outside; a new one is told when it ends."""
        number: int = self._torch._C._current_graph_task_id()
        if number >= 0 and number != self._backward:
            self._backward = number
            self._torch.autograd.Variable._execution_engine.queue_callback(
                functools.partial(self._backward_ends, number)
            )
        return number

    def _backward_ends(self, number: int) -> None:
        """All gradients are there. What the engine has still to call, the reducer's wait too, comes before the next callback."""
        begun = _now()

        def done() -> None:
            if self._stream is not None:
                self._stream.write(["b", number, begun, _now()])

        self._torch.autograd.Variable._execution_engine.queue_callback(done)


def _operation(asked: Any) -> str:
    """The name of what a ReduceOp, or options that have one, stand for; nothing for anything else."""
    operation = getattr(asked, "reduceOp", asked)
    name = getattr(getattr(operation, "op", operation), "name", None)
    return name.lower() if isinstance(name, str) else ""
