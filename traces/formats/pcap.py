"""Captures of a job's traffic: pcap and pcapng of its hosts or links, from which ranks, messages and collectives are found.

Headers are enough. The files are taken to have one clock, and a packet that is in several of them counts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from traces.files import Opened
from traces.program import Finding, Trace
from traces.wire import flows, jobs, records
from traces.wire.packets import Packets, Reader, Segments

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
    findings += [*_of_rdma(segments.packets, pieces.gaps), *_left_out(segments)]
    if pieces.resent:
        findings.append(Finding("resent", f"{pieces.resent} segments were sent again, and count once", "info"))
    if pieces.missing:
        text = f"{pieces.missing} bytes were sent, as the sequence numbers say, but no packet of the capture has them"
        findings.append(Finding("missing-packets", text))
    return replace(trace, findings=(*trace.findings, *findings))


def _of_rdma(packets: Packets, gaps: int) -> list[Finding]:
    if not packets.rdma:
        return []
    text = f"{packets.rdma} packets are RDMA: what sends and writes carry counts, by queue pair and packet number, and nothing else"
    findings = [Finding("rdma", text, "info")]
    if packets.rdma_reads:
        text = f"{packets.rdma_reads} packets are of RDMA reads or atomic operations, whose bytes were left out"
        findings.append(Finding("rdma-reads", text))
    if gaps:
        text = f"{gaps} numbers of RDMA packets were not seen: the capture missed them, or they are of reads"
        findings.append(Finding("missing-packets", text))
    return findings


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
    tcp = len(segments.at_ns) - packets.rdma_data
    other = packets.seen - tcp - packets.rdma - packets.too_many - packets.fragments
    if other:
        text = f"{other} packets are neither TCP over IP nor RDMA, or cut inside their headers, and were left out"
        findings.append(Finding("left-out", text))
    return findings
