"""The director, on a bed that only notes what is done to it, with times that have passed."""

from __future__ import annotations

import select
from contextlib import closing
from pathlib import Path
from typing import cast

from emulator.beds.bed import Bed
from emulator.events import Change
from emulator.network import Network, load
from replay.director import Director

EVENTS = """profile: ethernet-10g
events:
  - straggler: {link: host0, way: up, slowdown: 2}
  - degrade: {link: host1, way: up, at: 1 ms, for: 1 ms, delay: 1 s}
"""


class Notes:
    def __init__(self, network: Network) -> None:
        self.network = network
        self.changes: list[Change] = []

    def apply(self, change: Change) -> None:
        self.changes.append(change)


def test_what_holds_from_0_is_there_before_the_start_and_the_rest_when_it_is_due(tmp_path: Path) -> None:
    path = tmp_path / "net.yaml"
    path.write_text(EVENTS)
    bed = Notes(load(path))
    with closing(Director(cast(Bed, bed))) as director:
        assert [(at.link, at.at) for at in bed.changes] == [("host0", 0)]
        director.start(1)
        for now, done in ((1_000_001, 2), (2_000_001, 3)):
            select.select([director.fd], [], [])  # long past on the real clock
            director.act(now)
            assert len(bed.changes) == done
    assert bed.changes[1].direction.delay == 10**9
    assert bed.changes[2].direction == bed.network.links[1].a_to_b
