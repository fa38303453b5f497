"""Finds the algorithms: a file in this folder registers its own, and no other file has to know.

An algorithm is a function Call -> Schedule under a (kind, name). Each says in its docstring how the work buffer is laid
out, its steps, the bytes that a rank sends, and where it was published.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache, lru_cache

import replay.collectives
from replay.collectives.schedule import Call, Schedule
from traces.errors import TraceError

Algorithm = Callable[[Call], Schedule]

_algorithms: dict[tuple[str, str], Algorithm] = {}
_defaults: dict[str, str] = {}


def algorithm(kind: str, name: str, *, default: bool = False) -> Callable[[Algorithm], Algorithm]:
    """Registers the decorated function as algorithm `name` of `kind`; `default` is what runs when nothing is asked for."""

    def register(function: Algorithm) -> Algorithm:
        assert (kind, name) not in _algorithms, f"two algorithms are called {kind} {name}"
        _algorithms[kind, name] = function
        if default:
            assert kind not in _defaults, f"two defaults for {kind}"
            _defaults[kind] = name
        return function

    return register


@cache
def _load() -> None:
    for module in pkgutil.iter_modules(replay.collectives.__path__, "replay.collectives."):
        importlib.import_module(module.name)


def choose(kind: str, wanted: str | None) -> str:
    """The name of the algorithm that runs for `kind`: `wanted`, or the default. TraceError for a name that is not
    known.
    """
    _load()
    if wanted is None:
        return _defaults[kind]
    if (kind, wanted) not in _algorithms:
        known = ", ".join(name for of, name in _algorithms if of == kind)
        raise TraceError(f"no algorithm {wanted!r} for {kind}", mend=f"known: {known}")
    return wanted


@lru_cache(maxsize=4096)
def schedule_of(call: Call) -> Schedule:
    """The schedule of `call`, made when it is first needed and shared between operations that are alike."""
    _load()
    return _algorithms[call.kind, call.algorithm](call)
