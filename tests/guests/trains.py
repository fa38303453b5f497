"""`trains.py FOLDER [NAME...]`: through each stage of TRAINS, or those named, a train of numbered frames sent at one moment;
FOLDER/NAME.npy gets a row for each that arrived: its number, when (ns after all were sent), how many of its bits differ, and
whether it is marked (ECN)."""

from __future__ import annotations

import socket
import struct
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pyroute2 import IPRoute

from emulator import qdisc
from emulator.impairments import ALWAYS, Event, FourState, GilbertElliott
from emulator.links import DISTRIBUTIONS
from emulator.namespace import sysctl
from emulator.network import from_dict
from emulator.qdisc import Stage
from emulator.qdisc.netem import Netem, Slot
from emulator.shaping import ETHERNET_HEADER, stages
from emulator.units import Duration, Probability, Rate
from tests.guests.pair import report

COUNT = 10_000
OVERHEAD = 24
MTU = 68
ALWAYS_HAPPENS = Event(Probability(ALWAYS))
P, D, R = Probability.parse, Duration.parse, Rate.parse


@dataclass(frozen=True, slots=True)
class Train:
    """`count` frames of `size` bytes, which say that they can be marked where `ect`. `stage` is what `before` was changed to,
    where there is one."""

    stage: Stage
    count: int = COUNT
    size: int = 60
    ect: bool = False
    before: Netem | None = None


def made(**fields: object) -> Netem:
    """With room for all, and a seed."""
    return Netem(**{"limit": COUNT, "seed": 11, **fields})  # type: ignore[arg-type]


def queue(packets: int, **early: object) -> Stage:
    """What holds back, in front of a slow wire, with room for so many packets of the smallest MTU."""
    wire = {"ends": ["a", "b"], "rate": "1 mbit", "mtu": MTU, "queue": {"limit": held(packets), **early}}
    (link,) = from_dict({"hosts": ["a", "b"], "links": {"wire": wire}}).links
    return stages(link.a_to_b, MTU, "packet", seed=11)[0]


def held(packets: int) -> str:
    return f"{packets * (MTU + ETHERNET_HEADER)} B"


FAULTS = {"loss": {}, "duplicate": {}, "corrupt": {}, "reorder": {"delay": D("10 ms")}}
FAULTY = made(
    delay=D("3 ms"), jitter=D("1 ms"), distribution="normal", loss=GilbertElliott(P("9%"), P("20%")), ecn=True,
    duplicate=Event(P("9%")), reorder=Event(P("9%")), gap=3, corrupt=Event(P("9%")), rate=R("1 mbit"),
    slot=Slot(min_delay=D("1 ms"), max_delay=D("2 ms")),
)  # fmt: skip
TRAINS: dict[str, Train] = {
    "nothing": Train(made()),
    "all taken back": Train(made(), before=FAULTY),
    **{f"delay {delay}": Train(made(delay=D(delay)), count=100) for delay in ("500 ns", "1.5 us", "10 ms")},
    **{
        f"rate {rate}": Train(made(rate=R(rate), packet_overhead=OVERHEAD), size=1514)
        for rate in ("1 gbit", "10 gbit", "35 gbit", "100 gbit", "200 gbit", "400 gbit", "800 gbit")
    },
    "cells": Train(made(rate=R("155520 kbit"), packet_overhead=-14, cell_size=48, cell_overhead=5), size=114),
    "limit": Train(made(limit=50, delay=D("1 ms")), count=200),
    **{f"{name} 10%": Train(made(**more, **{name: Event(P("10%"))})) for name, more in FAULTS.items()},
    **{f"{name} correlated": Train(made(**more, **{name: Event(P("30%"), P("60%"))})) for name, more in FAULTS.items()},
    "gap": Train(made(delay=D("10 ms"), reorder=ALWAYS_HAPPENS, gap=5), count=1000),
    "same seed": Train(made(loss=Event(P("10%")))),
    "other seed": Train(made(loss=Event(P("10%")), seed=12)),
    "Gilbert": Train(made(loss=GilbertElliott(P("2%"), P("20%")))),
    "Gilbert-Elliott": Train(made(loss=GilbertElliott(P("2%"), P("20%"), loss_good=P("1%"), loss_bad=P("70%")))),
    "four states": Train(made(loss=FourState(p13=P("2%"), p31=P("20%"), p32=P("10%"), p23=P("30%"), p14=P("1%")))),
    "marks": Train(made(loss=Event(P("20%")), ecn=True), ect=True),
    "can't be marked": Train(made(loss=Event(P("20%")), ecn=True)),
    **{name: Train(made(delay=D("10 ms"), jitter=D("1 ms"), distribution=name)) for name in DISTRIBUTIONS},
    "in order": Train(made(delay=D("10 ms"), jitter=D("1 ms"), rate=Rate(8 * 10**15))),
    **{
        f"jitter correlated {rho}": Train(made(delay=D("10 ms"), jitter=D("1 ms"), delay_correlation=P(rho)))
        for rho in ("90%", "100%")
    },
    "jitter correlated 100%, again": Train(
        made(delay=D("10 ms"), jitter=D("1 ms"), delay_correlation=P("100%")), count=10
    ),
    "threshold": Train(queue(100, ecn=held(30)), count=200, size=MTU + ETHERNET_HEADER, ect=True),
    "threshold, can't be marked": Train(queue(100, ecn=held(30)), count=200, size=MTU + ETHERNET_HEADER),
    "ramp": Train(
        queue(2000, red={"min": held(500), "max": held(1500), "probability": "10%", "ecn": "true"}),
        count=2000, size=MTU + ETHERNET_HEADER, ect=True,
    ),
    "slot of packets": Train(made(slot=Slot(min_delay=D("1 ms"), max_delay=D("1 ms"), packets=10)), count=1000),
    "slot of bytes": Train(made(slot=Slot(min_delay=D("1 ms"), max_delay=D("1 ms"), bytes=600)), count=1000, size=100),
    "slot between": Train(made(slot=Slot(min_delay=D("1 ms"), max_delay=D("3 ms"), packets=1)), count=2000),
    "slot drawn": Train(
        made(slot=Slot(delay=D("5 ms"), jitter=D("1 ms"), packets=1, distribution="normal")), count=2000
    ),
}  # fmt: skip

