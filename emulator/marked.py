"""YAML as written, each piece with its place, so that an error can name file, line and key."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import yaml

from emulator.errors import NetworkError

T = TypeVar("T")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class Node:
    """A scalar as written, a list or a mapping. `line` counts from 1, 0 where there is none; `key` is the dotted
    path."""

    value: str | tuple[Node, ...] | Mapping[str, Node]
    file: str
    line: int = 0
    key: str = ""

    def error(self, message: str) -> NetworkError:
        return NetworkError(message, file=self.file, line=self.line, key=self.key)

    def scalar(self) -> str:
        if not isinstance(self.value, str):
            raise self.error("expected one value, not a list or a mapping")
        return self.value

    def parse(self, read: Callable[[str], T]) -> T:
        """`read` of the scalar; its NetworkError gets this place."""
        text = self.scalar()
        try:
            return read(text)
        except NetworkError as error:
            raise self.error(str(error)) from None

    def integer(self, least: int, most: int) -> int:
        text = self.scalar()
        if not text.isascii() or not text.isdigit() or len(text) > 20 or not least <= int(text) <= most:
            raise self.error(f"'{text}' is not a whole number from {least} to {most}")
        return int(text)

    def boolean(self) -> bool:
        return self.choice(("true", "false")) == "true"

    def name(self, text: str | None = None) -> str:
        """`text`, or the scalar, if it can be the name of a host, a switch or a link."""
        text = self.scalar() if text is None else text
        if not _NAME.fullmatch(text):
            raise self.error(f"'{text}' is not a name: expected letters, digits, '-' and '_', a letter first")
        return text

    def choice(self, options: Sequence[T]) -> T:
        """The option that the scalar names."""
        text = self.scalar()
        for option in options:
            if option == text:
                return option
        raise self.error(f"'{text}' is none of {', '.join(str(option) for option in options)}")

    def items(self) -> tuple[Node, ...]:
        if not isinstance(self.value, tuple):
            raise self.error("expected a list")
        return self.value

    def mapping(self, allowed: Collection[str] | None = None) -> Mapping[str, Node]:
        """The mapping; a key that is not in `allowed` is an error that names the nearest one that is."""
        if not isinstance(self.value, Mapping):
            raise self.error("expected a mapping of keys to values")
        for name, child in self.value.items():
            if allowed is not None and name not in allowed:
                near = difflib.get_close_matches(name, allowed, 1)
                hint = f"did you mean '{near[0]}'?" if near else f"expected one of {', '.join(sorted(allowed))}"
                raise child.error(f"unknown key '{name}': {hint}")
        return self.value

    def replaced(self, path: str, text: str, origin: str) -> Node:
        """This tree with the scalar at the dotted `path` set to `text`, its place being `origin`; mappings are made."""
        name, _, rest = path.partition(".")
        children = dict(self.mapping())
        key = f"{self.key}.{name}".lstrip(".")
        if rest:
            children[name] = children.get(name, Node({}, origin, key=key)).replaced(rest, text, origin)
        else:
            children[name] = Node(text, origin, key=key)
        return Node(children, self.file, self.line, self.key)


def read_yaml(text: str, file: str) -> Node:
    """The one document in `text`. Raises NetworkError for bad YAML, a key given twice, and anchors (`&`, `*`)."""
    try:
        document = yaml.compose(text, Loader=yaml.SafeLoader)
        return _marked(document, file, "", set()) if document else Node({}, file)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise NetworkError(f"not valid YAML: {error.problem}", file=file, line=line) from None
    except RecursionError:
        raise NetworkError("nested too deeply", file=file) from None
    except yaml.YAMLError as error:
        raise NetworkError(f"not valid YAML: {' '.join(str(error).split())}", file=file) from None


def _marked(node: yaml.Node, file: str, key: str, seen: set[int]) -> Node:
    line = node.start_mark.line + 1
    if id(node) in seen:
        raise NetworkError(
            "anchors are not supported: say under 'link' what all links share", file=file, line=line, key=key
        )
    seen.add(id(node))
    if isinstance(node, yaml.ScalarNode):
        return Node(str(node.value), file, line, key)
    if isinstance(node, yaml.SequenceNode):
        return Node(
            tuple(_marked(child, file, f"{key}[{index}]", seen) for index, child in enumerate(node.value)),
            file,
            line,
            key,
        )
    children: dict[str, Node] = {}
    for name, child in _pairs(node, file, key):
        path = f"{key}.{name.value}".lstrip(".")
        place = name.start_mark.line + 1
        if name.value in children:
            raise NetworkError(f"key '{name.value}' is given twice", file=file, line=place, key=path)
        found = _marked(child, file, path, seen)
        children[name.value] = Node(found.value, file, place, path)
    return Node(children, file, line, key)


def _pairs(node: yaml.Node, file: str, key: str) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
    for name, child in node.value:
        if not isinstance(name, yaml.ScalarNode):
            raise NetworkError("a key must be a plain word", file=file, line=name.start_mark.line + 1, key=key)
        yield name, child


def from_plain(value: object, file: str, key: str = "") -> Node:
    """The tree of plain JSON data: mappings, lists, strings and integers."""
    if isinstance(value, Mapping):
        return Node(
            {str(name): from_plain(child, file, f"{key}.{name}".lstrip(".")) for name, child in value.items()},
            file,
            key=key,
        )
    if isinstance(value, list | tuple):
        return Node(
            tuple(from_plain(child, file, f"{key}[{index}]") for index, child in enumerate(value)), file, key=key
        )
    return Node(str(value), file, key=key)
