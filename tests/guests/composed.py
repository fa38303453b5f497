"""`docker-compose up` in the lab kernel, in each folder of the arguments in turn: how each of its containers ended."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.composed import compose, exit_statuses, make_nothing
from tests.dockerd import daemon
from tests.guests.pair import report

if __name__ == "__main__":
    ended = []
    with daemon():
        make_nothing()
        for folder in map(Path, sys.argv[1:]):
            up = compose(folder, "up", "--no-color")
            ended.append({"statuses": exit_statuses(folder), "said": up.stdout + up.stderr})
    report(ended)
