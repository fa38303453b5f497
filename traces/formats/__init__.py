"""Foreign formats, one file each: a NAME, `sniff(head)` and `read(data, file)`. Adding one is a file and a line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from traces.errors import TraceError
from traces.formats import kineto, pytorch_et
from traces.formats.recording import Recording

_HEAD_BYTES = 1 << 14


@dataclass(frozen=True, slots=True)
class Format:
    """A format this package can read."""

    name: str
    sniff: Callable[[bytes], bool]
    read: Callable[[bytes, str], Recording]


FORMATS = {
    module_name: Format(module_name, sniff, read)
    for module_name, sniff, read in (
        (kineto.NAME, kineto.sniff, kineto.read),
        (pytorch_et.NAME, pytorch_et.sniff, pytorch_et.read),
    )
}


def read(data: bytes, file: str, name: str | None = None) -> Recording:
    """Decode one file in the format called `name`, or in the one its content shows. Raises TraceError."""
    if name is not None:
        if name not in FORMATS:
            raise TraceError(f"unknown format {name!r}", mend=f"known: {', '.join(FORMATS)}")
        return FORMATS[name].read(data, file)
    head = data[:_HEAD_BYTES]
    for known in FORMATS.values():
        if known.sniff(head):
            return known.read(data, file)
    raise TraceError("not a recording in a known format", file=file, mend=f"known: {', '.join(FORMATS)}")
