"""The operators of torch.distributed, and saying quickly what one is called with: most calls repeat an earlier one.

torch/csrc/distributed/c10d/Ops.cpp has them all; every backend is called through them, from Python and from C++.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Callable

_UNSAID = ("process_group", "reduce_op", "sparse_indices", "timeout")  # objects, and what moves nothing


def operators(torch: ModuleType) -> list[str]:
    """What this torch can do with a process group, also what no reader knows yet: that is for them to say."""
    names = [
        schema.name[len("c10d::") :]
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("c10d::") and any(a.name == "process_group" for a in schema.arguments)
    ]
    return list(dict.fromkeys(names))


class Describer:
    """Says as JSON what an operator is called with: numbers as they are, tensors by their elements and type."""

    def __init__(self, arguments: Sequence[Any]) -> None:
        self.group_at = next(i for i, argument in enumerate(arguments) if argument.name == "process_group")
        self.async_at = next((i for i, argument in enumerate(arguments) if argument.name == "async_op"), -1)
        self._readers = [_reader(argument) for argument in arguments]
        self._said: dict[Any, str] = {}

    def __call__(self, args: Sequence[Any]) -> str:
        key = tuple([read(value) for read, value in zip(self._readers, args)])
        said = self._said.get(key)
        if said is None:
            said = self._said[key] = json.dumps([_spelled(part) for part in key], separators=(",", ":"))
        return said


def _reader(argument: Any) -> Callable[[Any], Any]:
    if argument.name in _UNSAID:
        return _nothing
    kind = str(argument.type)
    return {"Tensor": _tensor, "List[Tensor]": _tensors, "List[List[Tensor]]": _lists, "List[int]": tuple}.get(
        kind, _same
    )


def _nothing(_: Any) -> None:
    return None


def _same(value: Any) -> Any:
    return value


def _tensor(tensor: Any) -> Any:
    return (tensor.dtype, tensor.numel())


def _tensors(tensors: Any) -> Any:
    if not tensors:
        return ()
    return (tensors[0].dtype, *[tensor.numel() for tensor in tensors])


def _lists(lists: Any) -> Any:
    return _tensors([tensor for tensors in lists for tensor in tensors])


def _spelled(part: Any) -> Any:
    """A part of a key as the file has it."""
    if isinstance(part, tuple) and part and not isinstance(part[0], int):
        return {"n": part[1:], "t": str(part[0])[6:], "b": part[0].itemsize}  # "torch.float32"
    return part


def first_tensor(args: Sequence[Any]) -> Any:
    """The first tensor of a call: the first output, where it has outputs; None where it has none."""
    first = args[0]
    while isinstance(first, (list, tuple)):
        if not first:
            return None
        first = first[0]
    return first
