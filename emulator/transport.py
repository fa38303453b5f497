"""How messages go from rank to rank, and what they cost the hosts besides the wire.

tcp: {congestion: cubic, buffer: 16 MiB, ecn: true, streams: 4, mss: 1000, nodelay: false, delayed_ack: false,
      initial_window: 32, initial_receive_window: 64, pacing: 5 gbit}
transport: rdma                       # or tcp
rdma: {recovery: go-back-n, congestion: dcqcn, lossless: true}
costs: {message: 630 ns, copy: 40 gbit, stream: 16.5 gbit, reduce: unlimited}   # of every host, or none
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal

from emulator.links import UNLIMITED, Settings, read_rate
from emulator.marked import Node
from emulator.units import Duration, Rate, Size

Congestion = Literal["cubic", "reno", "bbr", "dctcp"]
AUTO = "auto"
NONE = "none"
CONGESTION: tuple[Congestion, ...] = ("cubic", "reno", "bbr", "dctcp")
Kind = Literal["tcp", "rdma"]
KINDS: tuple[Kind, ...] = ("tcp", "rdma")
Recovery = Literal["go-back-n", "selective-repeat"]
RECOVERIES: tuple[Recovery, ...] = ("go-back-n", "selective-repeat")
RdmaCongestion = Literal["none", "dcqcn"]
RDMA_CONGESTION: tuple[RdmaCongestion, ...] = ("none", "dcqcn")
MAX_STREAMS = 64
"""As many as NCCL allows, sockets and threads together (MAX_SOCKETS, net_socket.cc)."""
MSS = 88, 32767
"""What TCP_MAXSEG takes, in bytes (TCP_MIN_MSS, MAX_TCP_WINDOW; include/net/tcp.h)."""
MAX_WINDOW = 2**16
"""Segments: 95 MB of Ethernet's, more than any path of ours holds before its first acknowledgement."""


@dataclass(frozen=True, slots=True)
class Tcp:
    """TCP on every host. None leaves it to the kernel.

    `buffer` is what a socket may hold each way (tcp_rmem, tcp_wmem); Linux counts its own bookkeeping in, which leaves some
    0.7 of it for bytes. `ecn`: connections ask for congestion to be marked (RFC 3168), as DCTCP always does. `streams`:
    connections of two ranks for one lane, each of which takes a part of every message of 128 KiB or more. `mss`: the most that
    a segment carries, in bytes (TCP_MAXSEG), TCP's options included. `nodelay`: small segments don't wait for
    acknowledgements (the rule of RFC 896 is off). `delayed_ack`: a lone segment's acknowledgement waits for another (RFC 1122);
    without it each is acknowledged at once (RTAX_QUICKACK). `initial_window`: segments that are sent before the first
    acknowledgement (RTAX_INITCWND), Linux's 10 (RFC 6928) if None; a receiver lets no more than 64 KiB come then, and no more
    than `initial_receive_window` segments (RTAX_INITRWND). `pacing`: what a connection sends at most, evenly spaced
    (SO_MAX_PACING_RATE).
    """

    congestion: Congestion
    buffer: Size | None
    ecn: bool
    streams: int = 1
    mss: int | None = None
    nodelay: bool = True
    delayed_ack: bool = True
    initial_window: int | None = None
    initial_receive_window: int | None = None
    pacing: Rate | None = None


@dataclass(frozen=True, slots=True)
class Rdma:
    """A reliable connection of network cards.

    `recovery`: what is sent again after a loss, all from there on or what is missing. `congestion`: what slows a sender down,
    DCQCN (SIGCOMM 2015) on ECN marks or nothing. `lossless`: the fabric holds senders back and drops nothing, as InfiniBand
    does by credits and Ethernet by priority flow control (IEEE 802.1Qbb).
    """

    recovery: Recovery
    congestion: RdmaCongestion
    lossless: bool


@dataclass(frozen=True, slots=True)
class Costs:
    """What a host takes besides the wire.

    `message`: for each message, from one rank to another, on both hosts together, half on each. `copy`: how fast a host moves
    bytes between the network and its ranks' memory, each way; `stream`: how fast one of its cores does, and each connection
    has one each way; `reduce`: how fast a rank adds up what it gets. None is unlimited.
    """

    message: Duration
    copy: Rate | None
    reduce: Rate | None
    stream: Rate | None = None


NO_COSTS = Costs(Duration(0), None, None)


KEYS = ("tcp", "transport", "rdma", "costs")


