"""The one error this package raises for what a user can cause."""

from __future__ import annotations


class TraceError(ValueError):
    """A trace or a recording that can't be used: the file, the place in it, what was expected, and the mend, in one line."""

    def __init__(self, message: str, *, file: object = None, place: object = None, mend: str = "") -> None:
        where = ", ".join(str(part) for part in (file, place) if part is not None)
        super().__init__((f"{where}: " if where else "") + message + (f" ({mend})" if mend else ""))
