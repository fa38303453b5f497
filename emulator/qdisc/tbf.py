"""tbf, the token bucket filter. Layout from include/uapi/linux/pkt_sched.h, meaning from net/sched/sch_tbf.c."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar, Self

from emulator.errors import NetworkError
from emulator.qdisc import attributes
from emulator.units import Rate, Size

PARMS, RATE64 = 1, 4
LINKLAYER_ETHERNET = 1  # says that no rate table comes along
RATESPEC = "BBHhHI"
LAYOUT = f"={RATESPEC}{RATESPEC}III"
U32_MAX = 2**32 - 1
TICK_NS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Tbf:
    """Lets `rate` through on average and `burst` bytes at once; `limit` bytes wait, what comes on top is dropped.

    The bucket is sent as time, in ticks of 64 ns and rounded up, not as TCA_TBF_BURST: the time is what the kernel
    reports, so it can be compared. A packet larger than the bucket is dropped. An idle tbf passes a packet in no time:
    a link it isn't. After a change the first packet still waits as long as the old settings made it, and a packet's time is cut
    to whole ns: the lab kernel mends both (lab.patch).
    """

    kind: ClassVar[str] = "tbf"
    kernel_chooses: ClassVar[frozenset[str]] = frozenset()

    rate: Rate
    burst: Size
    limit: Size
    overhead: int = 0

    def __post_init__(self) -> None:
        if self.rate == 0 or self.rate % 8:
            raise NetworkError(f"tbf's rate counts whole bytes a second, {self.rate} is not")

    def encode(self) -> bytes:
        """The payload of TCA_OPTIONS."""
        rate = self.rate // 8
        ticks = -(-self.burst * 10**9 // (rate * TICK_NS))
        peak = (0,) * 6
        parms = struct.pack(
            LAYOUT, 0, LINKLAYER_ETHERNET, self.overhead, 0, 0, min(rate, U32_MAX), *peak, self.limit, ticks, 0
        )
        wide = attributes.pack(RATE64, struct.pack("=Q", rate)) if rate > U32_MAX else b""
        return attributes.pack(PARMS, parms) + wide

    @classmethod
    def decode(cls, options: bytes) -> Self:
        """What the kernel says of a tbf; the burst is what the reported time amounts to."""
        found = attributes.unpack(options)
        _, _, overhead, _, _, rate, *_, limit, ticks, _ = struct.unpack(LAYOUT, found[PARMS])
        if RATE64 in found:
            (rate,) = struct.unpack("=Q", found[RATE64])
        return cls(
            rate=Rate(8 * rate), burst=Size(ticks * TICK_NS * rate // 10**9), limit=Size(limit), overhead=overhead
        )
