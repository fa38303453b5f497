"""What the kernel knows of a TCP connection: struct tcp_info of include/uapi/linux/tcp.h, as far as Linux 5.5 has it."""

from __future__ import annotations

import socket
import struct

from replay.control import Flow
from replay.plan import Stream

_BYTES = ("state", "ca_state", "retransmits", "probes", "backoff", "options", "wscale", "flags")
_WORDS = (
    "rto", "ato", "snd_mss", "rcv_mss", "unacked", "sacked", "lost", "retrans", "fackets",
    "last_data_sent", "last_ack_sent", "last_data_recv", "last_ack_recv",
    "pmtu", "rcv_ssthresh", "rtt", "rttvar", "snd_ssthresh", "snd_cwnd", "advmss", "reordering",
    "rcv_rtt", "rcv_space", "total_retrans",
)  # fmt: skip
_RATES = ("pacing_rate", "max_pacing_rate", "bytes_acked", "bytes_received")
_SEGMENTS = ("segs_out", "segs_in", "notsent_bytes", "min_rtt", "data_segs_in", "data_segs_out")
_TIMES = ("delivery_rate", "busy_time", "rwnd_limited", "sndbuf_limited")
_DELIVERED = ("delivered", "delivered_ce")
_SENT = ("bytes_sent", "bytes_retrans")
_NAMES = (*_BYTES, *_WORDS, *_RATES, *_SEGMENTS, *_TIMES, *_DELIVERED, *_SENT)
_LAYOUT = struct.Struct("=8B24I4Q6I4Q2I2Q")


def flow(rank: int, stream: Stream, number: int, connection: socket.socket) -> Flow:
    """Reads TCP_INFO and the congestion control of `connection`, the `number`-th of its stream."""
    data = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAYOUT.size)
    info = dict(zip(_NAMES, _LAYOUT.unpack(data), strict=True))
    name = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    return Flow(
        rank=rank,
        peer=stream.peer,
        lane=stream.lane,
        p2p=stream.p2p,
        number=number,
        congestion=name.split(b"\0")[0].decode(),
        bytes_sent=info["bytes_sent"],
        bytes_acked=info["bytes_acked"],
        bytes_received=info["bytes_received"],
        bytes_retransmitted=info["bytes_retrans"],
        retransmits=info["total_retrans"],
        lost=info["lost"],
        delivered_ce=info["delivered_ce"],
        rtt_us=info["rtt"],
        rtt_var_us=info["rttvar"],
        min_rtt_us=info["min_rtt"],
        cwnd=info["snd_cwnd"],
        ssthresh=info["snd_ssthresh"],
        mss=info["snd_mss"],
        path_mtu=info["pmtu"],
        busy_us=info["busy_time"],
        receiver_limited_us=info["rwnd_limited"],
        buffer_limited_us=info["sndbuf_limited"],
    )
