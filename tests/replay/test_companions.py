"""Processes beside the ranks: what one that fails or dies is called, and that none is left."""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from emulator.errors import BedError, MachineError
from emulator.ledger import process_name
from replay.background import totals
from replay.companions import Companion, Companions, Task
from replay.control import Carried, Done

LIMIT_S = 10


def until_bye(channel: socket.socket, start_ns: int) -> Done:
    select.select([channel], [], [])
    return Done(missed=start_ns)


@contextmanager
def willing() -> Iterator[Task]:
    yield until_bye


def unable() -> AbstractContextManager[Task]:
    raise MachineError("no such device")


@contextmanager
def mistaken() -> Iterator[Task]:
    yield lambda channel, start_ns: Done(missed=[][0])


@contextmanager
def beside(**prepare: Callable[[], AbstractContextManager[Task]]) -> Iterator[tuple[Companions, list[int]]]:
    pids: list[int] = []
    run = Companions([Companion(name, how) for name, how in prepare.items()], pids.append, LIMIT_S)
    try:
        yield run, pids
    finally:
        run.close()
        assert all(process_name(pid) is None for pid in pids)


def test_they_work_from_go_to_bye() -> None:
    with beside(one=willing, two=willing) as (run, pids):
        run.prepare()
        run.start(7)
        assert len(pids) == 2
        assert run.finish() == {"one": Done(missed=7), "two": Done(missed=7)}


def test_one_that_cannot_start_says_why() -> None:
    with beside(one=willing, two=unable) as (run, _), pytest.raises(MachineError, match="two: no such device"):
        run.prepare()


def test_one_that_is_killed_is_named_whoever_waits() -> None:
    with beside(one=willing, two=willing) as (run, pids):
        run.prepare()
        run.start(0)
        os.kill(pids[1], signal.SIGKILL)
        select.select([run.fd], [], [], LIMIT_S)
        with pytest.raises(BedError, match=r"the process of two was killed by signal 9 \(SIGKILL\)"):
            run.act()


def test_a_mistake_in_one_is_told_with_its_kind() -> None:
    with beside(one=mistaken) as (run, _):
        run.prepare()
        run.start(0)
        select.select([run.fd], [], [], LIMIT_S)
        with pytest.raises(BedError, match="one: IndexError: list index out of range"):
            run.act()


def test_they_die_with_their_parent() -> None:
    ours, theirs = os.pipe()
    parent = os.fork()
    if not parent:
        with beside(one=willing) as (run, pids):
            run.prepare()
            os.write(theirs, str(pids[0]).encode())
            signal.pause()
    companion = int(os.read(ours, 16))
    handle = os.pidfd_open(companion)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    assert select.select([handle], [], [], LIMIT_S)[0]
    for fd in (ours, theirs, handle):
        os.close(fd)


def test_both_ends_of_a_pair_are_one_row() -> None:
    sender = Done((Carried(1, "constant", "udp", "a", "b", 2, 100, 0), Carried(0, "incast", "tcp", "a", "b", 1, 5, 0)))
    receiver = Done((Carried(1, "constant", "udp", "a", "b", 0, 0, 90),))
    assert totals([Done(), receiver, sender]) == (
        Carried(0, "incast", "tcp", "a", "b", 1, 5, 0),
        Carried(1, "constant", "udp", "a", "b", 2, 100, 90),
    )
