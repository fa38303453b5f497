"""The errors this package raises: for what a user wrote, for what a machine can't do, and for a bed that failed."""

from __future__ import annotations


class NetworkError(ValueError):
    """A network file or value that can't be used: the file, the line and key, what was expected, in one line."""

    def __init__(self, message: str, *, file: object = None, line: int | None = None, key: str | None = None) -> None:
        where = ", ".join(str(part) for part in (file, f"line {line}" if line else None, key) if part)
        super().__init__((f"{where}: " if where else "") + message)


class MachineError(RuntimeError):
    """This machine can't do what was asked; `mend` is the line that changes that, `why` is the message without it."""

    def __init__(self, message: str, *, mend: str = "") -> None:
        super().__init__(message + (f"; mend: {mend}" if mend else ""))
        self.why, self.mend = message, mend


class BedError(RuntimeError):
    """A bed, a kernel or a worker failed while it was up."""
