"""Recorded links: rate or delay over time from CSV, and the packet-delivery files of mahimahi.

Mahimahi (Netravali et al., USENIX ATC 2015): each line is a millisecond at which one packet of 1500 bytes may leave; the
file starts again when it ends.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import TypeVar

from emulator.errors import NetworkError
from emulator.links import ETHERNET_HEADER
from emulator.marked import Node
from emulator.units import Duration, Rate

MAX_BYTES = 8 << 20
SLOT = 1500
_NUMBER = re.compile(r"[0-9]{1,12}(\.[0-9]{1,12})?")
_MS = 10**6
Q = TypeVar("Q", Rate, Duration)


def read_csv(file: Node, kind: type[Q], step: int) -> list[tuple[Duration, Q]]:
    """Rows of when and what, below a heading `seconds,UNIT` that names the unit: `seconds,mbit`.

    Values are rounded to a multiple of `step` base units. Raises NetworkError with file and line.
    """
    path, lines = _lines(file)
    seconds, _, unit = (lines[0] if lines else "").partition(",")
    try:
        if seconds.strip() != "seconds":
            raise NetworkError("expected the heading 'seconds,UNIT', as in 'seconds,mbit'")
        scale = kind.parse(f"1 {unit.strip()}")
    except NetworkError as error:
        raise NetworkError(str(error), file=path, line=1, key=file.key) from None
    rows: list[tuple[Duration, Q]] = []
    for number, line in enumerate(lines[1:], 2):
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 2 or not all(map(_NUMBER.fullmatch, cells)):
            raise NetworkError(f"'{line[:40]}': expected a time in seconds and a value", file=path, line=number)
        try:
            at = Duration(round(Fraction(cells[0]) * 10**9))
            value = kind(round(Fraction(cells[1]) * scale / step) * step)
        except NetworkError as error:
            raise NetworkError(str(error), file=path, line=number) from None
        if rows and at <= rows[-1][0]:
            raise NetworkError(f"'{cells[0]}' is not after the time before", file=path, line=number)
        rows.append((at, value))
    if not rows:
        raise NetworkError("expected at least one row", file=path, key=file.key)
    return rows


def read_mahimahi(file: Node, overhead: int) -> tuple[list[tuple[Duration, Rate]], Duration]:
    """Rates that let as many packets of 1500 bytes through by each millisecond of the file as it names until then, and
    the period of the file. Raises NetworkError with file and line.

    Between two milliseconds the packets are spread evenly, where mahimahi lets them go at once at the second; of a
    direction with `overhead` a packet takes 1500 + 14 + `overhead` bytes on the wire. Rates are rounded to 1 byte/s.
    """
    path, lines = _lines(file)
    stamps: list[int] = []
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text.isascii() or not text.isdigit() or len(text) > 9 or (stamps and int(text) < stamps[-1]):
            raise NetworkError(f"'{text[:40]}': expected milliseconds, rising", file=path, line=number)
        stamps.append(int(text))
    if not stamps or stamps[-1] == 0:
        raise NetworkError("expected at least one line of more than 0 ms", file=path, key=file.key)
    return _spread_evenly(stamps, SLOT + ETHERNET_HEADER + overhead), Duration(stamps[-1] * _MS)


def _spread_evenly(stamps: Sequence[int], packet: int) -> list[tuple[Duration, Rate]]:
    packets = Counter(stamps)
    packets[stamps[-1]] += packets.pop(0, 0)  # 0 is when the last millisecond of the turn before ends
    rates: list[tuple[Duration, Rate]] = []
    before = 0
    for stamp, number in sorted(packets.items()):
        rate = Rate(round(Fraction(number * packet * 1000, stamp - before)) * 8)
        if not rates or rates[-1][1] != rate:
            rates.append((Duration(before * _MS), rate))
        before = stamp
    return rates


def _lines(file: Node) -> tuple[Path, list[str]]:
    """The lines of a file beside the network file that names it."""
    path = Path(file.file).parent / file.scalar()
    try:
        if path.stat().st_size > MAX_BYTES:
            raise file.error(f"{path} is larger than {MAX_BYTES >> 20} MiB")
        return path, path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        if isinstance(error, NetworkError):
            raise
        why = error.strerror if isinstance(error, OSError) else "not a text file in UTF-8"
        raise file.error(f"can't read {path}: {why}") from None
