"""Finds the algorithms: a file in this folder registers its own, and no other file has to know.

An algorithm is a function Call -> Schedule under a (kind, name). Each says in its docstring how the work buffer is laid
out, its steps, the bytes that a rank sends, where it was published, and when it wins.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from enum import Enum
from functools import cache, lru_cache

import replay.collectives
from replay.collectives.schedule import Call, Schedule
from traces.errors import TraceError

Algorithm = Callable[[Call], Schedule]


class Need(Enum):
    """What an algorithm wants of its call beyond what every call has: `islands`, `wires`, or that all splits are equal."""

    ISLANDS = "islands"
    WIRES = "wires"
    EVEN = "even"


_algorithms: dict[tuple[str, str], Algorithm] = {}
_needs: dict[tuple[str, str], Need | None] = {}
_defaults: dict[str, str] = {}


def algorithm(
    kind: str, name: str, *, default: bool = False, needs: Need | None = None
) -> Callable[[Algorithm], Algorithm]:
    """Registers the decorated function as algorithm `name` of `kind`; `default` is what runs when nothing is asked for."""

    def register(function: Algorithm) -> Algorithm:
        assert (kind, name) not in _algorithms, f"two algorithms are called {kind} {name}"
        _algorithms[kind, name] = function
        _needs[kind, name] = needs
        if default:
            assert kind not in _defaults, f"two defaults for {kind}"
            _defaults[kind] = name
        return function

    return register


@cache
def _load() -> None:
    for module in pkgutil.iter_modules(replay.collectives.__path__, "replay.collectives."):
        importlib.import_module(module.name)


def known(kind: str) -> list[str]:
    """The names of a kind's algorithms; the default is the first."""
    _load()
    names = sorted(name for of, name in _algorithms if of == kind)
    return sorted(names, key=lambda name: name != _defaults[kind])


def need_of(kind: str, name: str) -> Need | None:
    """What the algorithm wants of its call."""
    _load()
    return _needs[kind, name]


def choose(kind: str, wanted: str | None) -> str:
    """The name of the algorithm that runs for `kind`: `wanted`, or the default. TraceError for a name that is not
    known.
    """
    _load()
    if wanted is None:
        return _defaults[kind]
    if (kind, wanted) not in _algorithms:
        raise TraceError(f"no algorithm {wanted!r} for {kind}", mend=f"known: {', '.join(known(kind))}")
    return wanted


@lru_cache(maxsize=4096)
def schedule_of(call: Call) -> Schedule:
    """The schedule of `call`, made when it is first needed and shared between operations that are alike."""
    _load()
    return _algorithms[call.kind, call.algorithm](call)
