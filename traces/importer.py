"""Recordings of one job, in whatever formats and files, to one Trace."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

from traces import clocks, formats
from traces.errors import TraceError
from traces.files import Opened, open_all
from traces.formats import flight_recorder, kineto, perfetto, pytorch_et, recorded
from traces.peers import resolved
from traces.program import UNROOTED, Collective, Finding, Group, Program, Recv, Send, Source, StepMark, Trace
from traces.pytorch.calls import MAX_RANKS, UNKNOWN, Call
from traces.recording import GroupInfo, Recording
from traces.timeline import program, untimed

_KNOWN = f"known: {', '.join(formats.FORMATS)}"
_WORLD = ""  # the name of calls whose recording leaves the group out: they are of all ranks


@dataclass(frozen=True, slots=True)
class _Rank:
    """All there is of one rank: what was called, and the recording that has times, if any does."""

    rank: int
    calls: tuple[Call, ...]
    timed: Recording | None
    recordings: tuple[Recording, ...]
    findings: tuple[Finding, ...] = ()


def import_files(
    paths: Sequence[Path], *, format_name: str | None = None, provenance: Mapping[str, str] | None = None
) -> Trace:
    """Read the files, folders and archives in `paths`, which together are one job.

    Files of one rank are joined: times from Kineto, what Kineto leaves out from the execution trace. A rank that is
    missing is not an error here: `traces.checks` says so. Raises TraceError naming the file and place of what can't be
    read.
    """
    recordings: list[Recording] = []
    written: list[Opened] = []  # files that hold programs, all in the format `holds`
    holds: formats.ProgramFormat | None = None
    sources: list[Source] = []
    findings: list[Finding] = []
    for stream in open_all(paths):
        if perfetto.is_drawn(stream.head):
            text = "was drawn by `tracebed export --to perfetto`: it is to look at, no recording"
            raise TraceError(text, file=stream.name, mend="use the .trace that it was drawn from")
        known = formats.choose(stream.head, format_name)
        if (
            known is not None
            and sources
            and sources[-1].format != known.name
            and (holds or isinstance(known, formats.ProgramFormat))
        ):
            text = f"is {known.name}, and {sources[-1].name} is {sources[-1].format}: not of one job"
            raise TraceError(text, file=stream.name)
        if isinstance(known, formats.ProgramFormat):
            holds = known
            written.append(stream.whole())
        elif isinstance(known, formats.StreamFormat):
            recordings.append(known.read(stream.blocks(), stream.name))
        elif known is not None:
            recordings.append(known.read(stream.whole().data, stream.name))
        elif stream.is_named:
            raise TraceError("not a recording in a known format", file=stream.name, mend=_KNOWN)
        else:
            findings.append(Finding("skipped-file", f"{stream.name} is in no known format and was left out", "info"))
            continue
        sources.append(Source(stream.name, stream.sha256(), known.name))
    if holds is not None:
        trace = holds.read(written)
        said = (*findings, *trace.findings)
        return replace(trace, sources=tuple(sources), findings=said, provenance=dict(provenance or {}))
    if not recordings:
        raise TraceError("no recording in a known format", file=", ".join(map(str, paths)), mend=_KNOWN)
    ranks_of = _ranks_of(recordings)
    ranks = _join(recordings, ranks_of)
    told = max([*(r.world_size for r in recordings), *_group_sizes(recordings)])
    world_size = max(told, max(ranks) + 1)
    if told == UNKNOWN:
        findings.append(Finding("assumed-world-size", f"no file says how many ranks there are; {world_size} it is"))
    if world_size > MAX_RANKS:
        files = ", ".join(recording.file for recording in recordings)
        raise TraceError(f"{world_size} ranks; no job has more than {MAX_RANKS}", file=files)
    called, said = _called(ranks, {group.name for r in recordings for group in r.groups}, world_size)
    findings += said
    groups = _groups(recordings, called, world_size)
    programs: dict[int, Program] = {}
    for rank, joined in ranks.items():
        calls, said = _renamed(joined.calls, groups, world_size, joined.recordings[0].file)
        findings += [replace(finding, rank=rank) for finding in said]
        said_of_files = [finding for recording in joined.recordings for finding in recording.findings]
        findings += [replace(finding, rank=rank) for finding in (*joined.findings, *said_of_files)]
        source = recordings.index(joined.timed or joined.recordings[0])
        if joined.timed is not None and joined.timed.timeline is not None:
            programs[rank], said = program(joined.timed.timeline(calls), rank, groups, source=source)
        else:
            programs[rank], said = untimed(calls, rank, groups, source=source)
        findings += [replace(finding, rank=rank) for finding in said]
    hosts = {rank: joined.timed.host for rank, joined in ranks.items() if joined.timed and joined.timed.host}
    aligned = clocks.align(programs, hosts)
    programs, said = resolved(aligned.programs)
    findings += [*aligned.findings, *said]
    if not any(isinstance(op, Collective | Send | Recv) for p in programs.values() for op in p.ops):
        text = "no communication is recorded here"
        mend = "record with the distributed backend up, and with record_shapes"
        if told == UNKNOWN and any(recording.calls for recording in recordings):
            text, mend = f"no file says that there are more ranks than {world_size}", "import the files of all ranks"
        raise TraceError(text, file=", ".join(source.name for source in sources), mend=mend)
    return Trace(
        world_size=world_size,
        groups=tuple(sorted(set(groups.values()), key=lambda group: group.id)),
        programs=programs,
        step_count=min(sum(isinstance(op, StepMark) for op in p.ops) for p in programs.values()),
        sources=tuple(replace(source, rank=rank) for source, rank in zip(sources, ranks_of, strict=True)),
        findings=_merged(findings, len(programs)),
        hosts=hosts,
        clock_residual_ns=aligned.after_ns,
        provenance={**(provenance or {}), clocks.STARTED: str(aligned.started_ns)},
    )


def _merged(findings: Sequence[Finding], ranks: int) -> tuple[Finding, ...]:
    """What every rank's recording says in the same words is said once, of no rank in particular."""
    same = Counter(replace(finding, rank=UNKNOWN) for finding in findings)
    return tuple(
        dict.fromkeys(
            replace(finding, rank=UNKNOWN) if same[replace(finding, rank=UNKNOWN)] == ranks else finding
            for finding in findings
        )
    )


