from __future__ import annotations

import pytest

from emulator.marked import from_plain
from emulator.queues import Queue, queue_to_plain, read_queue
from emulator.units import Size

RAMP = {"min": "30 KiB", "max": "90 KiB", "probability": "10%", "ecn": "false"}
LIKE_A_STEP = {"min": "64 KiB", "max": "64 KiB", "probability": "100%", "ecn": "false"}


@pytest.mark.parametrize(
    ("plain", "shown", "spared"),
    [
        ("512 KiB", "512 KiB", 524288),
        ("100 packets", "100 packets", 100),
        ({"limit": "512 KiB", "ecn": "64 KiB"}, "512 KiB, ECN above 64 KiB", 65536),
        ({"limit": "1 MiB", "red": RAMP}, "1 MiB, drops from 30 KiB to 90 KiB", 30720),
        ({"limit": "1 MiB", "red": {**RAMP, "ecn": "true"}}, "1 MiB, ECN from 30 KiB to 90 KiB", 30720),
        ({"limit": "1 MiB", "red": LIKE_A_STEP}, "1 MiB, drops above 64 KiB", 65536),
    ],
)
def test_a_queue_is_read_shown_and_written_as_it_was(plain: object, shown: str, spared: int) -> None:
    queue = read_queue(from_plain(plain, "net.yaml"), 1514)
    assert str(queue) == shown
    assert queue.spared == spared
    assert queue_to_plain(queue) == plain


def test_a_mapping_may_say_the_limit_alone() -> None:
    assert read_queue(from_plain({"limit": "9 packets"}, "net.yaml"), 1514) == Queue(9, "packets")
    assert read_queue(from_plain({"limit": "1514 B"}, "net.yaml"), 1514) == Queue(Size(1514), "bytes")
