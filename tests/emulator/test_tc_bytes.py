"""Our bytes against those that tc of iproute2 sends for the same line, attribute by attribute.

tc is watched with strace in a namespace of its own, so it doesn't matter which kinds the kernel has. Where ours differ, and
why, is said here: each difference is looked for.
"""

from __future__ import annotations

import re
import struct
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from emulator.impairments import Event, FourState, GilbertElliott
from emulator.qdisc import Qdisc, attributes
from emulator.qdisc.fifo import ByteFifo, PacketFifo
from emulator.qdisc.fq import Fq
from emulator.qdisc.netem import Netem, Slot
from emulator.qdisc.red import Red
from emulator.qdisc.tbf import Tbf
from emulator.units import Duration, Probability, Rate, Size

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("root")]

P, D, R = Probability.parse, Duration.parse, Rate.parse
RTM_NEWQDISC, KIND, OPTIONS = 36, 1, 2
MESSAGE_HEADER, TC_HEADER, NETEM_HEADER = 16, 20, 24
DELAY_DIST, LATENCY64, JITTER64, SLOT_DIST = 2, 10, 11, 13

NETEMS: Mapping[str, Netem] = {
    "limit 77": Netem(limit=77),
    "delay 10ms": Netem(delay=D("10 ms")),
    "delay 10ms 2ms 25%": Netem(delay=D("10 ms"), jitter=D("2 ms"), delay_correlation=P("25%")),
    "delay 10ms 1ms distribution normal": Netem(delay=D("10 ms"), jitter=D("1 ms"), distribution="normal"),
    "loss 1%": Netem(loss=Event(P("1%"))),
    "loss 0.0046% 30%": Netem(loss=Event(P("0.0046%"), P("30%"))),
    "loss gemodel 1% 20% 75% 0.01%": Netem(loss=GilbertElliott(P("1%"), P("20%"), P("0.01%"), P("75%"))),
    "loss state 1% 50% 10% 30% 0.5%": Netem(
        loss=FourState(p13=P("1%"), p31=P("50%"), p32=P("10%"), p23=P("30%"), p14=P("0.5%"))
    ),
    "loss 5% ecn": Netem(loss=Event(P("5%")), ecn=True),
    # tc 6.1 forgets the correlation of duplicates where nothing else has one.
    "loss 1% 30% duplicate 1% 10%": Netem(loss=Event(P("1%"), P("30%")), duplicate=Event(P("1%"), P("10%"))),
    "corrupt 0.1% 5%": Netem(corrupt=Event(P("0.1%"), P("5%"))),
    "delay 1ms reorder 25% 50%": Netem(delay=D("1 ms"), reorder=Event(P("25%"), P("50%"))),
    "delay 1ms reorder 25% gap 5": Netem(delay=D("1 ms"), reorder=Event(P("25%")), gap=5),
    "rate 10gbit 24": Netem(rate=R("10 gbit"), packet_overhead=24),
    "rate 800gbit": Netem(rate=R("800 gbit")),
    "rate 155520kbit -14 48 5": Netem(rate=R("155520 kbit"), packet_overhead=-14, cell_size=48, cell_overhead=5),
    "slot 800us 1ms packets 32 bytes 64000": Netem(slot=Slot(D("800 us"), D("1 ms"), 32, 64000)),
    "slot distribution normal 5ms 1ms packets 8": Netem(
        slot=Slot(delay=D("5 ms"), jitter=D("1 ms"), packets=8, distribution="normal")
    ),
}
IN_NS = "delay 1.5us"
TBFS: Mapping[str, Tbf] = {
    f"rate {rate} burst {burst} limit 1000000 overhead 24": Tbf(
        rate=R(rate), burst=Size(burst), limit=Size(10**6), overhead=24
    )
    for rate, burst in (("1gbit", 8000), ("10mbit", 2000), ("100gbit", 90000))
}
REDS: Mapping[str, Red] = {
    f"limit 1000000 min 30000 max 90000 avpkt 1514 burst 21 probability 0.5 {flag}": Red(
        limit=Size(10**6), minimum=Size(30000), maximum=Size(90000), probability=P("50%"), ecn=bool(flag)
    )
    for flag in ("", "ecn")
}
ALIKE: Mapping[str, Qdisc] = {
    "fq limit 1000 flow_limit 100 nopacing": Fq(limit=1000, flow_limit=100),
    "fq limit 1000 flow_limit 100 pacing": Fq(limit=1000, flow_limit=100, pacing=True),
    "pfifo limit 100": PacketFifo(100),
    "bfifo limit 65536": ByteFifo(Size(65536)),
}
LINES = (
    *(f"netem {line}" for line in (*NETEMS, IN_NS)),
    *(f"tbf {line}" for line in TBFS),
    *(f"red {line}" for line in REDS),
    *ALIKE,
)
Said = Mapping[str, bytes]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Said:
    """The payload of TCA_OPTIONS that tc sends, by line."""
    folder = tmp_path_factory.mktemp("tc")
    batch, trace = folder / "batch", folder / "trace"
    batch.write_text("".join(f"qdisc add dev lo root {line}\n" for line in LINES))
    watched = ["strace", "-e", "trace=sendmsg", "-e", "write=all", "-o", str(trace)]
    tc = ["tc", "-force", "-batch", str(batch)]
    # It fails where a kind is not there, or one is there already: what it asked for is all that counts.
    subprocess.run(["unshare", "--net", *watched, *tc], capture_output=True, check=False)
    found = [options(message) for message in messages(trace) if message[4] == RTM_NEWQDISC]
    return dict(zip(LINES, found, strict=True))


