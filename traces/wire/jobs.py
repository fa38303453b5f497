"""The job in pieces of flows: its ranks, its steps, in each phase a collective or messages, and what was taken for what."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from traces.errors import TraceError
from traces.program import Finding, Trace
from traces.wire.flows import Pieces
from traces.wire.messages import messages
from traces.wire.patterns import SURE, Match, all_to_all, parameter_server, pipeline, rings
from traces.wire.phases import Phase, Traffic, period, phases, repaired, silence_ns
from traces.wire.programs import Writer, all_reduce_bytes, together

_BYSTANDER = 100
"""An address with less than this part of the busiest one's bytes is no rank."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a pattern was taken for, with numbers and in words."""

    match: Match
    text: str


def trace(pieces: Pieces, addresses: Sequence[str], file: str) -> Trace:
    """The job. Raises TraceError where no two addresses talk to each other."""
    pieces, hosts, findings = _ranks(pieces, addresses, file)
    gap_ns = silence_ns(pieces)
    found = repaired(pieces, phases(pieces, gap_ns, len(hosts)), len(hosts))
    returns = period(found)
    findings += _said_of_time(found, gap_ns, returns)
    length, ahead, steps = returns or (len(found), 0, 1)
    writer = Writer(len(hosts), int(pieces.first_ns[0]))
    seen: list[_Seen] = []
    left: list[Phase] = []
    for number, phase in enumerate(found[: ahead + length * steps], 1):
        matches = _collectives(pieces, phase)
        for match in matches:
            writer.collective(pieces, phase, match)
            seen.append(_Seen(match, _text(match)))
        if not matches:
            writer.messages(messages(pieces, phase, gap_ns))
            left.append(phase)
        if number > ahead and (number - ahead) % length == 0:
            writer.step()
    findings += [*_recognised(seen), *_left(left)]
    return Trace(
        world_size=len(hosts),
        groups=writer.groups(),
        programs=writer.programs(),
        step_count=writer.steps,
        findings=tuple(findings),
        hosts=dict(enumerate(hosts)),
    )


def _ranks(pieces: Pieces, addresses: Sequence[str], file: str) -> tuple[Pieces, list[str], list[Finding]]:
    """The pieces between ranks, by rank: addresses in the order of their numbers, without those that hardly talk."""
    apart = pieces.source != pieces.target
    volume = np.zeros(len(addresses), np.int64)
    for side in (pieces.source, pieces.target):
        np.add.at(volume, side[apart], pieces.nbytes[apart])
    busy = [n for n, nbytes in enumerate(volume.tolist()) if nbytes and nbytes * _BYSTANDER >= volume.max()]
    if not busy:
        mend = "ranks are told by their addresses: capture between hosts, namespaces or containers"
        raise TraceError("no bytes of TCP or RDMA between two addresses", file=file, mend=mend)
    hosts = sorted(busy, key=lambda n: int(ipaddress.IPv6Address(_as_ipv6(addresses[n]))))
    rank_of = np.full(len(addresses), -1, np.int64)
    rank_of[hosts] = np.arange(len(hosts))
    source, target = rank_of[pieces.source], rank_of[pieces.target]
    kept = apart & (source >= 0) & (target >= 0)
    text = f"{len(hosts)} addresses are the ranks, one each, in the order of their numbers"
    findings = [Finding("assumed-ranks", text, "info")]
    out = int(pieces.nbytes[~kept].sum())
    if out:
        text = f"{out} bytes were left out: of addresses with under 1 % of the busiest one's, or to themselves"
        findings.append(Finding("left-out", text, "info"))
    between = replace(
        pieces,
        source=source[kept],
        target=target[kept],
        first_ns=pieces.first_ns[kept],
        last_ns=pieces.last_ns[kept],
        nbytes=pieces.nbytes[kept],
    )
    return between, [addresses[n] for n in hosts], findings


def _as_ipv6(address: str) -> str:
    return address if ":" in address else f"::ffff:{address}"


def _said_of_time(found: Sequence[Phase], gap_ns: int | None, returns: tuple[int, int, int] | None) -> list[Finding]:
    text = "a rank computes from when it has all that it was sent until it next sends; before the first packet nothing is known"
    findings = [Finding("assumed-compute", text, "info")]
    if gap_ns is None:
        findings.append(Finding("no-silence", "no silence parts the traffic: all of it is one phase"))
    else:
        text = f"{len(found)} phases of traffic, parted by silences of all ranks of more than {gap_ns / 1000:.0f} us"
        findings.append(Finding("assumed-silence", text, "info"))
    if returns is None:
        findings.append(Finding("no-steps", "the traffic does not return in a period: all of it is one step"))
    else:
        length, ahead, steps = returns
        text = f"{steps} steps of {length} phases, as the traffic returns, and {ahead} phases ahead in the first"
        findings.append(Finding("assumed-steps", f"{text}; a step ends with its last byte", "info"))
        behind = len(found) - ahead - length * steps
        if behind:
            findings.append(Finding("left-out", f"{behind} phases behind the last whole step were left out"))
    return findings


def _collectives(pieces: Pieces, phase: Phase) -> list[Match]:
    """The collectives that make up a phase, or none."""
    found = rings(phase.traffic)
    if found and all(match.confidence >= SURE and together(pieces, phase, match) for match in found):
        return found
    everybody = all_to_all(phase.traffic)
    return [everybody] if everybody is not None and everybody.confidence >= SURE else []


def _text(match: Match) -> str:
    ranks = " ".join(map(str, match.ranks))
    if match.pattern == "ring":
        same = "a reduce_scatter and an all_gather, or shifts round the ring, look the same"
        if len(match.ranks) == 2:
            same = "any exchange of two looks the same"
        return f"ring of ranks {ranks}: taken to be an all_reduce of {all_reduce_bytes(match)} bytes ({same})"
    if match.pattern == "all-to-all":
        same = "an all_gather without a ring looks the same"
        return f"all-to-all of ranks {ranks}: about {match.nbytes:.0f} bytes from each to each ({same})"
    if match.pattern == "parameter server":
        servers = " ".join(map(str, match.servers))
        same = " (a pipeline of three looks the same)" if len(match.ranks) == 3 else ""
        return f"parameter server: rank {servers} serves {len(match.ranks) - len(match.servers)} workers{same}"
    return f"pipeline of ranks {ranks}"


def _recognised(seen: Sequence[_Seen]) -> list[Finding]:
    by_text: dict[str, list[float]] = {}
    for one in seen:
        by_text.setdefault(one.text, []).append(one.match.confidence)
    return [
        Finding("recognised", f"{text}; {len(sure)} times, confidence {min(sure):.3f}", "info")
        for text, sure in by_text.items()
    ]


def _left(left: Sequence[Phase]) -> list[Finding]:
    """What the phases are that stay messages."""
    if not left:
        return []
    traffic: Traffic = {}
    for phase in left:
        for pair, nbytes in phase.traffic.items():
            traffic[pair] = traffic.get(pair, 0) + nbytes
    text = f"{len(left)} phases stay messages; bytes without a pause between are one message"
    findings = [Finding("assumed-messages", text, "info")]
    for match in (parameter_server(traffic), pipeline(traffic)):
        if match is not None and match.confidence >= SURE:
            about = f"about {match.nbytes:.0f} bytes a pair and way in all, confidence {match.confidence:.3f}"
            return [*findings, Finding("recognised", f"{_text(match)}; {about}", "info")]
    return [*findings, Finding("not-recognised", "no pattern is clear in the phases that stay messages")]
