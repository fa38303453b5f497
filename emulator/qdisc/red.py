"""red, as a threshold on the queue as it is now. Layout from include/uapi/linux/pkt_sched.h, meaning from
net/sched/sch_red.c."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar, Self

from emulator.qdisc import attributes
from emulator.units import Probability, Size

PARMS, STAB, MAX_P = 1, 2, 3
FLAG_ECN = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Red:
    """Marks (with `ecn`) or drops packets: none while fewer than `minimum` bytes wait, all from `maximum` on.

    Between the two, the packets taken are 1 to 1/p packets apart, and p grows from 0 to `probability`. The queue isn't
    averaged (Wlog 0), as DCTCP wants it (SIGCOMM 2010, section 3.1). With `ecn`, packets that can't be marked are
    dropped. `limit` bytes wait at most. A change empties the queue (__red_change).
    """

    kind: ClassVar[str] = "red"
    kernel_chooses: ClassVar[frozenset[str]] = frozenset()

    limit: Size
    minimum: Size
    maximum: Size
    probability: Probability
    ecn: bool

    def encode(self) -> bytes:
        """The payload of TCA_OPTIONS. The table is for averages that fade while idle: without averaging it is not
        used."""
        flags = FLAG_ECN if self.ecn else 0
        parms = struct.pack("=3I4B", self.limit, self.minimum, self.maximum, 0, 0, 0, flags)
        chance = struct.pack("=I", self.probability)
        return attributes.pack(PARMS, parms) + attributes.pack(STAB, bytes([31]) * 256) + attributes.pack(MAX_P, chance)

    @classmethod
    def decode(cls, options: bytes) -> Self:
        """What the kernel says of a red."""
        found = attributes.unpack(options)
        limit, minimum, maximum, _, _, _, flags = struct.unpack("=3I4B", found[PARMS])
        return cls(
            limit=Size(limit),
            minimum=Size(minimum),
            maximum=Size(maximum),
            probability=Probability(struct.unpack("=I", found[MAX_P])[0]),
            ecn=bool(flags & FLAG_ECN),
        )

    @staticmethod
    def marked(statistics: bytes) -> int:
        """How many packets it has marked, by its TCA_XSTATS: tc_red_xstats is early, pdrop, other, marked."""
        return int(struct.unpack("=4I", statistics)[3])
