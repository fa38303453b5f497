"""`--pcap LINK`: what leaves a link at its two ends, written to a file while the run goes on, by a process beside the ranks.

Each packet is seen where it leaves the link, behind queue, rate, delay and loss: what was delivered, and when; what the link
lost is not there. `links.csv` counts the same packets. In burst fidelity a super-packet is one packet, as it is on a host
with segmentation offload. Hosts leave TCP's checksum to a card, so it is not that of the packet. Stamps are ns after Go on
the run's clock; what passed before Go, the connections' handshakes, is left out.
"""

from __future__ import annotations

import select
import socket
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO

from emulator.beds.bed import Bed
from emulator.errors import NetworkError
from emulator.network import Network
from emulator.pcap import header, record
from emulator.tap import Frame, Tap
from replay.companions import Companion, Task
from replay.control import Done
from replay.transports.timer import Timer
from replay.worker import monotonic

_PAUSE_NS = 1_000_000
"""From the first packet that has come until all that have are read: each wake costs wall-clock time."""


def check_links(network: Network, links: Sequence[str]) -> None:
    """Raises NetworkError where the network has no link of one of these names."""
    known = network.shape.links
    for link in links:
        if link not in known:
            raise NetworkError(
                f"--pcap {link}: network {network.name} has no such link: expected one of {', '.join(known)}"
            )


def companions(bed: Bed, links: Sequence[str], folder: Path) -> list[Companion]:
    """A companion for each link, which writes `LINK.pcap`."""
    return [
        Companion(f"the capture of link {link}", partial(_prepare, bed, link, folder / f"{link}.pcap"))
        for link in dict.fromkeys(links)
    ]


@contextmanager
def _prepare(bed: Bed, link: str, path: Path) -> Iterator[Task]:
    with ExitStack() as opened:
        file = opened.enter_context(path.open("wb"))
        taps = [opened.enter_context(Tap(device)) for device in bed.enter_link(link)]
        timer = opened.enter_context(closing(Timer()))
        yield partial(_capture, file, taps, timer)


def _capture(file: BinaryIO, taps: Sequence[Tap], timer: Timer, channel: socket.socket, start_ns: int) -> Done:
    """From Go at `start_ns` until `channel` has something to read."""
    begin = start_ns + time.clock_gettime_ns(time.CLOCK_REALTIME) - monotonic()
    file.write(header())
    held: list[Frame] = []
    fds = [tap.fileno() for tap in taps]
    before, over, bye = 0, False, channel.fileno()
    while not over:
        over = bye in select.select([bye, *fds], [], [])[0]
        if not over:
            timer.set(monotonic() + _PAUSE_NS)
            over = bye in select.select([bye, timer.fd], [], [])[0]
        # A packet may still come to a tap that was read when the other has a later one: so none is written before the next turn.
        now = time.clock_gettime_ns(time.CLOCK_REALTIME)
        held = sorted((*held, *(frame for tap in taps for frame in tap.frames())), key=attrgetter("at_ns"))
        ready = len(held) if over else bisect_right(held, before, key=attrgetter("at_ns"))
        file.writelines(
            record(frame.at_ns - begin, frame.length, frame.kept) for frame in held[:ready] if frame.at_ns >= begin
        )
        held, before = held[ready:], now
    return Done(missed=sum(tap.lost() for tap in taps))
