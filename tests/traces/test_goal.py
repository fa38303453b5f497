"""GOAL schedules: what they hold, and what is wrong with a bad one."""

from __future__ import annotations

from pathlib import Path

import pytest

from traces.checks import check
from traces.errors import TraceError
from traces.files import Opened
from traces.formats import goal
from traces.importer import import_files
from traces.program import Compute, Recv, Send, StepMark, Trace, Wait

PAIR = """\
// made by hand
num_ranks 2

rank 0 {
l1: calc 100 cpu 3
/* two
lines */
l2: send 10b to 1 tag 7 cpu 0 nic 1
l2 requires l1
calc 40
}

rank 1 {
a: recv 10b from 0 tag 7
b : calc 5
b requires a
}
"""


def read(text: str) -> Trace:
    return goal.read([Opened("x.goal", text.encode(), "", True)])


def test_a_schedule() -> None:
    trace = read(PAIR)

    assert trace.world_size == 2
    assert trace.programs[0].ops == (Compute(100), Send(1, 10, tag=7), Compute(40), Wait(1), StepMark(0))
    assert trace.programs[1].ops == (Recv(0, 10, tag=7), Wait(0), Compute(5), StepMark(0))
    assert [(f.code, f.rank) for f in check(trace)] == [("serialised", 0)]


def test_its_own_steps_come_back() -> None:
    text = "num_ranks 1\nrank 0 {\nl1: calc 9\n// step 4 ends\nl2: calc 0\nl2 requires l1\n}\n"

    assert read(text).programs[0].ops == (Compute(9), StepMark(4))


def test_binary_tree(corpus: Path) -> None:
    """31 of 32 ranks receive one byte, and pass it on."""
    trace = import_files([corpus / "LogGOPSim/src/LogGOPSim/binary_tree_32.goal"])

    ops = [op for program in trace.programs.values() for op in program.ops]
    assert (trace.world_size, len(trace.programs)) == (32, 32)
    assert {type(op): sum(type(o) is type(op) and o.count == 1 for o in ops) for op in ops if isinstance(op, Send | Recv)} == {
        Send: 31, Recv: 31,
    }  # fmt: skip
    assert trace.programs[2].ops[:5] == (Recv(0, 1), Wait(0), Send(6, 1), Send(10, 1), Send(18, 1))
    assert check(trace) == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("num_ranks 0\n", "line 1: num_ranks is 0"),
        ("num_ranks 999999999\n", "line 1: num_ranks is 999999999"),
        ("num_ranks 1\nrank 1 {\n}\n", "line 2: rank 1 of num_ranks 1"),
        ("num_ranks 1\nrank 0 {\nl1: calc 5\n", "the file ends inside a rank"),
        ("num_ranks 1\nrank 0 {\n}\nrank 0 {\n}\n", "line 4: rank 0 is given twice"),
        ("num_ranks 2\nrank 0 {\nl1: send 5b to 2\n}\n", "line 3: rank 2 of num_ranks 2"),
        ("num_ranks 2\nrank 0 {\nl1: send 5b from 1\n}\n", "line 3: expected `send Nb to RANK`"),
        ("num_ranks 2\nrank 0 {\nl1: recv 5b from 1 tag -1\n}\n", "line 3: a receive of any tag"),
        ("num_ranks 2\nrank 0 {\nl1: recv 5b from 1 tag 4294967294\n}\n", "line 3: tag 4294967294 is beyond"),
        ("num_ranks 1\nrank 0 {\nl1: calc 1\nl1 requires l2\n}\n", "line 4: nothing in this rank is labelled l2"),
        ("num_ranks 1\nrank 0 {\nl1: calc 1\nl1 requires l1\n}\n", "rank 0: operations follow each other in a circle"),
        ("num_ranks 1\nrank 0 {\nl1: jump 1\n}\n", "line 3: expected calc, send, recv, requires or irequires"),
        ("num_ranks 1\n", "no rank is in the schedule"),
    ],
)
def test_what_is_wrong_is_named(text: str, said: str) -> None:
    with pytest.raises(TraceError) as caught:
        read(text)
    assert said in str(caught.value)
