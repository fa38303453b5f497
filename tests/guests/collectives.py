"""`collectives.py FILE`: runs collectives on beds of the lab kernel, many in one boot. FILE holds a JSON list of networks
(resolved), each with its cases: [network, fidelity, [[rule, kind, count, ranks, segment, verify], ...]].

Each is done twice: the first time opens TCP's windows, the second begins when all ranks have rested, at the same moment.

Says for each network a list of [ns of the second time, elements verified, bytes over each direction of links], a case each.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from emulator.beds.netns import NetnsBed
from emulator.ledger import Ledger
from emulator.network import from_dict
from replay import control, coordinator
from replay.choosing import with_algorithms
from replay.ideal import step_times
from replay.plan import lower
from tests.guests.pair import report
from tests.replay.network import trace_of
from traces.program import ROOTED, Collective, CollectiveKind, Compute, DType, Op, StepMark, Wait

REST_NS = 100_000_000


def run(bed: NetnsBed, rule: str, kind: str, count: int, ranks: int, segment: int, verify: bool) -> list[object]:
    of = CollectiveKind(kind)
    op = Collective(of, 0, count, DType.FLOAT32, root=ranks - 1 if of in ROOTED else -1)
    ops: list[Op] = [op, Compute(REST_NS), Wait(0), StepMark(0), op, Wait(4), StepMark(1)]
    trace = trace_of(dict.fromkeys(range(ranks), ops), steps=2)
    plan, _ = with_algorithms(lower(trace, segment=segment), (rule,), bed.network)
    ends: dict[int, int] = {}

    def note(said: control.Progress) -> None:
        ends[said.step] = max(ends.get(said.step, 0), said.at_ns)

    before = {(way.link, way.source): way.bytes for way in bed.counters()}
    measured = coordinator.run(plan, bed, verify=verify, on_progress=note)
    carried = {f"{way.link} {way.source}": way.bytes - before[way.link, way.source] for way in measured.links}
    return [step_times(ends)[1], sum(result.verified for result in measured.results.values()), carried]


if __name__ == "__main__":
    found: list[Any] = []
    for network, fidelity, cases in json.loads(Path(sys.argv[1]).read_text()):
        with Ledger("guest") as ledger, NetnsBed(from_dict(network), ledger, fidelity) as bed:
            found.append([run(bed, *case) for case in cases])
    report(found)
