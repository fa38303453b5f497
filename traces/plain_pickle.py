"""Pickles of plain containers only. Nothing is ever imported, called or built by name.

A pickle is a program for a small stack machine (CPython's Lib/pickletools.py lists its opcodes). This one knows just those
that make None, booleans, numbers, strings, lists, tuples and dicts keyed by strings; any other opcode is refused. A
container that is used again is copied, within a limit, so nothing can hold itself and what is made is bounded by the file.
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterable
from typing import Any

MAX_BYTES = 256 << 20
_COPIES = 16  # values copied for each byte of the file, at most
_MAX_DEPTH = 16
_MARK = object()
_ATOMS = frozenset(
    ("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8")
)
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_FIXED_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def loads(data: bytes) -> Any:
    """The value that `data` holds. Raises ValueError saying what is wrong, with its byte."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"a pickle of {len(data)} bytes; {MAX_BYTES} are read at most")
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    left = _COPIES * len(data)
    for opcode, argument, place in pickletools.genops(data):
        if opcode.name == "STOP":
            if len(stack) != 1:
                raise ValueError(f"{len(stack)} values are left at the end")
            return stack[0]
        try:
            if opcode.name in ("BINGET", "LONG_BINGET") and argument is not None:
                shared = memo[int(argument)]
                left -= _size(shared, left)
                stack.append(_copy(shared))
                continue
            _step(opcode.name, argument, stack, memo)
        except (IndexError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{opcode.name} at byte {place} has nothing to work on") from error
    raise ValueError("the pickle does not stop")


def _step(name: str, argument: Any, stack: list[Any], memo: dict[int, Any]) -> None:
    if name in _ATOMS:
        stack.append(argument)
    elif name in _CONSTANTS:
        stack.append(_CONSTANTS[name])
    elif name == "EMPTY_DICT":
        stack.append({})
    elif name == "EMPTY_LIST":
        stack.append([])
    elif name == "MARK":
        stack.append(_MARK)
    elif name in _FIXED_TUPLES:
        stack.append(tuple(_pop(stack, _FIXED_TUPLES[name])))
    elif name == "TUPLE":
        stack.append(tuple(_pop_to_mark(stack)))
    elif name in ("APPEND", "APPENDS"):
        items = _pop(stack, 1) if name == "APPEND" else _pop_to_mark(stack)
        _top(stack, list).extend(items)
    elif name in ("SETITEM", "SETITEMS"):
        items = _pop(stack, 2) if name == "SETITEM" else _pop_to_mark(stack)
        if len(items) % 2 or not all(isinstance(key, str) for key in items[::2]):
            raise ValueError("a dict whose keys are not strings")
        _top(stack, dict).update(zip(items[::2], items[1::2], strict=True))
    elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
        memo[len(memo) if name == "MEMOIZE" else argument] = stack[-1]
    elif name not in ("PROTO", "FRAME"):
        raise ValueError(f"it holds more than plain containers ({name})")


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def _size(value: Any, limit: int, depth: int = 0) -> int:
    """How many values a copy would make."""
    total = 1
    for part in _inside(value):
        total += _size(part, limit - total, depth + 1)
        if total > limit or depth > _MAX_DEPTH:
            raise ValueError("containers are used again too often, or nested too deep")
    return total


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_copy, value))
    return value


def _top(stack: list[Any], kind: type[Any]) -> Any:
    if not isinstance(stack[-1], kind):
        raise TypeError
    return stack[-1]


def _pop(stack: list[Any], count: int) -> list[Any]:
    if len(stack) < count or any(item is _MARK for item in stack[len(stack) - count :]):
        raise IndexError
    taken = stack[len(stack) - count :]
    del stack[len(stack) - count :]
    return taken


def _pop_to_mark(stack: list[Any]) -> list[Any]:
    taken: list[Any] = []
    while (item := stack.pop()) is not _MARK:
        taken.append(item)
    taken.reverse()
    return taken
