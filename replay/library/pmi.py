"""What an MPI library asks of whoever started its ranks: PMI-1, the wire protocol of MPICH's process managers.

Lines of `cmd=NAME KEY=VALUE ...`, answered by such a line ("PMI: A Scalable Parallel Process-Management Interface for
Extreme-Scale Systems", Balaji et al., EuroMPI 2010, and what MPICH 5.0 sends). Ranks put keys, meet at a barrier, and get each
other's keys.
"""

from __future__ import annotations

import os
import selectors
import socket
from collections.abc import Sequence
from typing import NamedTuple

from replay.process import fork

_LIMITS = "kvsname_max=256 keylen_max=64 vallen_max=1024"
_STORE = "tracebed"


class Reply(NamedTuple):
    """A line for the rank of this place."""

    place: int
    line: str


class Meeting:
    """The manager of `size` ranks, sans I/O. Every rank is told to be on a machine of its own: else ranks on one host's file
    system would talk through memory, round the network."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._keys = {"PMI_process_mapping": f"(vector,(0,{size},1))"}
        self._waiting: list[int] = []

    def hear(self, place: int, line: str) -> list[Reply]:
        """What follows on a line of the rank of this place."""
        said = dict(word.split("=", 1) for word in line.split() if "=" in word)
        command, key = said["cmd"], said.get("key", "")
        if command == "barrier_in":
            self._waiting.append(place)
            if len(self._waiting) < self._size:
                return []
            there, self._waiting = self._waiting, []
            return [Reply(each, "cmd=barrier_out rc=0") for each in there]
        if command == "put":
            self._keys[key] = said["value"]
        value = self._keys.get(key)
        answers = {
            "init": "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
            "get_maxes": f"cmd=maxes {_LIMITS} rc=0",
            "get_appnum": "cmd=appnum appnum=0 rc=0",
            "get_universe_size": f"cmd=universe_size size={self._size} rc=0",
            "get_my_kvsname": f"cmd=my_kvsname kvsname={_STORE} rc=0",
            "put": "cmd=put_result rc=0",
            "get": "cmd=get_result rc=-1" if value is None else f"cmd=get_result rc=0 value={value}",
            "finalize": "cmd=finalize_ack rc=0",
        }
        return [Reply(place, answers[command])]


class Lines:
    """A line to a manager for each rank, made before the ranks are forked."""

    def __init__(self, size: int) -> None:
        self._pairs = [socket.socketpair() for _ in range(size)]

    def take(self, place: int) -> int:
        """In the process of the rank of this place: its end's descriptor (PMI_FD). The first rank's starts the manager, a
        process, for a library that waits for an answer may let no other thread of Python's run."""
        managers, ranks = zip(*self._pairs, strict=True)
        mine: int = ranks[place].detach()
        for rank in ranks:
            rank.close()
        if place == 0:
            fork(lambda _: _serve(managers, mine))
        for manager in managers:
            manager.close()
        return mine


def _serve(ends: Sequence[socket.socket], inherited: int) -> int:
    """Until all have hung up."""
    os.close(inherited)
    meeting, heard = Meeting(len(ends)), [b""] * len(ends)
    with selectors.DefaultSelector() as selector:
        for place, end in enumerate(ends):
            selector.register(end, selectors.EVENT_READ, place)
        while selector.get_map():
            for key, _ in selector.select():
                place = key.data
                data = ends[place].recv(1 << 16)
                if not data:
                    selector.unregister(ends[place])
                *lines, heard[place] = (heard[place] + data).split(b"\n")
                for line in lines:
                    for reply in meeting.hear(place, line.decode()):
                        ends[reply.place].sendall(reply.line.encode() + b"\n")
    return 0