def _ranks_of(recordings: Sequence[Recording]) -> list[int]:
    """Each recording's rank: as it says itself, by the process it was made in, or as its file's name says."""
    by_pid: dict[int, set[int]] = {}
    for recording in recordings:
        if recording.rank != UNKNOWN:
            by_pid.setdefault(recording.pid, set()).add(recording.rank)
    found = []
    for recording in recordings:
        same_process = by_pid.get(recording.pid, set())
        named = _rank_in_name(recording.file)
        if recording.rank != UNKNOWN:
            found.append(recording.rank)
        elif recording.pid != UNKNOWN and len(same_process) == 1:
            found.append(min(same_process))
        elif named is not None:
            found.append(named)
        elif (caller := _caller(recording)) is not None:
            found.append(caller)
        elif len(recordings) == 1:
            found.append(0)
        else:
            raise TraceError("which rank this is can't be told", file=recording.file, mend="name it rank-N.json")
    return found


def _caller(recording: Recording) -> int | None:
    """The caller's rank in the group that all its calls are of, which `_renamed` takes as the one of all ranks."""
    groups = {call.group for call in recording.calls if call.kind != "wait" and call.group_size != 1}
    called = {c.root for c in recording.calls if c.kind in UNROOTED and c.group_size != 1 and c.root != UNKNOWN}
    return min(called) if len(groups) == 1 and len(called) == 1 else None


def _rank_in_name(file: str) -> int | None:
    """The rank a file's name gives: the number behind "rank", else the one that ends it ("et_3.json")."""
    stem = re.sub(r"(\.pt)?(\.trace)?\.(json|pkl|pickle)$", "", file)
    found = re.search(r"rank[-_. ]?(\d+)", stem) or re.search(r"[-_](\d+)$", stem) or re.search(r"^[a-z_]+(\d+)$", stem)
    return int(found.group(1)) if found else None


def _join(recordings: Sequence[Recording], ranks_of: Sequence[int]) -> dict[int, _Rank]:
    by_rank: dict[int, list[Recording]] = {}
    for recording, rank in zip(recordings, ranks_of, strict=True):
        by_rank.setdefault(rank, []).append(recording)
    joined = {}
    for rank, given in sorted(by_rank.items()):
        # What a flight recorder keeps, each of the others has in full, and no ids join it to them.
        mine = [recording for recording in given if recording.format != flight_recorder.NAME] or given
        _once(rank, mine)
        timed = next((recording for recording in sorted(mine, key=_precision) if recording.timeline is not None), None)
        described = next((recording for recording in mine if recording is not timed), None)
        calls = _described(timed, described) if timed and described else mine[0].calls
        text = "flight recorder dumps were left out: other recordings of the rank hold what they keep"
        said = (Finding("skipped-file", text, "info"),) if len(mine) < len(given) else ()
        joined[rank] = _Rank(rank, calls, timed, tuple(mine), said)
    return joined


def _once(rank: int, mine: Sequence[Recording]) -> None:
    by_format: dict[str, Recording] = {}
    for recording in mine:
        other = by_format.setdefault(recording.format, recording)
        if other is not recording:
            raise TraceError(f"rank {rank} is given twice, also by {other.file}", file=recording.file)


def _precision(recording: Recording) -> int:
    """Kineto first: it saw what ran on the GPU, and when the host launched it, which a linked trace lost; our own
    recorder saw only what the host asked for."""
    return (kineto.NAME, pytorch_et.NAME, flight_recorder.NAME, recorded.NAME).index(recording.format)