_PROTOCOL = 0x0800
_ALL = 0x0003
_SNDBUFFORCE, _RCVBUFFORCE, _TIMESTAMPNS = 32, 33, 35  # asm-generic/socket.h
_ROOM = 1 << 29
_HEADER = 14
_ECT, _CE = 2, 3  # RFC 3168
_TOS, _SUM = _HEADER + 1, slice(_HEADER + 10, _HEADER + 12)
_NUMBERS = _HEADER + 20
_QUIET_S = 60


def frame(number: int, kind: Train) -> bytes:
    """Ethernet, an IP header of this size (its checksum isn't looked at), the number three times."""
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, _ECT if kind.ect else 0, kind.size - _HEADER, 0, 0, 64, 17, 0, b"", b"")
    return (bytes(12) + struct.pack("!H", _PROTOCOL) + ip + struct.pack("!3I", *[number] * 3)).ljust(kind.size, b"\0")


def read(got: bytes, kind: Train) -> tuple[int, int, bool]:
    """The number that two of three copies have, how many bits differ besides the mark and its checksum, the mark."""
    number = sorted(struct.unpack_from("!3I", got, _NUMBERS))[1]
    marked = got[_TOS] & _CE == _CE
    sent, came = bytearray(frame(number, kind)), bytearray(got)
    if marked:
        for each in (sent, came):
            each[_TOS], each[_SUM] = 0, bytes(2)
    return number, (int.from_bytes(sent) ^ int.from_bytes(came)).bit_count(), marked


def send(kind: Train) -> list[tuple[int, int, int, bool]]:
    rows = []
    with (
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender,
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as to,
    ):
        sender.setsockopt(socket.SOL_SOCKET, _SNDBUFFORCE, _ROOM)
        to.setsockopt(socket.SOL_SOCKET, _RCVBUFFORCE, _ROOM)
        to.setsockopt(socket.SOL_SOCKET, _TIMESTAMPNS, 1)
        sender.bind(("v0", _PROTOCOL))
        to.bind(("v1", _ALL))
        time.sleep(1)  # by then the kernel stamps what comes
        frames = [frame(number, kind) for number in range(kind.count)]
        start = time.time_ns()
        for each in frames:
            with suppress(OSError):  # ENOBUFS: the queue is full
                sender.send(each)
        to.settimeout(_QUIET_S)
        with suppress(TimeoutError):
            while True:
                got, ((_, _, stamp),), _, _ = to.recvmsg(2048, 64)
                seconds, ns = struct.unpack("=qq", stamp)
                number, differs, marked = read(got, kind)
                rows.append((number, seconds * 10**9 + ns - start, differs, marked))
    return rows


if __name__ == "__main__":
    folder, names = Path(sys.argv[1]), sys.argv[2:] or TRAINS
    sysctl("ipv6/conf/default/disable_ipv6", "1")
    with IPRoute() as ipr:
        for name in names:
            kind = TRAINS[name]
            ipr.link("add", ifname="v0", kind="veth", peer="v1")
            for end in ("v0", "v1"):
                (device,) = ipr.link_lookup(ifname=end)
                ipr.link("set", index=device, state="up")
            (device,) = ipr.link_lookup(ifname="v0")
            qdisc.install(ipr, device, kind.before or kind.stage)  # which reads it back
            if kind.before:
                qdisc.change(ipr, device, kind.stage)
            np.save(folder / f"{name}.npy", np.array(send(kind), dtype=np.int64).reshape(-1, 4))
            ipr.link("del", index=device)
    report(list(names))
