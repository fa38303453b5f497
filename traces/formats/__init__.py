"""Foreign formats, one file each: NAME, `sniff(head)` and `read(data, file)`. Adding one is a file and a line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from traces.errors import TraceError
from traces.formats import kineto, pytorch_et
from traces.recording import Recording

_HEAD_BYTES = 1 << 14


@dataclass(frozen=True, slots=True)
class Format:
    """A format this package can read."""

    name: str
    sniff: Callable[[bytes], bool]
    read: Callable[[bytes, str], Recording]


FORMATS = {
    known.name: known
    for known in (
        Format(kineto.NAME, kineto.sniff, kineto.read),
        Format(pytorch_et.NAME, pytorch_et.sniff, pytorch_et.read),
    )
}


def choose(data: bytes, name: str | None = None) -> Format | None:
    """The format called `name`, or else the one that the content shows; None where it shows none. Raises TraceError."""
    if name is not None and name not in FORMATS:
        raise TraceError(f"unknown format {name!r}", mend=f"known: {', '.join(FORMATS)}")
    if name is not None:
        return FORMATS[name]
    head = data[:_HEAD_BYTES]
    return next((known for known in FORMATS.values() if known.sniff(head)), None)
