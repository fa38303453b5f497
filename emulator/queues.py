"""What waits at a port: how much it holds, and when it begins to mark or drop; how a file says it.

queue: 512 KiB                                # or 100 packets, or unlimited
queue: {limit: 512 KiB, ecn: 65 KiB}          # ECN marks above a threshold, as DCTCP wants it
queue: {limit: 1 MiB, red: {min: 100 KiB, max: 300 KiB, probability: 10%, ecn: true}}   # random early detection
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from emulator.errors import NetworkError
from emulator.impairments import ALWAYS
from emulator.marked import Node
from emulator.units import Probability, Size

MOST = 2**31 - 1  # packets or bytes: red's thresholds have 31 bits (red_check_params in include/net/red.h)


@dataclass(frozen=True, slots=True)
class Early:
    """A port that marks (with `ecn`) or drops packets before it is full.

    It spares a packet that finds at most `minimum` bytes there, the packet being sent included, and takes each that finds
    more than `maximum`. Between the two, the packets taken are 1 to 1/p packets apart, and p grows from 0 to
    `probability`. Where both are the same it is a threshold. With `ecn`, what can't be marked is dropped.

    Sources: Floyd and Jacobson, "Random early detection gateways" (1993), section 4, without its average; the threshold
    is that of DCTCP (SIGCOMM 2010, section 3.1).
    """

    minimum: Size
    maximum: Size
    probability: Probability
    ecn: bool


@dataclass(frozen=True, slots=True)
class Queue:
    """What a port holds at most, the packet being sent included; what comes on top is dropped. `early` counts bytes, and
    so does the `limit` with it."""

    limit: int
    unit: Literal["bytes", "packets"]
    early: Early | None = None

    @classmethod
    def parse(cls, text: str) -> Queue:
        """Read "512 KiB" or "100 packets"."""
        number, _, word = text.strip().partition(" ")
        if word.strip() in ("packets", "packet"):
            if not number.isascii() or not number.isdigit() or not 1 <= int(number) <= MOST:
                raise NetworkError(f"'{text}' is not a queue limit: expected 1 to {MOST} packets")
            return cls(int(number), "packets")
        size = Size.parse(text)
        if size > MOST:
            raise NetworkError(f"'{text}' is not a queue limit: expected at most {MOST} B")
        return cls(size, "bytes")

    @property
    def spared(self) -> int:
        """How much of the limit is there before anything is marked or dropped."""
        return self.early.minimum if self.early else self.limit

    def __str__(self) -> str:
        limit = f"{self.limit} packets" if self.unit == "packets" else str(Size(self.limit))
        if self.early is None:
            return limit
        what = "ECN" if self.early.ecn else "drops"
        if self.early.minimum == self.early.maximum:
            return f"{limit}, {what} above {self.early.minimum}"
        return f"{limit}, {what} from {self.early.minimum} to {self.early.maximum}"


def read_queue(node: Node, packet: int) -> Queue:
    """The queue that a file asks for. `packet`: bytes of the largest packet, which has to fit. Raises NetworkError."""
    if not isinstance(node.value, Mapping):
        return _limit(node, packet)
    settings = node.mapping(("limit", "ecn", "red"))
    if "limit" not in settings or len(settings) > 2:
        raise node.error("expected 'limit', and 'ecn' or 'red'")
    queue = _limit(settings["limit"], packet)
    for name, place in settings.items():
        if name != "limit":
            early = _threshold(place) if name == "ecn" else _ramp(place)
            return Queue(queue.limit, queue.unit, _fitting(early, queue, packet, place))
    return queue


def _limit(node: Node, packet: int) -> Queue:
    queue = node.parse(Queue.parse)
    if queue.unit == "bytes" and queue.limit < packet:
        raise node.error(f"{queue} can't hold one packet of {packet} B")
    return queue


def _threshold(node: Node) -> Early:
    size = node.parse(Size.parse)
    return Early(size, size, Probability(ALWAYS), ecn=True)


def _ramp(node: Node) -> Early:
    settings = node.mapping(("min", "max", "probability", "ecn"))
    try:
        return Early(
            minimum=settings["min"].parse(Size.parse),
            maximum=settings["max"].parse(Size.parse),
            probability=settings["probability"].parse(Probability.parse),
            ecn="ecn" in settings and settings["ecn"].boolean(),
        )
    except KeyError:
        raise node.error("expected min, max, probability") from None


def _fitting(early: Early, queue: Queue, packet: int, place: Node) -> Early:
    """Early, if the queue can do that."""
    if queue.unit == "packets":
        raise place.error(f"it counts bytes: expected a limit in bytes, not {queue}")
    if not packet <= early.minimum <= early.maximum <= queue.limit:
        raise place.error(f"expected thresholds that rise, from one packet of {packet} B to the limit of {queue}")
    if not early.probability:
        raise place.error("a probability of 0 takes no packet between the thresholds: expected more")
    return early


def queue_to_plain(queue: Queue) -> object:
    """The queue as a file says it: `read_queue` of it gives it back."""
    early = queue.early
    if early is None:
        return str(queue)
    limit = str(Size(queue.limit))
    if early == Early(early.minimum, early.minimum, Probability(ALWAYS), ecn=True):
        return {"limit": limit, "ecn": str(early.minimum)}
    ramp = {"min": early.minimum, "max": early.maximum, "probability": early.probability, "ecn": str(early.ecn).lower()}
    return {"limit": limit, "red": {name: str(value) for name, value in ramp.items()}}
