"""Finds the what-ifs: pure functions that change the job before it is replayed; a file in this folder registers its own, and
no other file has to know.

A what-if is written `name=value[,key=value...]`. It gives the changed scenario and one sentence that says what was assumed,
for whoever reads the result.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache

import replay.whatif
from replay.sending import Sending
from replay.whatif.options import Options
from traces.errors import TraceError
from traces.program import Trace


@dataclass(frozen=True, slots=True)
class Scenario:
    """The job as it is to be replayed, and what was assumed in making it. `sending`: which message goes first, where its
    collectives do not run one after the other."""

    trace: Trace
    assumed: tuple[str, ...] = ()
    sending: Sending | None = None

    def on(self, trace: Trace) -> Scenario:
        """The same with another trace."""
        return replace(self, trace=trace)


WhatIf = Callable[[Scenario, Options], tuple[Scenario, str]]


@dataclass(frozen=True, slots=True)
class Known:
    """One what-if as `--what-if list` shows it. `form` is how it is written: `compute=RATIO|TIME,rank=RANK`, where all behind
    the first comma may be left out."""

    form: str
    does: str
    assumes: str
    source: str
    function: WhatIf

    @property
    def name(self) -> str:
        return self.form.partition("=")[0]


_what_ifs: dict[str, Known] = {}


def what_if(form: str, *, does: str, assumes: str, source: str = "") -> Callable[[WhatIf], WhatIf]:
    """Registers the decorated function as what is written like `form`."""

    def register(function: WhatIf) -> WhatIf:
        known = Known(form, does, assumes, source, function)
        assert known.name not in _what_ifs, f"two what-ifs are called {known.name}"
        _what_ifs[known.name] = known
        return function

    return register


@cache
def _load() -> None:
    for module in pkgutil.iter_modules(replay.whatif.__path__, "replay.whatif."):
        importlib.import_module(module.name)


def known() -> list[Known]:
    """Every what-if, by name."""
    _load()
    return [_what_ifs[name] for name in sorted(_what_ifs)]


def apply(trace: Trace, texts: Iterable[str]) -> Scenario:
    """Applies each `name=value` in turn. TraceError for one that can't be read, or can't be."""
    _load()
    scenario = Scenario(trace)
    for text in texts:
        name, equals, _ = text.partition("=")
        if not equals or name not in _what_ifs:
            mend = f"names: {', '.join(sorted(_what_ifs))}; `tracebed replay --what-if list` says more"
            raise TraceError(f"what-if {text!r}: expected NAME=VALUE", mend=mend)
        if scenario.trace.servers:
            raise TraceError(
                f"what-if {text!r}: the job has servers by now", mend="let what adds servers come last, and once"
            )
        one = _what_ifs[name]
        scenario, statement = one.function(scenario, Options.read(text, one.form))
        scenario = replace(scenario, assumed=(*scenario.assumed, statement))
    return scenario
