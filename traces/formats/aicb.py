"""AICB's workloads and the logs of their runs, as CSV: a row an operation, a section a pipeline stage.

    [rank0 ~ rank127]
    comm_type,comm_group,comm_group_size,msg_size,stage,dst,src,additional,_elapsed_time,algbw,busbw,count
    CommType.all_reduce,CommGroup.tp_group,2,16777216,forward.MegatronEmbedding,None,None,,None,None,None,1

Columns and names: AICB utils/utils.py and log_analyzer/log.py. msg_size is in bytes of the whole tensor (a logged all_gather of
134,217,728 in 0.601 ms has an algbw of 223.29 GB/s), _elapsed_time in ms. Messages say send_next, recv_prev and so on.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from traces.errors import TraceError
from traces.files import Opened
from traces.formats.grid import MAX_DEGREE, Grid, Item, Transfer, expanded, uneven
from traces.program import ROOTED, CollectiveKind, Compute, Finding, StepMark, Trace

NAME = "aicb"
MAX_BYTES = 10**15
MAX_MS = 1e9

_HEADER = "comm_type,comm_group,comm_group_size,msg_size"
_SNIFF = re.compile(rb"\s*(?:\[[^\n]{0,8000}\n)?" + _HEADER.encode())
_RANGE = re.compile(r"\[rank0 ~ rank(\d{1,7})\]$")
_STAGE = re.compile(r"\[ ?pp_stage(\d{1,5}): \[rank\d+(.*)$")
_GROUPS = {
    "tp_group": "tp",
    "dp_group": "dp",
    "pp_group": "pp",
    "ep_group": "ep",
    "ep_dp_group": "dp_ep",
    "embedding_group": "embedding",
    "all": "all",
}
_KINDS = {kind.value: kind for kind in CollectiveKind}
_HOPS = {"send_next": 1, "send_prev": -1, "recv_next": 1, "recv_prev": -1}
_MEND = "generate the workload for fewer GPUs"


def sniff(head: bytes) -> bool:
    """Whether a file that starts with `head` is a workload or a log."""
    return _SNIFF.match(head) is not None


@dataclass(slots=True)
class _Section:
    """The rows of one pipeline stage."""

    items: list[Item] = field(default_factory=list)
    steps: int = 0

    def end(self) -> None:
        if self.items and not isinstance(self.items[-1], StepMark):
            self.mark()

    def mark(self) -> None:
        self.items.append(StepMark(self.steps))
        self.steps += 1


def read(files: Sequence[Opened]) -> Trace:
    """The job in one workload. Raises TraceError naming the line that is wrong."""
    if len(files) > 1:
        raise TraceError("a workload is of all ranks; this is a second one", file=files[1].name)
    return _Reader(files[0].name).read(files[0].data)


class _Reader:
    def __init__(self, file: str) -> None:
        self._file = file
        self._line = 0
        self._ranks = 0  # of the job, as the first line says; 0 where it doesn't
        self._sizes: dict[str, int] = {}
        self._asked: set[str] = set()
        self._sections: list[_Section] = []

    def _error(self, message: str, mend: str = "") -> TraceError:
        return TraceError(message, file=self._file, place=f"line {self._line}", mend=mend)

    def read(self, data: bytes) -> Trace:
        for self._line, text in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
            line = text.strip()
            if line.startswith("["):
                self._head(line)
            elif line.startswith(_HEADER):
                self._sections.append(_Section())
            elif line:
                self._row(line)
        if not self._sections or not any(isinstance(i, Transfer) for s in self._sections for i in s.items):
            raise self._error("no row has an operation")
        for section in self._sections:
            section.end()
        grid, said = self._grid()
        stages, dropped = _agreeing([section.items for section in self._sections])
        groups, programs = expanded(grid, stages, file=self._file, mend=_MEND)
        return Trace(
            world_size=grid.ranks,
            groups=groups,
            programs=programs,
            step_count=min(section.steps for section in self._sections),
            findings=(*said, *dropped, *self._findings(grid)),
        )

    def _head(self, line: str) -> None:
        if found := _RANGE.match(line):
            self._ranks = int(found[1]) + 1
        elif found := _STAGE.match(line):
            if int(found[1]) != len(self._sections):
                raise self._error(f"stage {found[1]} where stage {len(self._sections)} is due")
            self._ranks += 1 + found[2].count("rank")
        else:
            raise self._error(f"expected `[rank0 ~ rankN]` or `[ pp_stageN: [...] ]`, found {line[:60]!r}")
        if self._ranks > MAX_DEGREE:
            raise self._error(f"{self._ranks} ranks", f"at most {MAX_DEGREE}")

    def _row(self, line: str) -> None:
        try:
            words = next(csv.reader([line]))
        except csv.Error as error:
            raise self._error(f"not a row of CSV: {error}") from error
        if len(words) < 8 or not self._sections:
            raise self._error(f"expected the columns {_HEADER},..., found {line[:60]!r}")
        section, what, group = (
            self._sections[-1],
            words[0].removeprefix("CommType."),
            words[1].removeprefix("CommGroup."),
        )
        if what == "epoch_end":
            section.mark()
        elif what == "computation":
            if len(words) > 8 and words[8] not in ("None", ""):
                section.items.append(Compute(round(self._ms(words[8]) * 1e6), words[4][:100]))
        elif group not in _GROUPS:
            raise self._error(f"group {group[:40]!r}", f"known: {', '.join(_GROUPS)}")
        else:
            self._size_of(_GROUPS[group], words[2])
            transfer = self._transfer(what, _GROUPS[group], self._bytes(words[3]), words[4][:100], words[7])
            if transfer.size or transfer.kind is CollectiveKind.BARRIER:
                section.items.append(transfer)

    def _transfer(self, what: str, group: str, size: int, name: str, hint: str) -> Transfer:
        if what in _KINDS:
            kind = _KINDS[what]
            return Transfer(kind, group, 0 if kind is CollectiveKind.BARRIER else size, name)
        if what not in ("isend", "irecv", "send", "recv"):
            raise self._error(
                f"operation {what[:40]!r}", f"known: {', '.join(_KINDS)}, isend, irecv, computation, epoch_end"
            )
        sends = what.endswith("send")
        if hint not in _HOPS or hint.startswith("send") is not sends:
            raise self._error(f"{what} {hint[:40]!r}: expected {', '.join(_HOPS)}")
        return Transfer(None, group, size, name, sends=sends, hop=_HOPS[hint], in_batch=True)

    def _size_of(self, group: str, text: str) -> None:
        self._asked.add(group)
        size = self._bytes(text) if text not in ("None", "") else 0
        if size > 1 and self._sizes.setdefault(group, size) != size:
            raise self._error(f"a {group} group of {size} ranks, which has {self._sizes[group]} elsewhere")

    def _bytes(self, text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,16}(\.0)?", text) or float(text) > MAX_BYTES:
            raise self._error(f"expected a whole number up to {MAX_BYTES}, found {text[:40]!r}")
        return int(float(text))

    def _ms(self, text: str) -> float:
        if not re.fullmatch(r"\d{1,12}(\.\d{0,30})?(e-?\d{1,2})?", text) or float(text) > MAX_MS:
            raise self._error(f"expected a time in ms up to {MAX_MS:.0e}, found {text[:40]!r}")
        return float(text)

    def _grid(self) -> tuple[Grid, list[Finding]]:
        said: list[Finding] = []
        tp, pp = self._sizes.get("tp", 1), len(self._sections)
        ranks = self._ranks or tp * self._sizes.get("dp", 1) * pp
        if max(tp, ranks) > MAX_DEGREE or ranks % (tp * pp):
            raise self._error(f"{ranks} ranks are no multiple of {tp} tensor parallel ranks x {pp} stages")
        dp = ranks // (tp * pp)
        if "ep" in self._asked and "ep" not in self._sizes:
            text = f"no row says how many ranks an expert parallel group has; all {dp} data parallel ones were taken"
            said.append(Finding("assumed-group", text))
        ep = self._sizes.get("ep", dp if "ep" in self._asked else 1)
        for kind, size in (("dp", dp), ("pp", pp)):
            if self._sizes.get(kind, size) != size:
                raise self._error(f"{kind} groups of {self._sizes[kind]} ranks, where {ranks} ranks leave {size}")
        if dp % ep:
            raise self._error(f"expert parallel groups of {ep} among {dp} data parallel ranks")
        return Grid(tp, dp, pp, ep), said

    def _findings(self, grid: Grid) -> list[Finding]:
        items = [item for section in self._sections for item in section.items]
        found = [Finding("assumed-wait", "operations: no row says when they are waited for; each was, at once", "info")]
        if not any(isinstance(item, Compute) for item in items):
            found.append(Finding("no-compute", "no row says how long a rank computes: steps have communication only"))
        if rooted := sum(isinstance(item, Transfer) and item.kind in ROOTED for item in items):
            found.append(
                Finding("assumed-root", f"{rooted} operations: the group's first rank was taken as root", "info")
            )
        if count := uneven(grid, [section.items for section in self._sections]):
            found.append(
                Finding("assumed-even", f"{count} operations do not divide among their ranks; rounded up", "info")
            )
        return found


def _agreeing(stages: list[list[Item]]) -> tuple[list[list[Item]], list[Finding]]:
    """The stages without the embedding's operations, if the first and the last, which share them, have different numbers of them.

    Some generators write them for the last stage only; nobody would answer it.
    """
    counts = [sum(_is_embedding(item) for item in items) for items in stages]
    if counts[0] == counts[-1]:
        return stages, []
    text = f"{counts[-1]} operations of the embedding's group in the last stage, {counts[0]} in the first; left out"
    return [[item for item in items if not _is_embedding(item)] for items in stages], [Finding("left-out", text)]


def _is_embedding(item: Item) -> bool:
    return isinstance(item, Transfer) and item.group == "embedding"
