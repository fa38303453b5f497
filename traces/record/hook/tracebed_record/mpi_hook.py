"""Records what a job does through mpi4py, without PMPI: the methods of its classes are replaced.

The classes are extension types, whose attributes Python does not let one set, but a type's own dictionary takes them, and then
every communicator and request has them, whoever made it. Operations are written as the operators of torch.distributed that
move the same (see operators.py): counts in elements, roots and peers as ranks of the communicator.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import hashlib
import os
import threading
import time
import weakref
from collections import Counter
from types import ModuleType
from typing import Any, Callable

from tracebed_record.mpi_buffers import Buffers
from tracebed_record.mpi_calls import METHODS, UNRECORDED, Asked, Moved
from tracebed_record.mpi_waits import WAITS
from tracebed_record.session import Session

_MAKING = ("Dup", "Dup_with_info", "Idup", "Idup_with_info", "Clone", "Create", "Create_group", "Create_from_group",
           "Split", "Split_type", "Create_cart", "Create_graph", "Create_dist_graph", "Create_dist_graph_adjacent",
           "Sub", "Merge", "Shrink")  # fmt: skip
_now = time.monotonic_ns
_cpu = time.thread_time_ns


def install(mpi: ModuleType) -> None:
    """Record from now on, if the launcher asks for it."""
    folder = os.environ.get("TRACEBED_RECORD")
    if folder:
        Hook(mpi, folder)


class Hook:
    """The hooks of this process, and what they have to remember."""

    def __init__(self, mpi: Any, folder: str) -> None:
        self._mpi, self._folder = mpi, folder
        self._session: Session | None = None
        self._reductions = {
            mpi._handleof(getattr(mpi, name.upper() if name != "product" else "PROD")): name
            for name in (
                "sum",
                "product",
                "max",
                "min",
                "land",
                "band",
                "lor",
                "bor",
                "lxor",
                "bxor",
                "maxloc",
                "minloc",
            )
        }
        self._names: dict[int, tuple[str, list[int]]] = {}  # a communicator's handle -> its name and global ranks
        self._told: set[str] = set()
        self._alike: Counter[tuple[int, ...]] = Counter()
        self._pending: dict[int, tuple[weakref.ref[Any], list[tuple[int, int, int, Moved]], Asked]] = {}
        self._thread = threading.local()
        self._replace_methods()
        self._watch_pickle()
        if mpi.Is_initialized():
            self._open()

    def _open(self) -> Session:
        """The recording, begun when MPI runs, for then there is a rank."""
        if self._session is None:
            world = self._mpi.COMM_WORLD
            about = {"rank": world.Get_rank(), "world_size": world.Get_size(), "backend": "mpi"}
            self._names[self._mpi._handleof(world)] = ("MPI_COMM_WORLD", list(range(world.Get_size())))
            self._buffers = Buffers(self._mpi)
            self._session = Session(self._folder, about)
        return self._session

    # -- replacing

    def _replace_methods(self) -> None:
        mpi = self._mpi
        for owner in (mpi.Comm, mpi.Intracomm, mpi.Topocomm, mpi.Cartcomm, mpi.Intercomm, mpi.Request, mpi.Prequest,
                      mpi.Message, mpi.Win):  # fmt: skip
            for name, method in list(owner.__dict__.items()):
                make = self._replacement(owner, name)
                if make is None:
                    continue
                if isinstance(method, classmethod):
                    made: Any = classmethod(make(method.__func__))
                else:
                    made = make(method)
                gc.get_referents(owner.__dict__)[0][name] = made
            ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))

    def _replacement(self, owner: type, name: str) -> Callable[[Any], Any] | None:
        if name in UNRECORDED.get(owner.__name__, ()):
            return functools.partial(self._unrecorded, f"{owner.__name__}.{name}")
        if owner is self._mpi.Request and name in WAITS:
            return functools.partial(self._waiting, name)
        if issubclass(owner, self._mpi.Comm) and name in _MAKING:
            return self._making
        if issubclass(owner, self._mpi.Comm) and name in METHODS:
            return functools.partial(self._operation, name)
        return None

    def _unrecorded(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def passed_on(*args: Any, **kwargs: Any) -> Any:
            self._open().say(f"{name} is not recorded")
            return call(*args, **kwargs)

        return passed_on

    def _watch_pickle(self) -> None:
        """Learn how long objects are as bytes, from the functions that mpi4py calls for it."""
        pickle = self._mpi.pickle
        import pickle as standard

        thread = self._thread

        def dumps(value: Any, *args: Any, **kwargs: Any) -> bytes:
            data = standard.dumps(value, *args, **kwargs)
            getattr(thread, "lengths", []).append(len(data))
            return data

        def loads(data: Any, *args: Any, **kwargs: Any) -> Any:
            getattr(thread, "lengths", []).append(memoryview(data).nbytes)
            return standard.loads(data, *args, **kwargs)

        pickle.__init__(dumps, loads, pickle.PROTOCOL)

    # -- communicators

    def _making(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            made = call(*args, **kwargs)
            try:
                self._open()
                self._name(made[0] if isinstance(made, tuple) else made)
            except Exception as error:
                self._failed(error)
            return made

        return recorded

    def _name(self, comm: Any) -> tuple[str, list[int]]:
        """Name a communicator by its ranks, in order, and how many with the same ranks were made before it.

        All members make those in the same order, so they find the same name without a word; no MPI call tells one.
        """
        mpi, handle = self._mpi, self._mpi._handleof(comm)
        if comm == mpi.COMM_NULL or comm.Is_inter():
            return "", []
        group, world = comm.Get_group(), mpi.COMM_WORLD.Get_group()
        ranks = list(mpi.Group.Translate_ranks(group, list(range(group.Get_size())), world))
        group.Free()
        world.Free()
        nth = self._alike[tuple(ranks)]
        self._alike[tuple(ranks)] += 1
        digest = hashlib.sha256(repr(ranks).encode()).hexdigest()[:12]
        self._names[handle] = (f"mpi-{digest}-{nth}", ranks)
        return self._names[handle]

    def _group(self, comm: Any, session: Session) -> str:
        """The name of a communicator that is used, told of before; nothing for one of two groups."""
        name, ranks = self._names.get(self._mpi._handleof(comm)) or self._name(comm)
        if name and name not in self._told:
            self._told.add(name)
            session.write(["g", name, comm.Get_name(), ranks, "mpi"])
        return name

    # -- operations

    def _operation(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        method = METHODS[name]
        status_at = method.arguments.index("status") if "status" in method.arguments else -1

        @functools.wraps(call)
        def recorded(comm: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._open().is_on:
                return call(comm, *args, **kwargs)
            entered = _cpu()
            asked = Asked(self._mpi, self._buffers, comm, {**dict(zip(method.arguments, args)), **kwargs})
            if status_at >= 0 and asked.values.get("status") is None:
                asked.values["status"] = self._mpi.Status()
                if status_at < len(args):
                    args = (*args[:status_at], asked.values["status"], *args[status_at + 1 :])
                else:
                    kwargs["status"] = asked.values["status"]
            self._thread.lengths = asked.lengths
            ready, begun = _cpu(), _now()
            result = call(comm, *args, **kwargs)
            ended, passed = _now(), _cpu()
            self._thread.lengths = []
            try:
                self._write(name, asked, result if method.starts else None, begun, ended)
            except Exception as error:
                self._failed(error)
            self._open().spent_ns += _cpu() - passed + ready - entered
            return result

        return recorded

    def _write(self, name: str, asked: Asked, request: Any, begun: int, ended: int) -> None:
        """Write an operation that took from `begun` to `ended`, or that `request` is for."""
        session = self._open()
        asked.group = self._group(asked.comm, session)
        if not asked.group:
            session.say(f"{name} between two groups (an Intercomm) is not recorded")
            return
        moved = METHODS[name].describe(asked)
        operations = [(session.number(), begun, ended if request is not None else begun, one) for one in moved]
        op = asked.values.get("op", self._mpi.SUM)  # for objects any function of two
        asked.reduction = (
            self._reductions.get(self._mpi._handleof(op), "user") if isinstance(op, self._mpi.Op) else "user"
        )
        for instead in asked.notes:
            session.say(f"{name} {instead}")
        if request is None:
            self._started(operations, asked)
            self._waited([number for number, *_ in operations], begun, ended)
        elif operations:
            if METHODS[name].told_at_once:
                self._started(operations, asked)
            gone = functools.partial(self._forget, id(request))
            self._pending[id(request)] = (weakref.ref(request, gone), operations, asked)

    def _forget(self, request: int, _: Any) -> None:
        self._pending.pop(request, None)

    def _started(self, operations: list[tuple[int, int, int, Moved]], asked: Asked) -> None:
        for number, begun, returned, moved in operations:
            reduce = asked.reduction if moved.reduces else ""
            self._open().write(["o", number, begun, returned, moved.operator, asked.group, moved.told, reduce, -1])

    def _waited(self, numbers: list[int], begun: int, ended: int) -> None:
        if numbers:
            self._open().write(["w", numbers, begun, ended, -1])

    # -- waits

    def _waiting(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        wait = WAITS[name]

        @functools.wraps(call)
        def recorded(owner: Any, *args: Any, **kwargs: Any) -> Any:
            session = self._open()
            requests, statuses, args, kwargs = wait.arguments(self._mpi, owner, args, kwargs)
            begun = _now()
            result = call(owner, *args, **kwargs)
            ended, passed = _now(), _cpu()
            try:
                numbers = []
                for at, status in wait.done(result, requests, statuses):
                    numbers += self._over(requests[at], status)
                self._waited(numbers, ended if wait.polls else begun, ended)
            except Exception as error:
                self._failed(error)
            session.spent_ns += _cpu() - passed
            return result

        return recorded

    def _over(self, request: Any, status: Any) -> list[int]:
        """The numbers of a request's operations; one that received is told now, as only now it is known what."""
        _, operations, asked = self._pending.pop(id(request), (None, [], None))
        if asked is not None and asked.receives is not None:
            asked.values["status"] = status
            number, begun, returned, _ = operations[0]
            self._started([(number, begun, returned, asked.receives())], asked)
        return [number for number, *_ in operations]

    def _failed(self, error: Exception) -> None:
        self._open().say(repr(error))
