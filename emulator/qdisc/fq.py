"""fq, fair queueing by flow. Layout from include/uapi/linux/pkt_sched.h, meaning from net/sched/sch_fq.c."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar, Self

from emulator.qdisc import attributes

LIMIT, FLOW_LIMIT, RATE_ENABLE = 1, 2, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Fq:
    """Flows take turns, and one that just started goes first. Holds `limit` packets, `flow_limit` of one flow.

    `pacing`: hold each flow to the rate that its socket asks for.
    """

    kind: ClassVar[str] = "fq"
    kernel_chooses: ClassVar[frozenset[str]] = frozenset()

    limit: int
    flow_limit: int
    pacing: bool = False

    def encode(self) -> bytes:
        """The payload of TCA_OPTIONS."""
        values = {LIMIT: self.limit, FLOW_LIMIT: self.flow_limit, RATE_ENABLE: self.pacing}
        return b"".join(attributes.pack(kind, struct.pack("=I", value)) for kind, value in values.items())

    @classmethod
    def decode(cls, options: bytes) -> Self:
        """What the kernel says of an fq."""
        found = attributes.unpack(options)
        limit, flow_limit, pacing = (struct.unpack("=I", found[kind])[0] for kind in (LIMIT, FLOW_LIMIT, RATE_ENABLE))
        return cls(limit=limit, flow_limit=flow_limit, pacing=bool(pacing))
