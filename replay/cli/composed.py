"""What the containers of a compose file run: `python -m replay.cli.composed` leads the run, and with ranks as arguments it is
these ranks, which are on one host.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec

from emulator.namespace import writable_settings
from replay.cli.main import guarded
from replay.cli.table import show
from replay.compose import FOLDER, REQUEST, RUNS
from replay.muster import reach, report
from replay.plan import RankPlan
from replay.process import Process, fork
from replay.request import Request, plan_of
from replay.session import new_folder, read_job, replay


def _lead() -> int:
    """The run, from the muster of the ranks to its table."""
    asked = _request()
    job = read_job(Path(asked.trace), asked.what_if, asked.steps)
    network = asked.resolved_network()
    writable_settings()
    folder = new_folder(FOLDER / RUNS, job, network)
    try:
        run = replay(
            job, network, folder, ground=asked.ground, bed=asked.bed, fidelity=asked.fidelity, verify=asked.verify
        )
    finally:
        _leave_to_owner(folder)
    show(job, [(folder.relative_to(FOLDER), run)])
    return int(bool(run.doubts))


def _take_part(ranks: Sequence[int]) -> int:
    """These ranks, a process each; 0 where each ended with that."""
    plan = plan_of(_request())
    started = [_start(plan.ranks[rank]) for rank in ranks]
    statuses = [os.waitpid(process.pid, 0)[1] for process in started]
    return int(any(statuses))


def _start(plan: RankPlan) -> Process:
    with reach() as channel:
        return fork(lambda parent: report(plan, channel))


def _request() -> Request:
    return msgspec.json.decode((FOLDER / REQUEST).read_bytes(), type=Request)


def _leave_to_owner(folder: Path) -> None:
    """What root wrote belongs to whoever owns the folder round it."""
    owner = folder.parent.stat()
    for path in (folder, *folder.iterdir()):
        os.chown(path, owner.st_uid, owner.st_gid)


if __name__ == "__main__":
    ranks = [int(argument) for argument in sys.argv[1:]]
    guarded(partial(_take_part, ranks) if ranks else _lead)
