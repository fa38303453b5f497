"""Looks at the machine while a run in real time is made on it: its links before, its processors and ranks meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from emulator.beds.netns import NetnsBed
from emulator.measure import survey
from emulator.network import Network
from emulator.probe import HOST, paths
from replay.control import Result
from replay.truth import Evidence, to_probe

_IDLE, _WAITING, _STOLEN = 3, 4, 7  # columns of /proc/stat's first line (proc(5)), the name left out
_COUNTED = 8  # what comes behind them, guests' time, is in the first two as well


class Watch:
    """Probes paths of a bed that is up, and then looks at the machine until `seen` is called.

    Raises BedError as `emulator.measure.measure` does.
    """

    def __init__(self, network: Network, bed: NetnsBed) -> None:
        chosen = to_probe(network)
        self._unprobed = len(paths(network)) - len(chosen) if chosen else 0
        self._probed = tuple(survey(network, bed.namespace, HOST, chosen))
        self._before = _processors()

    def seen(self, results: Mapping[int, Result]) -> Evidence:
        """All that was seen."""
        spent = [now - then for now, then in zip(_processors(), self._before, strict=True)]
        total = max(sum(spent), 1)
        return Evidence(
            probed=self._probed,
            unprobed=self._unprobed,
            busy=1 - (spent[_IDLE] + spent[_WAITING]) / total,
            stolen=spent[_STOLEN] / total,
            ranks={rank: result.strain for rank, result in sorted(results.items())},
        )


def _processors() -> list[int]:
    """What all processors have done since this machine was started, in ticks."""
    first = Path("/proc/stat").read_text().splitlines()[0]
    return [int(ticks) for ticks in first.split()[1 : 1 + _COUNTED]]
