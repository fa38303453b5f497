"""Acts when the job imports the library that communicates; a Python that never does costs nothing."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Callable


def _torch(module: ModuleType) -> None:
    from tracebed_record import torch_hook

    torch_hook.install(module)


_WATCHED: dict[str, Callable[[ModuleType], None]] = {"torch.distributed.distributed_c10d": _torch}


def watch() -> None:
    """Look out for the libraries from now on, and take those that are there already."""
    sys.meta_path.insert(0, _Finder())
    for name, act in _WATCHED.items():
        if name in sys.modules:
            act(sys.modules[name])


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _WATCHED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, _WATCHED[fullname])
        return spec


class _Loader(importlib.abc.Loader):
    """Loads as the module's own loader does, then acts."""

    def __init__(self, loader: importlib.abc.Loader, act: Callable[[ModuleType], None]) -> None:
        self._loader, self._act = loader, act

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        try:
            self._act(module)
        except Exception as error:
            print(f"tracebed: {module.__name__} is not recorded: {error!r}", file=sys.stderr)

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)
