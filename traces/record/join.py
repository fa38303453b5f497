"""The files that a job's ranks wrote, to one trace."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from traces import steps
from traces.errors import TraceError
from traces.importer import import_files
from traces.program import Finding, Trace


@dataclass(frozen=True, slots=True)
class Overhead:
    """What recording cost, the rank with the most: operations, and ns spent in the hook of `elapsed_ns` between marks."""

    operations: int
    spent_ns: int
    elapsed_ns: int


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
    newest: dict[int, tuple[int, int, Path]] = {}
    older = 0
    for path in sorted(folder.glob("rank-*.jsonl")):
        rank, attempt, begun = _head(path)
        older += rank in newest
        newest[rank] = max(newest.get(rank, (-1, -1, path)), (attempt, begun, path))
    if not newest:
        raise TraceError(
            "no rank wrote anything: no process group was made, or the job's Python does not read PYTHONPATH (-I, -E)",
            file=folder,
        )
    profiles = sorted(folder.glob("kineto-rank-*.json"))
    trace = import_files([*(path for _, _, path in newest.values()), *profiles], provenance=provenance)
    said = []
    if profiles:  # they hold only the steps that are asked for
        warmup, only = 0, None
    if older:
        said.append(Finding("restarted", f"{older} recordings are of ranks that were started again; left out", "info"))
    whole = _whole_steps([path for _, _, path in newest.values()])
    if whole == 0 and trace.step_count:
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
        marks = [
            json.loads(line) for line in path.read_bytes().splitlines() if line[:4] == b'["s"' and line[-1:] == b"]"
        ]
        if len(marks) > 1:
            (_, _, begun, before, spent), (_, _, ended, after, all_spent) = marks[0], marks[-1]
            worst = max(worst, Overhead(after - before, all_spent - spent, ended - begun), key=lambda one: one.spent_ns)
    return worst


def _head(path: Path) -> tuple[int, int, int]:
    """(rank, attempt, when it began) of a file."""
    with path.open("rb") as file:
        line = file.readline(1 << 16)
    try:
        head = json.loads(line)
        return int(head["rank"]), int(head["attempt"]), int(path.name.split(".")[-2])
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise TraceError("not a rank's recording", file=path, place="line 1") from error


def _whole_steps(paths: list[Path]) -> int:
    """Steps that every rank completed."""
    return min(sum(line[:4] == b'["s"' for line in path.read_bytes().splitlines()) for path in paths)
