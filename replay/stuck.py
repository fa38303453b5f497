"""Whether ranks that say nothing any more can go on at all, by what each has started and taken. Pure.

A rank goes on when its timer ends or a message comes or leaves. A message can come where its sender has started it and its
receiver takes anything from that connection; it can leave under the same condition. So if no rank has a timer, and on no
connection something was started that its other end still takes, no time that passes will change anything.
"""

from __future__ import annotations

from collections.abc import Mapping

from replay.control import Status

MOST_NAMED = 8


def is_deadlock(states: Mapping[int, Status]) -> bool:
    """Whether ranks that have not all finished can't ever; `states` is of all of them, and of one moment."""
    if any(state.computing for state in states.values()) or all(state.finished for state in states.values()):
        return False
    if any(state.heard is not None for state in states.values()):
        return False  # what a library has started and still takes is not known
    started = {(rank, c.peer, c.lane, c.p2p): c.started for rank, state in states.items() for c in state.connections}
    return not any(
        c.posted > c.received and started.get((c.peer, rank, c.lane, c.p2p), 0) > c.received
        for rank, state in states.items()
        for c in state.connections
    )


def waiting(states: Mapping[int, Status]) -> str:
    """What ranks that have not finished wait for, for people: the first few."""
    left = [state.text for _, state in sorted(states.items()) if not state.finished]
    more = f"; and {len(left) - MOST_NAMED} more ranks" if len(left) > MOST_NAMED else ""
    return "; ".join(left[:MOST_NAMED]) + more or "no rank answers"
