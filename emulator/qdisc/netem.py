"""netem: delay, loss and rate of a link. Layouts from include/uapi/linux/pkt_sched.h, meaning from
net/sched/sch_netem.c.

Traps that this encoder is made for:
- A change keeps what it doesn't mention (rate, ECN, correlations, reorder, corrupt, slot, tables): every field is sent.
- A table can be replaced but not taken back, so jitter always comes with one, the uniform one too. The kernel doesn't
  report tables.
- A netem that duplicates can't share a device with a second netem on kernels of mid-2025 to mid-2026 (commit
  ec8e0e3d7ade, reverted by eda0b7f203bb): give each a device of its own.
- A packet's time on the wire is cut to whole ns: 123.04 becomes 123 at 100 Gbit/s (0.03 %), 15.38 becomes 15 at 800
  (2.5 %). The lab kernel carries what is cut over to the next packet (lab.patch), so there a train is exact to 1 ns.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar, Self

from emulator.errors import NetworkError
from emulator.impairments import NEVER, Event, FourState, GilbertElliott, Loss
from emulator.links import Distribution
from emulator.qdisc import attributes
from emulator.qdisc.distributions import table
from emulator.units import Duration, Probability, Rate

CORR, DELAY_DIST, REORDER, CORRUPT, LOSS, RATE, ECN, RATE64 = range(1, 9)
LATENCY64, JITTER64, SLOT, SLOT_DIST, PRNG_SEED = range(10, 15)
LOSS_GI, LOSS_GE = 1, 2
U32_MAX = 2**32 - 1
ZERO = Duration(0)
TICK_SHIFT = 6  # PSCHED_SHIFT: the old 32-bit fields count ticks of 64 ns


@dataclass(frozen=True, slots=True)
class Slot:
    """Packets leave in slots, like on a radio: at most `packets` and `bytes` in each (0: any number).

    The next slot opens after `min_delay` to `max_delay`, or with a `distribution` after `delay` spread by `jitter`.
    """

    min_delay: Duration = ZERO
    max_delay: Duration = ZERO
    packets: int = 0
    bytes: int = 0
    delay: Duration = ZERO
    jitter: Duration = ZERO
    distribution: Distribution | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Netem:
    """What netem does to each packet, in this order: duplicate, lose (with `ecn`: mark), corrupt, delay and send at
    `rate`.

    `limit` is in packets, those that are being delayed included; a GSO super-packet counts as one. `rate` is None for
    unlimited; a packet takes (bytes + `packet_overhead`) / rate, counted in cells of `cell_size` payload bytes and
    `cell_overhead` more where that isn't 0. With a rate, packets keep their order whatever the jitter. Of every `gap`
    packets one may be reordered. `seed` (Linux 6.6 on) None is the kernel's choice.
    """

    kind: ClassVar[str] = "netem"
    kernel_chooses: ClassVar[frozenset[str]] = frozenset({"seed"})

    limit: int = 1000
    delay: Duration = ZERO
    jitter: Duration = ZERO
    delay_correlation: Probability = NEVER
    distribution: Distribution = "uniform"
    loss: Loss | None = None
    ecn: bool = False
    duplicate: Event | None = None
    reorder: Event | None = None
    gap: int = 1
    corrupt: Event | None = None
    rate: Rate | None = None
    packet_overhead: int = 0
    cell_size: int = 0
    cell_overhead: int = 0
    slot: Slot | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.rate is not None and (self.rate == 0 or self.rate % 8):
            raise NetworkError(f"netem's rate counts whole bytes a second, {self.rate} is not")

    def encode(self) -> bytes:
        """The payload of TCA_OPTIONS."""
        random_loss = self.loss if isinstance(self.loss, Event) else None
        rate = self.rate // 8 if self.rate else 0
        slot = self.slot or Slot()
        parts = [
            struct.pack(
                "=6I",
                min(self.delay >> TICK_SHIFT, U32_MAX),
                self.limit,
                random_loss.probability if random_loss else 0,
                self.gap if self.reorder else 0,
                self.duplicate.probability if self.duplicate else 0,
                min(self.jitter >> TICK_SHIFT, U32_MAX),
            ),
            attributes.pack(
                CORR,
                struct.pack(
                    "=3I",
                    self.delay_correlation,
                    random_loss.correlation if random_loss else 0,
                    self.duplicate.correlation if self.duplicate else 0,
                ),
            ),
            attributes.pack(DELAY_DIST, table(self.distribution)) if self.jitter else b"",
            attributes.pack(REORDER, _pack_event(self.reorder)),
            attributes.pack(CORRUPT, _pack_event(self.corrupt)),
            _pack_markov(self.loss),
            attributes.pack(
                RATE,
                struct.pack("=IiIi", min(rate, U32_MAX), self.packet_overhead, self.cell_size, self.cell_overhead),
            ),
            attributes.pack(ECN, struct.pack("=I", self.ecn)),
            attributes.pack(RATE64, struct.pack("=Q", rate)) if rate > U32_MAX else b"",
            attributes.pack(LATENCY64, struct.pack("=q", self.delay)),
            attributes.pack(JITTER64, struct.pack("=q", self.jitter)),
            attributes.pack(
                SLOT,
                struct.pack(
                    "=qqiiqq", slot.min_delay, slot.max_delay, slot.packets, slot.bytes, slot.delay, slot.jitter
                ),
            ),
            attributes.pack(SLOT_DIST, table(slot.distribution)) if slot.distribution else b"",
            attributes.pack(PRNG_SEED, struct.pack("=Q", self.seed)) if self.seed is not None else b"",
        ]
        return b"".join(parts)

    @classmethod
    def decode(cls, options: bytes) -> Self:
        """What the kernel says of a netem; it doesn't say which tables it holds."""
        delay, limit, loss, gap, duplicate, jitter = struct.unpack_from("=6I", options)
        found = attributes.unpack(options[24:])
        delay_correlation, loss_correlation, duplicate_correlation = struct.unpack("=3I", found[CORR])
        rate, packet_overhead, cell_size, cell_overhead = struct.unpack("=IiIi", found[RATE])
        rate64 = struct.unpack("=Q", found[RATE64])[0] if RATE64 in found else rate
        return cls(
            limit=limit,
            delay=Duration(struct.unpack("=q", found[LATENCY64])[0] if LATENCY64 in found else delay << TICK_SHIFT),
            jitter=Duration(struct.unpack("=q", found[JITTER64])[0] if JITTER64 in found else jitter << TICK_SHIFT),
            delay_correlation=Probability(delay_correlation),
            loss=_unpack_markov(found[LOSS]) if LOSS in found else _event(loss, loss_correlation),
            ecn=ECN in found and any(found[ECN]),
            duplicate=_event(duplicate, duplicate_correlation),
            reorder=_event(*struct.unpack("=2I", found[REORDER])) if gap else None,
            gap=gap or 1,
            corrupt=_event(*struct.unpack("=2I", found[CORRUPT])),
            rate=Rate(8 * rate64) if rate64 else None,
            packet_overhead=packet_overhead,
            cell_size=cell_size,
            cell_overhead=cell_overhead,
            slot=_unpack_slot(found[SLOT]) if SLOT in found else None,
            seed=struct.unpack("=Q", found[PRNG_SEED])[0] if PRNG_SEED in found else None,
        )


