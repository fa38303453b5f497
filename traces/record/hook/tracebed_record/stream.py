"""One rank's recording: a line of JSON an event, in the kernel's hands at once, so a rank that is killed keeps what it wrote.

The first line says whose it is. Events are lists, the first item says of what:

    ["g", name, description, [global ranks], backend]     a process group, before its first operation
    ["o", number, begun, returned, operator, group, [arguments], reduce operation, backward pass or -1]
    ["e", number, moment]                                 an operation ended; written with the event after it
    ["w", [numbers], from, to, sender or -1]              the rank stopped for operations
    ["b", backward pass, from, to]                        the backward pass stopped for what it had started
    ["c", first, beyond last, moment]                     a call in C++ that started these and waited for them ends
    ["s", "step" | "optimizer" | "profiler", moment, operations so far, ns spent recording them]
    ["!", text]                                           something could not be recorded

Times are of time.monotonic_ns(); the first line has what to add for the time since the epoch. A tensor argument is
{"n": [elements], "t": type, "b": bytes an element}.
"""

from __future__ import annotations

import collections
import json
import os
import socket
import time
from typing import Any

VERSION = 1
_now = time.monotonic_ns


class Stream:
    """The file of one rank; any thread may write."""

    def __init__(self, folder: str, about: dict[str, Any]) -> None:
        now, epoch = time.monotonic_ns(), time.time_ns()
        head = {
            "tracebed-recording": VERSION, "pid": os.getpid(), "host": socket.gethostname(), "epoch_ns": epoch - now,
            "attempt": int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") or 0), **about,
        }  # fmt: skip
        self._ended: collections.deque[tuple[int, int]] = collections.deque()
        self._encode = json.JSONEncoder(separators=(",", ":")).encode
        name = f"rank-{head['rank']}.{socket.gethostname()}.{now}.jsonl"
        self._file = os.open(os.path.join(folder, name), os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o644)
        self.write(head)

    def write(self, event: Any) -> None:
        """Append an event."""
        self.line(self._encode(event))

    def line(self, text: str) -> None:
        """Append an event that is JSON already."""
        ended = self._ended
        while ended:
            number, moment = ended.popleft()
            text = f'["e",{number},{moment}]\n{text}'
        os.write(self._file, text.encode() + b"\n")

    def ended(self, number: int, _: Any) -> None:
        """Operation `number` ends now. In a hurry: the library's own thread calls it, while the job may want to go on."""
        self._ended.append((number, _now()))
