"""Whether a run in real time can be believed: what was seen of the machine, and what of it says that it did not keep up. Pure.

In virtual time nothing has to be asked: the clock stands still while the machine works.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from emulator.network import Network
from emulator.probe import TRIPS, Finding, Path, Report, paths, train
from replay.control import Strain

MOST_LATE = 0.02
"""The part of a rank's time that its timers may have been late, all together: so much longer may a step be for it."""
MOST_DELAYED = 0.02
"""The part of its time that a rank may have been ready to run while others had the processors (proc(5), schedstat)."""
MOST_BUSY = 0.95
"""The part of its time that a rank may have had a processor: one that never rests sets the pace itself."""
MOST_STOLEN = 0.02
"""The part of the machine's time that its hypervisor may have given to others (proc(5), /proc/stat)."""
PROBE_LIMIT_S = 5.0
"""Seconds that probing may take before a run: as many paths are probed as that allows."""
_TRAIN_S = 0.1


class Evidence(msgspec.Struct, frozen=True):
    """What was seen of a run in real time: `truth.json` of its folder.

    `probed`: what paths gave before it; `unprobed` paths were left out. `busy` and `stolen`: parts of all processors' time
    while it ran. `ranks`: what each rank's process had to put up with.
    """

    probed: tuple[Report, ...]
    unprobed: int
    busy: float
    stolen: float
    ranks: Mapping[int, Strain]


def to_probe(network: Network) -> Sequence[Path]:
    """The paths to probe before a run: the first that PROBE_LIMIT_S is enough for, none where there is one host."""
    chosen: list[Path] = []
    left = PROBE_LIMIT_S
    for path in paths(network) if len(network.hosts) > 1 else ():
        trip_s = sum(way.delay for way in (*path.there, *path.back)) / 1e9
        left -= TRIPS * trip_s + train(path).rounds * (_TRAIN_S + trip_s)
        if left < 0:
            break
        chosen.append(path)
    return chosen


def doubts(seen: Evidence) -> tuple[str, ...]:
    """Why the run can't be trusted, each reason once with the worst of it; nothing where it can."""
    return (*_of_paths(seen.probed), *_of_ranks(seen.ranks), *_of_machine(seen))


def _of_paths(probed: Sequence[Report]) -> Iterator[str]:
    wrong = [(report, finding) for report in probed for finding in report.findings if finding.verdict == "no"]
    if wrong:
        report, finding = wrong[0]
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        yield f"from {report.source} to {report.target} {_off(finding)}{more}"


def _off(finding: Finding) -> str:
    got = "nothing came" if finding.got is None else f"got {finding.got:,.6g}"
    return f"asked for {finding.what} {finding.asked:,.6g}, {got}"


def _of_ranks(ranks: Mapping[int, Strain]) -> Iterator[str]:
    limits = (
        ("late_ns", MOST_LATE, "its timers were late for {} of its time"),
        ("delayed_ns", MOST_DELAYED, "it had to wait for a processor for {} of its time"),
        ("cpu_ns", MOST_BUSY, "it was busy itself for {} of its time"),
    )
    for name, most, text in limits:
        parts = {rank: getattr(strain, name) / max(strain.lasted_ns, 1) for rank, strain in ranks.items()}
        worst = max(parts, key=lambda rank: parts[rank], default=None)
        if worst is not None and parts[worst] > most:
            over = sum(part > most for part in parts.values())
            more = f", and of {over - 1} more ranks" if over > 1 else ""
            yield f"rank {worst}: {text.format(f'{parts[worst]:.1%}')}{more}"


def _of_machine(seen: Evidence) -> Iterator[str]:
    if seen.stolen > MOST_STOLEN:
        yield f"the machine's hypervisor gave {seen.stolen:.1%} of its time to others"