def _described(timed: Recording, described: Recording) -> tuple[Call, ...]:
    """The timed recording's calls with what the other one says of them: by event id, or in order where ids don't meet.

    Kineto files of 2023 have no "Record function id"; both observers then see the same calls in the same order.
    """
    by_event = {call.event: call for call in described.calls}
    if described.format == recorded.NAME:
        return _in_order(timed, described)
    if all(call.event in by_event for call in timed.calls):
        return tuple(_fuller(call, by_event[call.event]) for call in timed.calls)
    if len(timed.calls) != len(described.calls):
        raise TraceError(
            f"{len(timed.calls)} calls here, {len(described.calls)} in {described.file}, and no ids to join them by",
            file=timed.file,
        )
    for index, (ours, theirs) in enumerate(zip(timed.calls, described.calls, strict=True)):
        if (ours.kind == "wait") != (theirs.kind == "wait"):
            raise TraceError(f"is not the same call as in {described.file}", file=timed.file, place=f"call {index}")
    return tuple(_fuller(ours, theirs) for ours, theirs in zip(timed.calls, described.calls, strict=True))


def _in_order(timed: Recording, described: Recording) -> tuple[Call, ...]:
    """Our own recorder starts before a profiler does and counts no waits: the last of its calls are the profiler's."""
    starts = [call for call in timed.calls if call.kind != "wait"]
    ours = iter(described.calls[len(described.calls) - len(starts) :] if len(starts) <= len(described.calls) else ())
    joined = []
    for index, call in enumerate(timed.calls):
        if call.kind != "wait":
            same = next(ours, None)
            if same is None or same.kind != call.kind:
                raise TraceError(f"is not the same call as in {described.file}", file=timed.file, place=f"call {index}")
            call = replace(_fuller(call, same), seq=call.seq, event=call.event)
        joined.append(call)
    return tuple(joined)


def _fuller(timed: Call, described: Call) -> Call:
    """The description, with the flags and the group that only the timed file may have."""
    return replace(
        described,
        group=timed.group or described.group,
        is_async=described.is_async if timed.is_async is None else timed.is_async,
    )


def _group_sizes(recordings: Sequence[Recording]) -> list[int]:
    called = [call.group_size for recording in recordings for call in recording.calls]
    return called + [max(group.ranks, default=-1) + 1 for recording in recordings for group in recording.groups]


def _called(
    ranks: Mapping[int, _Rank], listed: Set[str], world_size: int
) -> tuple[list[GroupInfo], tuple[Finding, ...]]:
    """Groups of which flight recorders keep the name only: with all ranks' dumps, they are of the ranks that call them."""
    callers: dict[str, list[int]] = {}
    if set(ranks) == set(range(world_size)):
        for rank, joined in ranks.items():
            if joined.recordings[0].format == flight_recorder.NAME:
                for name in {call.group for call in joined.calls} - listed - {_WORLD}:
                    callers.setdefault(name, []).append(rank)
    text = "no dump lists the ranks of its process groups; they were taken to be of the ranks that call them"
    return (
        [GroupInfo(name, "", tuple(callers[name])) for name in sorted(callers)],
        (Finding("assumed-group", text, "info"),) if callers else (),
    )


def _groups(recordings: Sequence[Recording], called: Sequence[GroupInfo], world_size: int) -> dict[str, Group]:
    """The job's groups by recorded name, each a lane of its own; the world also under _WORLD."""
    listed = {info.name: Group(n, info.name, info.ranks, n, info.description) for n, info in enumerate(called)}
    for recording in recordings:
        for info in recording.groups:
            known = listed.get(info.name)
            if known is None:
                listed[info.name] = Group(len(listed), info.name, info.ranks, len(listed), info.description)
            elif known.ranks != info.ranks:
                raise TraceError(
                    f"process group {info.name!r} has ranks {info.ranks} here, {known.ranks} elsewhere",
                    file=recording.file,
                )
    everyone = tuple(range(world_size))
    world = next((group for group in listed.values() if group.ranks == everyone), None)
    listed[_WORLD] = world or Group(len(listed), "0", everyone, len(listed), "default_pg")
    return listed


def _renamed(
    calls: tuple[Call, ...], groups: Mapping[str, Group], world_size: int, file: str
) -> tuple[tuple[Call, ...], tuple[Finding, ...]]:
    """Calls with names of known groups; execution traces before 1.0.3 name a group by a pointer of that process."""
    unknown: dict[str, int] = {}
    for call in calls:
        if call.kind != "wait" and call.group and call.group not in groups:
            unknown[call.group] = max(call.group_size, unknown.get(call.group, UNKNOWN))
    names: dict[str, str] = {}
    for name, size in unknown.items():
        if size == world_size or (size == UNKNOWN and len(unknown) == 1):
            names[name] = _WORLD
        elif size != 1:
            text = f"no file says which ranks are in process group {name!r}"
            raise TraceError(text, file=file, mend="import the files of all ranks, or record with torch 2.2 or newer")
    text = "process groups that are named by a pointer were taken to be the one of all ranks"
    return (
        tuple(replace(call, group=names.get(call.group, call.group)) for call in calls),
        (Finding("assumed-group", text, "info"),) if names else (),
    )