def _pack_event(event: Event | None) -> bytes:
    return struct.pack("=2I", event.probability, event.correlation) if event else bytes(8)


def _event(probability: int, correlation: int) -> Event | None:
    return Event(Probability(probability), Probability(correlation)) if probability else None


def _pack_markov(loss: Loss | None) -> bytes:
    if isinstance(loss, GilbertElliott):
        # The kernel takes what is *kept* in the bad state, h = 1 - loss.
        kept = Probability.ALWAYS - loss.loss_bad
        model = struct.pack("=4I", loss.good_to_bad, loss.bad_to_good, kept, loss.loss_good)
        return attributes.pack(LOSS, attributes.pack(LOSS_GE, model))
    if isinstance(loss, FourState):
        model = struct.pack("=5I", loss.p13, loss.p31, loss.p32, loss.p14, loss.p23)
        return attributes.pack(LOSS, attributes.pack(LOSS_GI, model))
    return b""


def _unpack_markov(data: bytes) -> Loss:
    models = attributes.unpack(data)
    if LOSS_GE in models:
        p, r, h, k1 = (Probability(value) for value in struct.unpack("=4I", models[LOSS_GE]))
        return GilbertElliott(p, r, loss_good=k1, loss_bad=Probability(Probability.ALWAYS - h))
    p13, p31, p32, p14, p23 = (Probability(value) for value in struct.unpack("=5I", models[LOSS_GI]))
    return FourState(p13=p13, p31=p31, p32=p32, p23=p23, p14=p14)


def _unpack_slot(data: bytes) -> Slot | None:
    min_delay, max_delay, packets, size, delay, jitter = struct.unpack("=qqiiqq", data)
    if not (min_delay or max_delay or jitter):
        return None
    return Slot(Duration(min_delay), Duration(max_delay), packets, size, Duration(delay), Duration(jitter))
