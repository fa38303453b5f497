"""The messages of a phase that shows no collective: what one rank sent another until it stopped or the other answered."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traces.wire.flows import Pieces
from traces.wire.phases import SILENCE_NS, Phase


@dataclass(frozen=True, slots=True)
class Message:
    """`nbytes` from `source` to `target`: first seen at `begin_ns`, all there at `end_ns`; the last piece was sent at `sent_ns`."""

    source: int
    target: int
    nbytes: int
    begin_ns: int
    sent_ns: int
    end_ns: int


def messages(pieces: Pieces, phase: Phase, gap_ns: int | None) -> list[Message]:
    """By when they began. A message ends before a silence of its pair of more than `gap_ns`, or where the other way began in one
    of more than SILENCE_NS."""
    rows = np.arange(phase.first, phase.last)
    sources, targets = pieces.source[rows], pieces.target[rows]
    order = np.lexsort((rows, targets, sources))
    rows = rows[order]
    bounds = np.flatnonzero((np.diff(sources[order]) != 0) | (np.diff(targets[order]) != 0)) + 1
    of_pair = {(int(pieces.source[own[0]]), int(pieces.target[own[0]])): own for own in np.split(rows, bounds)}
    found = []
    for (source, target), own in of_pair.items():
        first, last = pieces.first_ns[own], np.maximum.accumulate(pieces.last_ns[own])
        silent = first[1:] - last[:-1]
        cut = silent > gap_ns if gap_ns is not None else np.zeros(len(silent), bool)
        if (back := of_pair.get((target, source))) is not None:
            began = pieces.first_ns[back]
            next_began = np.append(began, np.iinfo(np.int64).max)[np.searchsorted(began, last[:-1])]
            cut |= (silent > SILENCE_NS) & (next_began < first[1:])
        for part in np.split(np.arange(len(own)), np.flatnonzero(cut) + 1):
            nbytes = int(pieces.nbytes[own[part]].sum())
            times = int(first[part[0]]), int(first[part[-1]]), int(last[part[-1]])
            found.append(Message(source, target, nbytes, *times))
    return sorted(found, key=lambda message: message.begin_ns)