def read_tcp(layers: Sequence[Settings]) -> Tcp:
    """The TCP that `layers` of a file's top level make, later ones over earlier ones. Raises NetworkError, as all here do."""
    settings = _merged(layers, "tcp", tuple(field.name for field in fields(Tcp)))
    buffer = settings.get("buffer")
    congestion: Congestion = settings["congestion"].choice(CONGESTION) if "congestion" in settings else "cubic"
    ecn = settings["ecn"].boolean() if "ecn" in settings else congestion == "dctcp"
    if congestion == "dctcp" and not ecn:
        raise settings["ecn"].error("dctcp is told of congestion by ECN alone: leave this out, or set it to true")
    return Tcp(
        congestion=congestion,
        buffer=None if buffer is None or buffer.value == AUTO else buffer.parse(Size.parse),
        ecn=ecn,
        streams=settings["streams"].integer(1, MAX_STREAMS) if "streams" in settings else 1,
        mss=_or_auto(settings, "mss", *MSS),
        nodelay=_flag(settings, "nodelay"),
        delayed_ack=_flag(settings, "delayed_ack"),
        initial_window=_or_auto(settings, "initial_window", 1, MAX_WINDOW),
        initial_receive_window=_or_auto(settings, "initial_receive_window", 1, MAX_WINDOW),
        pacing=read_rate(settings["pacing"]) if "pacing" in settings else None,
    )


def _or_auto(settings: Mapping[str, Node], key: str, least: int, most: int) -> int | None:
    if key not in settings or settings[key].value == AUTO:
        return None
    return settings[key].integer(least, most)


def _flag(settings: Mapping[str, Node], key: str) -> bool:
    return key not in settings or settings[key].boolean()


def read_kind(layers: Sequence[Settings]) -> Kind:
    """Which transport the layers ask for."""
    asked = [layer["transport"] for layer in layers if "transport" in layer]
    return asked[-1].choice(KINDS) if asked else "tcp"


def read_rdma(layers: Sequence[Settings]) -> Rdma:
    """The RDMA that the layers make."""
    settings = _merged(layers, "rdma", ("recovery", "congestion", "lossless"))
    return Rdma(
        recovery=settings["recovery"].choice(RECOVERIES) if "recovery" in settings else "go-back-n",
        congestion=settings["congestion"].choice(RDMA_CONGESTION) if "congestion" in settings else "none",
        lossless="lossless" in settings and settings["lossless"].boolean(),
    )


def read_costs(layers: Sequence[Settings]) -> Costs:
    """The costs that the layers make; what none of them says is free. `costs: none` takes back what the layers before it say."""
    layers = list(layers)
    for at, layer in enumerate(layers):
        if "costs" in layer and layer["costs"].value == NONE:
            layers[: at + 1] = [{key: node for key, node in one.items() if key != "costs"} for one in layers[: at + 1]]
    settings = _merged(layers, "costs", ("message", "copy", "stream", "reduce"))
    return Costs(
        message=settings["message"].parse(Duration.parse) if "message" in settings else Duration(0),
        copy=read_rate(settings["copy"]) if "copy" in settings else None,
        reduce=read_rate(settings["reduce"]) if "reduce" in settings else None,
        stream=read_rate(settings["stream"]) if "stream" in settings else None,
    )


def _merged(layers: Sequence[Settings], key: str, allowed: tuple[str, ...]) -> Mapping[str, Node]:
    settings: dict[str, Node] = {}
    for layer in layers:
        if key in layer:
            settings.update(layer[key].mapping(allowed))
    return settings


def transport_to_plain(tcp: Tcp, kind: Kind, rdma: Rdma, costs: Costs) -> dict[str, object]:
    """The top-level keys of a file that say all this, every value in full."""
    return {
        "tcp": {
            "congestion": tcp.congestion,
            "buffer": AUTO if tcp.buffer is None else str(tcp.buffer),
            "ecn": str(tcp.ecn).lower(),
            "streams": tcp.streams,
            "mss": AUTO if tcp.mss is None else tcp.mss,
            "nodelay": str(tcp.nodelay).lower(),
            "delayed_ack": str(tcp.delayed_ack).lower(),
            "initial_window": AUTO if tcp.initial_window is None else tcp.initial_window,
            "initial_receive_window": AUTO if tcp.initial_receive_window is None else tcp.initial_receive_window,
            "pacing": UNLIMITED if tcp.pacing is None else str(tcp.pacing),
        },
        "transport": kind,
        "rdma": {
            "recovery": rdma.recovery,
            "congestion": rdma.congestion,
            "lossless": str(rdma.lossless).lower(),
        },
        "costs": {
            "message": str(costs.message),
            "copy": UNLIMITED if costs.copy is None else str(costs.copy),
            "stream": UNLIMITED if costs.stream is None else str(costs.stream),
            "reduce": UNLIMITED if costs.reduce is None else str(costs.reduce),
        },
    }
