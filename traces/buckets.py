"""DDP's buckets: which gradients travel together, and what is ready when."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

FIRST_BUCKET = 1 << 20  # bytes; torch's _DEFAULT_FIRST_BUCKET_BYTES, so that the first all-reduce starts early
BUCKET = 25 << 20  # bytes; DistributedDataParallel's bucket_cap_mb


@dataclass(frozen=True, slots=True)
class Bucket:
    """`elements` gradients, all ready when the backward pass has done layer `last_layer`."""

    elements: int
    last_layer: int


def buckets(
    layers: Sequence[Sequence[tuple[int, ...]]], itemsize: int, *, first: int = FIRST_BUCKET, cap: int = BUCKET
) -> tuple[Bucket, ...]:
    """Buckets of the tensors of `layers` (shapes in order of use), in the order in which they are reduced.

    As torch does from the second step on: tensors in reverse order, and a bucket is closed by the tensor with which it
    reaches its limit, so it may be far above it (compute_bucket_assignment_by_size, torch/csrc/distributed/c10d/reducer.cpp).
    """
    made: list[Bucket] = []
    limit, filled, last = first, 0, 0
    for index in range(len(layers) - 1, -1, -1):
        for shape in reversed(layers[index]):
            filled += math.prod(shape)
            last = index
            if filled * itemsize >= limit:
                made.append(Bucket(filled, last))
                limit, filled = cap, 0
    if filled:
        made.append(Bucket(filled, last))
    return tuple(made)
