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
    """By when they began. A message ends where its sender is silent for more than `gap_ns`, or where the receiver began to answer
    while this way was silent for more than SILENCE_NS."""
    rows = phase.rows
    burst = np.zeros(len(rows), np.int64)
    for source in np.unique(pieces.source[rows]):
        own = np.flatnonzero(pieces.source[rows] == source)
        first, last = pieces.first_ns[rows[own]], np.maximum.accumulate(pieces.last_ns[rows[own]])
        if gap_ns is not None:
            burst[own[1:]] = np.cumsum(first[1:] - last[:-1] > gap_ns)
    order = np.lexsort((rows, pieces.target[rows], pieces.source[rows]))
    rows, burst = rows[order], burst[order]
    sources, targets = pieces.source[rows], pieces.target[rows]
    bounds = np.flatnonzero((np.diff(sources) != 0) | (np.diff(targets) != 0)) + 1
    parts = np.split(np.arange(len(rows)), bounds)
    of_pair = {(int(sources[own[0]]), int(targets[own[0]])): own for own in parts}
    found = []
    for (source, target), own in of_pair.items():
        first, last = pieces.first_ns[rows[own]], np.maximum.accumulate(pieces.last_ns[rows[own]])
        cut = np.diff(burst[own]) > 0
        if (back := of_pair.get((target, source))) is not None:
            began = np.append(pieces.first_ns[rows[back]], np.iinfo(np.int64).max)
            answer = began[np.searchsorted(began, last[:-1])]
            cut |= (first[1:] - last[:-1] > SILENCE_NS) & (answer < first[1:])
        for part in np.split(np.arange(len(own)), np.flatnonzero(cut) + 1):
            nbytes = int(pieces.nbytes[rows[own[part]]].sum())
            times = int(first[part[0]]), int(first[part[-1]]), int(last[part[-1]])
            found.append(Message(source, target, nbytes, *times))
    return sorted(found, key=lambda message: message.begin_ns)
