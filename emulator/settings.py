"""What events and background traffic both say of themselves in a network file: what must be there, and when it happens."""

from __future__ import annotations

from collections.abc import Mapping

from emulator.marked import Node
from emulator.units import Duration

Settings = Mapping[str, Node]


def required(node: Node, settings: Settings, name: str) -> Node:
    """The setting of this name. Raises NetworkError where there is none."""
    if name not in settings:
        raise node.error(f"expected '{name}'")
    return settings[name]


def start_of(settings: Settings) -> Duration:
    """`at`, counted from Go; 0 where it is not there."""
    return settings["at"].parse(Duration.parse) if "at" in settings else Duration(0)


def length_of(node: Node) -> Duration:
    """A time of more than 0. Raises NetworkError."""
    length = node.parse(Duration.parse)
    if length == 0:
        raise node.error("expected more than 0")
    return length
