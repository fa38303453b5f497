"""Captures of a job's traffic: pcap and pcapng of its hosts or links, from which ranks, messages and collectives are found.

Headers are enough. The files are taken to have one clock, and a packet that is in several of them counts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from traces.files import Opened
from traces.program import Finding, Trace
from traces.wire import flows, jobs, records
from traces.wire.packets import Reader, Segments

NAME = "pcap"
sniff = records.sniff


def read(files: Sequence[Opened]) -> Trace:
    """The job that was captured. Raises TraceError naming the packet that can't be one, or that no ranks talk."""
    reader = Reader()
    findings = []
    for opened in files:
        found = records.read(opened.data, opened.name)
        reader.add(opened.data, found, opened.name)
        if found.is_cut:
            findings.append(Finding("cut-file", f"{opened.name} ends inside a packet, which was left out"))
    segments = reader.segments()
    pieces = flows.pieces(segments)
    trace = jobs.trace(pieces, segments.addresses, ", ".join(opened.name for opened in files))
    if len(files) > 1:
        findings.append(Finding("assumed-clock", f"the {len(files)} captures were taken to have one clock", "info"))
    findings += _left_out(segments)
    if pieces.resent:
        findings.append(Finding("resent", f"{pieces.resent} segments were sent again, and count once", "info"))
    if pieces.missing:
        text = f"{pieces.missing} bytes were sent, as the sequence numbers say, but no packet of the capture has them"
        findings.append(Finding("missing-packets", text))
    return replace(trace, findings=(*trace.findings, *findings))


def _left_out(segments: Segments) -> list[Finding]:
    packets, findings = segments.packets, []
    if packets.odd:
        text = f"{packets.odd} packets have headers that only scapy reads, one packet after another"
        findings.append(Finding("slow-path", text, "info"))
    if packets.too_many:
        text = f"{packets.too_many} more have such headers, and were left out: capture inside of the tunnel, or for a shorter time"
        findings.append(Finding("too-many-odd", text))
    if packets.fragments:
        text = (
            f"{packets.fragments} packets are fragments of IP packets, and were left out: capture where they are whole"
        )
        findings.append(Finding("fragments", text))
    other = packets.seen - len(segments.at_ns) - packets.too_many - packets.fragments
    if other:
        text = f"{other} packets are not TCP over IP, or cut inside their headers, and were left out"
        findings.append(Finding("left-out", text))
    return findings