@pytest.fixture(autouse=True)
def programs(needs: Callable[..., None]) -> None:
    needs("tc", "strace", "unshare")


def messages(trace: Path) -> list[bytes]:
    """What was sent, from the dumps: a line that announces one, then 16 bytes a line."""
    found: list[bytearray] = []
    for line in trace.read_text().splitlines():
        if " bytes in buffer " in line:
            found.append(bytearray())
        elif dumped := re.match(r" \| [0-9a-f]{5}  ((?:[0-9a-f]{2} {1,2}){1,16})", line):
            found[-1] += bytes.fromhex(dumped[1])
    return [bytes(message) for message in found]


def options(message: bytes) -> bytes:
    return attributes.unpack(message[MESSAGE_HEADER + TC_HEADER :])[OPTIONS]


@pytest.mark.parametrize("line", NETEMS)
def test_netem(said: Said, line: str) -> None:
    """Ours sends more, for a change would keep what isn't mentioned: zeros, and delays in ns beside those in ticks. Its tables
    are its own (distributions.py), a uniform one too."""
    ours, theirs = NETEMS[line].encode(), said[f"netem {line}"]
    assert ours[:NETEM_HEADER] == theirs[:NETEM_HEADER]
    mine, yours = (attributes.unpack(data[NETEM_HEADER:]) for data in (ours, theirs))
    assert set(yours) <= set(mine)
    for kind, payload in mine.items():
        if kind in (DELAY_DIST, SLOT_DIST):
            assert kind == DELAY_DIST or len(payload) == len(yours[kind])
        elif kind in yours:
            assert payload == yours[kind], kind
        elif kind in (LATENCY64, JITTER64):
            ticks = struct.unpack_from("=6I", theirs)[0 if kind == LATENCY64 else 5]
            assert struct.unpack("=q", payload) == (ticks * 64,)
        else:
            assert not any(payload), kind


def test_netem_in_ns_which_some_tc_cuts(said: Said) -> None:
    """tc of iproute2 6.1 sends no ns, and makes 15 ticks of 1.5 us, 960 ns. Ours is exact, and so is a tc that sends ns."""
    theirs = said[f"netem {IN_NS}"]
    yours = attributes.unpack(theirs[NETEM_HEADER:])
    mine = attributes.unpack(Netem(delay=D("1.5 us")).encode()[NETEM_HEADER:])
    assert struct.unpack("=q", mine[LATENCY64]) == (1500,)
    if LATENCY64 in yours:
        assert yours[LATENCY64] == mine[LATENCY64]
    else:
        assert struct.unpack_from("=I", theirs) == (15,)


@pytest.mark.parametrize("line", TBFS)
def test_tbf(said: Said, line: str) -> None:
    """tc sends tables of times (RTAB) and says in cell_log and cell_align how they are read; with a link layer given, the
    kernel doesn't look at them. It sends the burst in bytes as well; ours is in ticks only (tbf.py), which tc rounds to us, and
    reckons with the old field's highest rate."""
    parms, rate64, rtab, burst = 1, 4, 2, 6
    mine, yours = attributes.unpack(TBFS[line].encode()), attributes.unpack(said[f"tbf {line}"])
    assert set(yours) - set(mine) == {rtab, burst}
    assert mine.get(rate64) == yours.get(rate64)
    layout = "=BBHhHI BBHhHI III"
    ours, theirs = (list(struct.unpack(layout, found[parms])) for found in (mine, yours))
    cell_log, cell_align, ticks = 0, 3, 13
    assert (ours[cell_log], ours[cell_align]) == (0, 0)
    assert theirs[ticks] * 64 == pytest.approx(
        TBFS[line].burst * 10**9 / min(TBFS[line].rate // 8, 2**32 - 1), abs=1000
    )
    assert ours[ticks] * 64 == pytest.approx(TBFS[line].burst * 10**9 / (TBFS[line].rate // 8), abs=64)
    assert struct.unpack("=I", yours[burst]) == (TBFS[line].burst,)
    for index in (cell_log, cell_align, ticks):
        ours[index] = theirs[index] = 0
    assert ours == theirs


@pytest.mark.parametrize("line", REDS)
def test_red(said: Said, line: str) -> None:
    """tc can't say that the queue is not to be averaged: Wlog, and with it Plog, Scell_log and the table, are its own. It sends
    the flags apart, as linux/pkt_sched.h has them since 5.7; ours are where they were before, and still are read."""
    parms, stab, max_p, flags = 1, 2, 3, 4
    mine, yours = attributes.unpack(REDS[line].encode()), attributes.unpack(said[f"red {line}"])
    assert set(yours) - set(mine) == {flags}
    assert len(mine[stab]) == len(yours[stab])
    assert mine[max_p] == yours[max_p]
    *ours, wlog, _, _, our_flags = struct.unpack("=3I4B", mine[parms])
    *theirs, their_wlog, _, _, no_flags = struct.unpack("=3I4B", yours[parms])
    assert ours == theirs
    assert wlog == 0 < their_wlog
    value, _ = struct.unpack("=2I", yours[flags])
    assert (our_flags, no_flags) == (value, 0)


@pytest.mark.parametrize("line", ALIKE)
def test_the_others_are_the_same_bytes(said: Said, line: str) -> None:
    assert ALIKE[line].encode() == said[line]
