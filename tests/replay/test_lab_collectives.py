"""Every algorithm in the lab kernel: what it takes against its alpha-beta formula, that its results are right, and the orders that
the literature states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil

import pytest

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab")]

N = 8
WHOLE = 1 << 30
"""A segment that no message fills: nothing is pipelined."""
DELAY_NS, NS_PER_BYTE = 2 * 2_000, 0.8  # both links of ethernet-10g
MSS, HEADERS, FRAMING, MESSAGE = 1448, 52, 14 + 24, 16  # Ethernet's frame, preamble and gap; the transport's own header


def w(nbytes: float, messages: int = 1) -> float:
    """ns that so many bytes, with all headers, take on a wire."""
    whole = nbytes + MESSAGE * messages
    return (whole + max(messages, ceil(whole / MSS)) * (HEADERS + FRAMING)) * NS_PER_BYTE


def a(nbytes: float) -> float:
    """ns from a message's last bit on the first link to its last bit on the second: both delays, and a packet once more."""
    return DELAY_NS + min(w(nbytes), (MSS + HEADERS + FRAMING) * NS_PER_BYTE)


def t(nbytes: float) -> float:
    """alpha + n beta."""
    return w(nbytes) + a(nbytes)


def several(count: int, nbytes: float) -> float:
    """Messages of a port to or from different ranks, at once."""
    return count * w(nbytes) + a(nbytes)


FORMULAS: Mapping[tuple[str, str], Callable[[int], float]] = {
    ("all_reduce", "ring"): lambda s: 2 * (N - 1) * t(s / N),
    ("all_reduce", "two-rings"): lambda s: 2 * (N - 1) * max(t(s / N / 2), 2 * w(s / N / 2)),
    ("all_reduce", "halving-doubling"): lambda s: 2 * (t(s / 2) + t(s / 4) + t(s / 8)),
    ("all_reduce", "bcube"): lambda s: 2 * (t(s / 2) + t(s / 4) + t(s / 8)),
    ("all_reduce", "recursive-doubling"): lambda s: 3 * t(s),
    ("all_reduce", "torus"): lambda s: 2 * 3 * t(s / 4) + 2 * 1 * t(s / 8),
    ("all_reduce", "hierarchical"): lambda s: 2 * (N - 1) * t(s / N),
    ("all_reduce", "tree"): lambda s: 2 * (several(2, s) + several(2, s) + t(s)),
    ("all_reduce", "double-tree"): lambda s: 2 * (several(2, s / 2) + several(2, s / 2) + t(s / 2)),
    ("all_reduce", "blink"): lambda s: 2 * several(N - 1, s / N),
    ("reduce_scatter", "ring"): lambda s: (N - 1) * t(s / N),
    ("reduce_scatter", "hierarchical"): lambda s: (N - 1) * t(s / N),
    ("reduce_scatter", "pairwise"): lambda s: several(N - 1, s / N),
    ("reduce_scatter", "recursive-halving"): lambda s: t(s / 2) + t(s / 4) + t(s / 8),
    ("all_gather", "ring"): lambda s: (N - 1) * t(s / N),
    ("all_gather", "hierarchical"): lambda s: (N - 1) * t(s / N),
    ("all_gather", "bruck"): lambda s: t(s / 8) + t(s / 4) + t(s / 2),
    ("all_gather", "recursive-doubling"): lambda s: t(s / 8) + t(s / 4) + t(s / 2),
    ("all_to_all", "pairwise"): lambda s: (N - 1) * t(s / N),
    ("all_to_all", "direct"): lambda s: several(N - 1, s / N),
    ("all_to_all", "bruck"): lambda s: 3 * t(s / 2),
    ("broadcast", "chain"): lambda s: (N - 1) * t(s),
    ("broadcast", "tree"): lambda s: t(s) + several(2, s) + several(2, s),
    ("broadcast", "binomial"): lambda s: 3 * t(s),
    ("broadcast", "scatter-allgather"): lambda s: t(s / 2) + t(s / 4) + t(s / 8) + (N - 1) * t(s / N),
    ("reduce", "chain"): lambda s: (N - 1) * t(s),
    ("reduce", "tree"): lambda s: several(2, s) + several(2, s) + t(s),
    ("reduce", "binomial"): lambda s: 3 * t(s),
    ("reduce", "rabenseifner"): lambda s: 2 * (t(s / 2) + t(s / 4) + t(s / 8)),
    ("reduce", "ring"): lambda s: (N - 1) * t(s / N) + several(N - 1, s / N),
    ("gather", "flat"): lambda s: several(N - 1, s / N),
    ("gather", "binomial"): lambda s: t(s / 8) + t(s / 4) + t(s / 2),
    ("scatter", "flat"): lambda s: several(N - 1, s / N),
    ("scatter", "binomial"): lambda s: t(s / 8) + t(s / 4) + t(s / 2),
    ("barrier", "dissemination"): lambda s: 3 * t(0),
}
"""ns of an operation of `s` bytes (the tensor, or all slots) on N ranks, nothing pipelined."""
