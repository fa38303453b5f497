"""`collectives.py FILE`: collectives on beds of the lab kernel, many in one boot. FILE holds a JSON list of runs:
[network (resolved), fidelity, verify, segment, rest in ns, [[kind, algorithm, count], ...]]; no two of a
run's operations of a kind have one size.

Each operation is done twice: the first time opens TCP's windows. Each begins at all ranks at one moment, a rest after the one
before. Says for each run the ns of each operation's second time, the elements verified, and the bytes over each link's ends.
"""

from __future__ import annotations

import json
import sys
from array import array
from pathlib import Path
from typing import Any

from emulator.beds.netns import NetnsBed
from emulator.ledger import Ledger
from emulator.network import from_dict
from replay import coordinator
from replay.choosing import with_algorithms
from replay.plan import Transfer, lower
from replay.request import STALL_S
from tests.guests.pair import report
from tests.replay.network import trace_of
from traces.program import ROOTED, Collective, CollectiveKind, Compute, DType, Op, StepMark, Wait


def run(
    bed: NetnsBed, verify: bool, segment: int, rest: int, cases: list[tuple[str, str, int]]
) -> tuple[list[int], int, dict[str, int]]:
    ranks = sum(len(host.ranks) for host in bed.network.hosts)
    ops: list[Op] = []
    for kind, _, count in cases:
        root = ranks - 1 if CollectiveKind(kind) in ROOTED else -1
        for _ in range(2):
            op = Collective(CollectiveKind(kind), 0, count, DType.FLOAT32, root=root)
            ops += [op, Compute(rest), Wait(len(ops))]
    ops.append(StepMark(0))
    plan = lower(trace_of(dict.fromkeys(range(ranks), ops), steps=1), segment=segment)
    transfers = [op for op in plan.ranks[0].ops if isinstance(op, Transfer)]
    sizes = [transfer.call.nbytes for transfer in transfers[::2]]
    rules = [f"{kind}={name}:{size}B..{size}B" for (kind, name, _), size in zip(cases, sizes, strict=True)]
    plan, _ = with_algorithms(plan, rules, bed.network)
    measured = coordinator.run(plan, bed, verify=verify, stall_s=STALL_S)
    ends = [array("q", result.ended) for result in measured.results.values()]
    second = [3 + 6 * case for case in range(len(cases))]
    took = [max(end[at] for end in ends) - at // 3 * rest for at in second]
    assert max(took) < rest, took
    verified = sum(result.verified for result in measured.results.values())
    return took, verified, {f"{way.source} {way.target}": way.bytes for way in measured.links}


if __name__ == "__main__":
    found: list[Any] = []
    for network, fidelity, *rest in json.loads(Path(sys.argv[1]).read_text()):
        with Ledger("guest") as ledger, NetnsBed(from_dict(network), ledger, fidelity) as bed:
            found.append(run(bed, *rest))
    report(found)
