"""`--dilate`: what it may be, and results in the network's own time."""

from __future__ import annotations

from array import array
from fractions import Fraction
from pathlib import Path

import msgspec
import pytest

from emulator.beds.bed import LinkCounters
from emulator.errors import NetworkError
from replay.control import Carried, Flow, Progress, Result
from replay.coordinator import Measurement
from replay.dilation import measurement, read_dilation, step_mark
from replay.plan import Plan
from replay.request import Request, plan_of
from tests.replay.runs import overlapping, tracebed, written
from traces import archive
from traces.program import Compute

LINK = LinkCounters("host0", "host0", "switch", 10, 1000, drops=2, overlimits=0, backlog_bytes=0, marks=0)
CARRIED = (Carried(0, "constant", "udp", "host0", "host1", 1, 100, 90),)


def flow(microseconds: int) -> Flow:
    counted = {name: 7 for name in Flow.__struct_fields__ if not name.endswith("_us")}
    times = {name: microseconds for name in Flow.__struct_fields__ if name.endswith("_us")}
    return Flow(**{**counted, "p2p": False, "congestion": "cubic", **times})


def result(scale: int) -> Result:
    times = array("q", [0, 12 * scale, -1]).tobytes()
    return Result(3, 99 * scale, times, times, times, flows=(flow(scale * 5),), verified=250)


def test_every_time_is_divided_and_nothing_else() -> None:
    slow = Measurement({3: result(10)}, (LINK,), CARRIED, missed={"capture": 1})
    assert measurement(slow, Fraction(10)) == Measurement({3: result(1)}, (LINK,), CARRIED, missed={"capture": 1})
    assert step_mark(Progress(0, 5, 125, 21), Fraction("2.5")) == Progress(0, 5, 50, 8)


def test_what_was_not_measured_stays_unknown() -> None:
    """Of an RDMA connection no round trip is known."""
    one = msgspec.structs.replace(flow(50), rtt_us=None)
    slow = msgspec.structs.replace(result(10), flows=(one,))
    (found,) = measurement(Measurement({3: slow}, (LINK,), CARRIED), Fraction(10)).results[3].flows
    assert found == msgspec.structs.replace(flow(5), rtt_us=None)


def test_compute_takes_as_much_longer(tmp_path: Path) -> None:
    path = written(overlapping(2, 400, steps=2), tmp_path)
    plain, slow = (plan_of(Request(str(path), archive.trace_hash(path), {}, dilation=by)) for by in ("1", "2.5"))
    assert computed(slow) == [round(2.5 * ns) for ns in computed(plain)]


def computed(plan: Plan) -> list[int]:
    return [op.ns for rank in plan.ranks.values() for op in rank.ops if isinstance(op, Compute)]


@pytest.mark.parametrize("text", ["0", "-1", "ten", "1e3", "0.0", ""])
def test_a_dilation_is_a_number_of_more_than_0(text: str) -> None:
    with pytest.raises(NetworkError, match=r"expected a number of more than 0, as 10 or 2\.5"):
        read_dilation(text, "host")


def test_virtual_time_needs_none(tmp_path: Path) -> None:
    assert read_dilation("1", "virtual") == 1
    trace = written(overlapping(2, 400, steps=1), tmp_path)
    said = tracebed("replay", trace, "--network", "ethernet-10g", "--dilate", "10", "-o", tmp_path / "runs")
    assert said.returncode == 2
    assert said.stderr.startswith("tracebed: --dilate 10: not needed on virtual, where CPU work takes no time")
    assert not (tmp_path / "runs").exists()
