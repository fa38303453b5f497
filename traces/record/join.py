"""The files that a job's ranks wrote, to one trace."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from traces import steps
from traces.errors import TraceError
from traces.importer import import_files
from traces.program import Finding, Trace
from traces.record.launch import HOROVOD_TIMELINE


@dataclass(frozen=True, slots=True)
class Overhead:
    """What recording cost, the rank with the most: operations, and ns spent in the hook of `elapsed_ns` between marks."""

    operations: int
    spent_ns: int
    elapsed_ns: int


@dataclass(frozen=True, slots=True, order=True)
class _Head:
    """Whose file it is: the rank, which start of it, when this began, the backend."""

    rank: int
    attempt: int
    begun: int
    library: str
    path: Path


def join(
    folder: Path,
    *,
    warmup: int = 0,
    only: tuple[int, int] | None = None,
    provenance: Mapping[str, str] | None = None,
) -> Trace:
    """The trace of the ranks in `folder`, with the steps `only` (first, beyond last) or all behind the first `warmup`.

    Where ranks ended at different steps, those that all have completed. Raises TraceError.
    """
    written = [_head(path) for path in sorted(folder.glob("rank-*.jsonl"))]
    timeline = folder / HOROVOD_TIMELINE
    timelines = [timeline] if timeline.exists() else []
    used = [head for head in written if head.library != "mpi"] or ([] if timelines else written)
    newest: dict[int, _Head] = {}
    for head in used:
        newest[head.rank] = max(newest.get(head.rank, head), head)
    older = len(used) - len(newest)
    if not newest and not timelines:
        raise TraceError(
            "no rank wrote anything: no process group was made and mpi4py was not used, or the job's Python does not "
            "read PYTHONPATH (-I, -E)",
            file=folder,
        )
    profiles = sorted(folder.glob("kineto-rank-*.json"))
    paths = [*(head.path for head in newest.values()), *profiles] if newest else timelines
    trace = import_files(paths, provenance=provenance)
    said = []
    if len(used) < len(written) or (newest and timelines):
        text = "the job communicated through another library, too (MPI or Horovod); that is not in the trace"
        said.append(Finding("other-library", text))
    if profiles:  # they hold only the steps that are asked for
        warmup, only = 0, None
    if older:
        said.append(Finding("restarted", f"{older} recordings are of ranks that were started again; left out", "info"))
    if trace.step_count and any(next(_marks(head.path), None) is None for head in newest.values()):
        text = "no step was completed by all ranks, so all that was recorded is one step"
        said.append(Finding("no-whole-step", text))
    first, last = only if only is not None else (warmup, trace.step_count)
    last = min(last, trace.step_count)
    if first >= last:
        text = f"there are {trace.step_count} steps, too few to leave out the first {first}; all were kept"
        said.append(Finding("short-recording", text))
        first, last = 0, trace.step_count
    cut = steps.select(trace, first, last)
    return replace(cut, findings=(*cut.findings, *said))


def overhead(folder: Path) -> Overhead:
    """What recording cost at most; nothing where no step was marked twice."""
    worst = Overhead(0, 0, 0)
    for path in folder.glob("rank-*.jsonl"):
        marks = [json.loads(line) for line in _marks(path)]
        if len(marks) > 1:
            (_, _, begun, before, spent), (_, _, ended, after, all_spent) = marks[0], marks[-1]
            worst = max(worst, Overhead(after - before, all_spent - spent, ended - begun), key=lambda one: one.spent_ns)
    return worst


def _head(path: Path) -> _Head:
    with path.open("rb") as file:
        line = file.readline(1 << 16)
    try:
        head = json.loads(line)
        begun = int(path.name.split(".")[-2])
        return _Head(int(head["rank"]), int(head["attempt"]), begun, str(head["backend"]), path)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise TraceError("not a rank's recording", file=path, place="line 1") from error


def _marks(path: Path) -> Iterator[bytes]:
    """The lines of a rank's recording that say where a step ends, but one that a kill cut."""
    with path.open("rb") as file:
        for line in file:
            if line.startswith(b'["s"') and line.endswith(b"]\n"):
                yield line
