"""Taking away what dead runs own: exactly what their ledgers name, and nothing else."""

from __future__ import annotations

import os
import select
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from emulator import steering, wire
from emulator.containers import remove_container, remove_image
from emulator.errors import BedError, MachineError
from emulator.ledger import Claim, Kind, Written, disown, leftovers, lives, remove_unfinished
from emulator.namespace import remove_named

_END_LIMIT_S = 10
_LATE_S = 2.0


def clean(on_left: Callable[[str], None] = lambda why: None) -> tuple[Claim, ...]:
    """Remove what dead runs own, and say what that was. What is gone already is not an error.

    `on_left` is told of each thing that can't be removed now, as a container whose daemon doesn't answer, and why; its
    ledger stays.
    """
    remove_unfinished()
    return tuple(claim for ledger in leftovers() for claim in remove(ledger, on_left))


def remove(ledger: Written, on_left: Callable[[str], None] = lambda why: None) -> tuple[Claim, ...]:
    """Remove what a ledger names and then the ledger; what of it was still there. `on_left`: as for `clean`.

    What was kept belongs to this process from now on, so that `clean` goes on where it is killed.
    """
    if ledger.kept is not None:
        disown(ledger)
    removed: list[Claim] = []
    left = False

    def attempt(claim: Claim) -> None:
        nonlocal left
        try:
            if _remove(claim):
                removed.append(claim)
        except (MachineError, BedError) as error:
            on_left(f"{claim.kind} {claim.name} is left: {error}")
            left = True

    for claim in sorted(ledger.claims, key=_processes_first):
        attempt(claim)
    until = time.monotonic() + _LATE_S
    while not left and (late := _late(ledger, removed)) and time.monotonic() < until:
        time.sleep(_LATE_S / 20)
        for claim in late:
            attempt(claim)
    if not left:
        ledger.path.unlink()
    return tuple(removed)


def _late(ledger: Written, removed: list[Claim]) -> list[Claim]:
    """What a daemon may still be making for a run that was killed having asked for it: it can't be seen before it is made."""
    made = (claim for claim in ledger.claims if claim.kind in ("container", "image") and claim not in removed)
    return sorted(made, key=_processes_first)


def _processes_first(claim: Claim) -> int:
    order: Sequence[Kind] = ("process", "container", "image", "ingress", "device", "netns", "folder")
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
    if claim.kind == "container":
        return remove_container(*claim.name.split(" "))
    if claim.kind == "image":
        return remove_image(*claim.name.split(" "))
    if claim.kind == "ingress":
        index, name, length, owner = claim.name.split(" ")
        return steering.remove_from(int(index), name, int(length), int(owner))
    if claim.kind == "device":
        return wire.remove_device(claim.name)
    return remove_named(claim.name)
