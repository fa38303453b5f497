"""Taking away what dead runs own: exactly what their ledgers name, and nothing else."""

from __future__ import annotations

import os
import select
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

from emulator import steering, wire
from emulator.ledger import Claim, Kind, Written, leftovers, lives
from emulator.namespace import remove_named

_END_LIMIT_S = 10


def clean() -> tuple[Claim, ...]:
    """Remove what dead runs own, and say what that was. What is gone already is not an error."""
    return tuple(claim for ledger in leftovers() for claim in remove(ledger))


def remove(ledger: Written) -> tuple[Claim, ...]:
    """Remove what a ledger names and then the ledger; what of it was still there."""
    removed = tuple(claim for claim in sorted(ledger.claims, key=_processes_first) if _remove(claim))
    ledger.path.unlink()
    return removed


def _processes_first(claim: Claim) -> int:
    order: Sequence[Kind] = ("process", "ingress", "device", "netns", "folder")
    return order.index(claim.kind)


def _end(name: str) -> bool:
    """Kill a process and wait until it is gone, since it may still write to the folder that is removed next."""
    try:
        handle = os.pidfd_open(int(name.split()[0]))
    except ProcessLookupError:
        return False
    try:
        if not lives(name):
            return False
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        select.select([handle], [], [], _END_LIMIT_S)
        return True
    finally:
        os.close(handle)


def _remove(claim: Claim) -> bool:
    if claim.kind == "process":
        return _end(claim.name)
    if claim.kind == "folder":
        if not Path(claim.name).exists():
            return False
        shutil.rmtree(claim.name)
        return True
    if claim.kind == "ingress":
        index, name = claim.name.split()
        return steering.remove_from(int(index), name)
    if claim.kind == "device":
        return wire.remove_device(claim.name)
    return remove_named(claim.name)
