"""Finds the what-ifs: pure functions Trace -> Trace that change the job before it is replayed; a file in this folder registers
its own, and no other file has to know.

A what-if is written `name=value`. It gives the changed trace and one sentence that says what was assumed, for whoever reads
the result.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from functools import cache

import replay.whatif
from traces.errors import TraceError
from traces.program import Trace

WhatIf = Callable[[Trace, str], tuple[Trace, str]]

_what_ifs: dict[str, WhatIf] = {}


def what_if(name: str) -> Callable[[WhatIf], WhatIf]:
    """Registers the decorated function as `name=...`."""

    def register(function: WhatIf) -> WhatIf:
        assert name not in _what_ifs, f"two what-ifs are called {name}"
        _what_ifs[name] = function
        return function

    return register


@cache
def _load() -> None:
    for module in pkgutil.iter_modules(replay.whatif.__path__, "replay.whatif."):
        importlib.import_module(module.name)


def apply(trace: Trace, texts: Iterable[str]) -> tuple[Trace, list[str]]:
    """Applies each `name=value` in turn; gives the trace and what was assumed. TraceError for one that can't be read."""
    _load()
    assumed = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name not in _what_ifs:
            raise TraceError(f"what-if {text!r}: expected NAME=VALUE", mend=f"names: {', '.join(_what_ifs)}")
        trace, statement = _what_ifs[name](trace, value)
        assumed.append(statement)
    return trace, assumed
