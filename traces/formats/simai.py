"""SimAI's workloads (and ASTRA-sim 1's), as text: a header, the number of rows, and a row a layer.

    HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 8 ep: 1 pp: 1 vpp: 8 ga: 1 all_gpus: 16 checkpoints: 0 ...
    1
    mlp_layer -1 486330 ALLREDUCE 16777216 529500 ALLREDUCE 16777216 529500 NONE 0 100

Columns: name, dependency, then compute (ns), collective and bytes of the forward pass, of the input's and of the weights'
gradient, and the update. As SimAI's workload/Workload.cc runs them: forward through all layers, then backwards; a layer waits
for its collectives in the forward pass and for the input's gradient, and the step for those of the weights. The first two are of
the tensor parallel group, the last is of the data parallel one, unless a suffix says otherwise. MICRO has its rows in order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from traces.errors import TraceError
from traces.files import Opened
from traces.formats.grid import MAX_DEGREE, Grid, Item, Transfer, expanded, uneven
from traces.program import CollectiveKind, Compute, Finding, StepMark, Trace

NAME = "simai"
MAX_NS = 10**15
MAX_BYTES = 10**15

_POLICIES = ("HYBRID_TRANSFORMER_FWD_IN_BCKWD", "HYBRID_TRANSFORMER", "MICRO")
_SNIFF = re.compile(
    rb"(?:HYBRID_|MICRO|DATA|MODEL)[A-Z_]*(?:[ \t][^\n]{0,1000})?\r?\n\s*\d{1,9}\s*\n\S+\s+-?\d+\s+\d+\s"
)
_KINDS = {
    "ALLREDUCE": CollectiveKind.ALL_REDUCE,
    "ALLGATHER": CollectiveKind.ALL_GATHER,
    "REDUCESCATTER": CollectiveKind.REDUCE_SCATTER,
    "ALLTOALL": CollectiveKind.ALL_TO_ALL,
    "BROADCAST": CollectiveKind.BROADCAST,
}
_GROUPS = {"": "", "_EP": "ep", "_DP_EP": "dp_ep"}
_COLLECTIVE = re.compile(r"([A-Z]+?)((?:_DP)?_EP)?$")
_MEND = "give line 1 fewer all_gpus; groups shrink, sizes stay"


def sniff(head: bytes) -> bool:
    """Whether a file that starts with `head` is a workload."""
    return _SNIFF.match(head) is not None


@dataclass(frozen=True, slots=True)
class _Phase:
    ns: int
    transfer: Transfer | None

    def items(self) -> list[Item]:
        computes: list[Item] = [Compute(self.ns)] if self.ns else []
        return computes + ([self.transfer] if self.transfer else [])


def read(files: Sequence[Opened]) -> Trace:
    """One step of the workload, on the GPUs of one pipeline stage. Raises TraceError naming the line that is wrong."""
    if len(files) > 1:
        raise TraceError("a workload is of all ranks; this is a second one", file=files[1].name)
    return _Reader(files[0].name).read(files[0].data)


class _Reader:
    def __init__(self, file: str) -> None:
        self._file = file
        self._line = 0
        self._micro = False

    def _error(self, message: str, mend: str = "") -> TraceError:
        return TraceError(message, file=self._file, place=f"line {self._line}", mend=mend)

    def read(self, data: bytes) -> Trace:
        lines = data.decode("ascii", "replace").splitlines()
        self._line = 1
        policy, rest = [*lines[0].split(maxsplit=1), "", ""][:2]
        if policy not in _POLICIES:
            raise self._error(f"parallelism {policy[:40]!r}", f"known: {', '.join(_POLICIES)}")
        self._micro = policy == "MICRO"
        said = dict(re.findall(r"(\w+):\s*(\d{1,9})\b", rest))
        grid = self._grid(said)
        layers: list[tuple[_Phase, _Phase, _Phase]] = []
        for self._line, text in enumerate(lines[2:], 3):
            if text.strip():
                layers.append(self._layer(text.split()))
        self._line = 2
        declared = lines[1].strip() if len(lines) > 1 else ""
        if not re.fullmatch(r"\d{1,9}", declared):
            raise self._error(f"expected the number of rows, found {declared[:40]!r}")
        items = self._step(layers)
        if not any(isinstance(item, Transfer) for item in items):
            raise self._error("no row has a collective")
        groups, programs = expanded(grid, [items], file=self._file, mend=_MEND)
        return Trace(
            world_size=grid.ranks,
            groups=groups,
            programs=programs,
            step_count=1,
            findings=tuple(self._findings(said, grid, items, int(declared), len(layers))),
        )

    def _grid(self, said: dict[str, str]) -> Grid:
        if "all_gpus" not in said:
            mend = "add `all_gpus: 16`, or how many there are, to line 1"
            raise self._error("the header does not say how many GPUs there are", mend)
        tp, ep, pp = (int(said.get(key, 1)) for key in ("model_parallel_NPU_group", "ep", "pp"))
        gpus = int(said["all_gpus"])
        if not min(tp, ep, pp, gpus) > 0 or max(tp, ep, pp, gpus) > MAX_DEGREE:
            raise self._error(f"sizes are from 1 to {MAX_DEGREE}")
        if gpus % (tp * pp) or (gpus // (tp * pp)) % ep:
            text = f"{gpus} all_gpus are no multiple of model_parallel_NPU_group {tp} x pp {pp} x ep {ep}"
            raise self._error(text)
        return Grid(tp=tp, dp=gpus // (tp * pp), ep=ep)

    def _layer(self, words: list[str]) -> tuple[_Phase, _Phase, _Phase]:
        if len(words) < 11:
            raise self._error(f"expected 12 columns, found {len(words)}")
        name = words[0][:100]
        return (
            self._phase(name, words[2:5], "tp"),
            self._phase(name, words[5:8], "tp"),
            self._phase(name, words[8:11], "dp", is_async=not self._micro),
        )

    def _phase(self, name: str, words: list[str], group: str, *, is_async: bool = False) -> _Phase:
        ns, size = self._number(words[0], MAX_NS), self._number(words[2], MAX_BYTES)
        if words[1] == "NONE" or size == 0:
            return _Phase(ns, None)
        found = _COLLECTIVE.match(words[1])
        if found is None or found[1] not in _KINDS:
            raise self._error(f"collective {words[1][:40]!r}", f"known: NONE, {', '.join(_KINDS)}, with _EP or _DP_EP")
        group = "all" if self._micro else _GROUPS[found[2] or ""] or group
        return _Phase(ns, Transfer(_KINDS[found[1]], group, size, name, is_async=is_async))

    def _number(self, text: str, most: int) -> int:
        if not re.fullmatch(r"[0-9]{1,16}", text) or int(text) > most:
            raise self._error(f"expected a whole number up to {most}, found {text[:40]!r}")
        return int(text)

    def _step(self, layers: Sequence[tuple[_Phase, _Phase, _Phase]]) -> list[Item]:
        if self._micro:
            items = [item for layer in layers for phase in layer for item in phase.items()]
        else:
            items = [item for forward, _, _ in layers for item in forward.items()]
            items += [item for _, ig, wg in reversed(layers) for phase in (ig, wg) for item in phase.items()]
        return [*items, StepMark(0)]

    def _findings(self, said: dict[str, str], grid: Grid, items: list[Item], declared: int, rows: int) -> list[Finding]:
        found = [Finding("left-out", "the update of weights has no place in a program; left out", "info")]
        if declared != rows:
            found.append(
                Finding("declared-count", f"{declared} rows are declared, and {rows} are there; all were taken")
            )
        if (pp := int(said.get("pp", 1))) > 1:
            text = f"one stage of {pp} was taken; the pipeline's messages and its bubble are not in the workload's rows"
            found.append(Finding("left-out", text))
        if int(said.get("checkpoints", 0)):
            text = "layers that are computed again in the backward pass were left out"
            found.append(Finding("left-out", text))
        if any(isinstance(item, Transfer) and item.kind is CollectiveKind.BROADCAST for item in items):
            found.append(Finding("assumed-root", "broadcasts have no root; the group's first rank was taken", "info"))
        if count := uneven(grid, [items]):
            found.append(
                Finding("assumed-even", f"{count} collectives do not divide among their ranks; rounded up", "info")
            )
        return found
