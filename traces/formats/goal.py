"""GOAL, the schedules of LogGOPSim and ATLAHS: each rank a graph of `calc`, `send` and `recv`, as text.

    num_ranks 2
    rank 0 {
    l1: calc 100
    l2: send 10b to 1 tag 0
    l2 requires l1
    }

Grammar: LogGOPSim src/LogGOPSim/txt2bin.re. `calc` is in ns; `requires` waits for the end of an operation, `irequires` for its
start. Steps are comments of our own (`// step 0 ends` before the `calc 0` that is the mark), which every reader skips.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from traces import graph
from traces.errors import TraceError
from traces.files import Opened
from traces.graph import Graph, Node
from traces.peers import resolved
from traces.program import Collective, Compute, Group, Recv, Send, StepMark, Trace
from traces.pytorch.calls import MAX_RANKS

NAME = "goal"
MAX_TAG = (1 << 31) - 1  # what a .trace holds; GOAL's have 32 bits, all ones for any tag

_SNIFF = re.compile(rb"(?:\s|//[^\n]*\n|/\*.*?\*/)*+num_ranks\s+\d", re.DOTALL)
_STEP = re.compile(r"\s*// step (\d{1,9}) ends\s*$")
_RANKS = re.compile(r"num_ranks\s+(\d{1,9})$")
_OPEN = re.compile(r"rank\s+(\d{1,9})\s*\{$")
_OP = re.compile(
    r"(?:(?P<label>[a-zA-Z]\w*)\s*:\s*)?(?:"
    r"calc\s+(?P<ns>\d{1,18})(?:\s+cpu\s+\d+)?"
    r"|(?P<way>send|recv)\s+(?P<size>\d{1,18})\s*b\s+(?P<to>to|from)\s+(?P<peer>-1|\d{1,9})"
    r"(?:\s+tag\s+(?P<tag>-1|\d{1,10}))?(?:\s+cpu\s+\d+)?(?:\s+nic\s+\d+)?)$"
)
_REQUIRES = re.compile(r"([a-zA-Z]\w*)\s+(requires|irequires)\s+([a-zA-Z]\w*)$")


def sniff(head: bytes) -> bool:
    """Whether a file that starts with `head` is a GOAL schedule."""
    return _SNIFF.match(head) is not None


def read(files: Sequence[Opened]) -> Trace:
    """The job in one schedule. Raises TraceError naming the line that is wrong."""
    if len(files) > 1:
        raise TraceError("a GOAL schedule holds all ranks; this is a second one", file=files[1].name)
    world_size, graphs = _Reader(files[0].name).read(files[0].data)
    programs, findings = graph.programs(graphs)
    programs, said = resolved(graph.one_step(programs))
    return Trace(
        world_size=world_size,
        groups=(Group(0, "0", tuple(range(world_size)), 0, "default_pg"),),
        programs=programs,
        step_count=min(sum(isinstance(op, StepMark) for op in p.ops) for p in programs.values()),
        findings=(*findings, *said),
    )


def _without_comments(data: bytes) -> str:
    """The text without what is between /* and */, but with all its lines."""
    text = data.decode("ascii", "replace")
    kept, at = [], 0
    while (start := text.find("/*", at)) >= 0 and (end := text.find("*/", start + 2)) >= 0:
        kept += [text[at:start], "\n" * text.count("\n", start, end)]
        at = end + 2
    return "".join([*kept, text[at:]])


class _Reader:
    def __init__(self, file: str) -> None:
        self._file = file
        self._line = 0
        self._world_size = 0

    def read(self, data: bytes) -> tuple[int, dict[int, Graph]]:
        blocks: dict[int, _Block] = {}
        block: _Block | None = None
        step: int | None = None
        for self._line, raw in enumerate(_without_comments(data).splitlines(), 1):
            if marked := _STEP.match(raw):
                step = int(marked[1])
            text = raw.partition("//")[0].strip()
            if not text:
                continue
            if block is None:
                rank = self._opening(text)
                if rank is not None and rank in blocks:
                    raise self._error(f"rank {rank} is given twice")
                if rank is not None:
                    block = blocks[rank] = _Block()
            elif text == "}":
                block = None
            elif needs := _REQUIRES.match(text):
                block.needs.append((self._line, needs[1], needs[2], needs[3]))
            else:
                block.add(*self._operation(text, step))
                step = None
        if block is not None:
            raise self._error("the file ends inside a rank", "the file is cut; copy it again")
        if not blocks:
            raise self._error("no rank is in the schedule")
        return self._world_size, {rank: self._graph(block) for rank, block in blocks.items()}

    def _error(self, message: str, mend: str = "") -> TraceError:
        return TraceError(message, file=self._file, place=f"line {self._line}", mend=mend)

    def _opening(self, text: str) -> int | None:
        if ranks := _RANKS.match(text):
            self._world_size = int(ranks[1])
            if not 0 < self._world_size <= MAX_RANKS:
                raise self._error(f"num_ranks is {self._world_size}", f"from 1 to {MAX_RANKS}")
            return None
        opened = _OPEN.match(text)
        if opened is None:
            raise self._error(f"expected `num_ranks N` or `rank N {{`, found {text[:60]!r}")
        if int(opened[1]) >= self._world_size:
            raise self._error(f"rank {opened[1]} of num_ranks {self._world_size}")
        return int(opened[1])

    def _operation(self, text: str, step: int | None) -> tuple[Compute | Send | Recv | StepMark, str | None]:
        found = _OP.match(text)
        if found is None:
            raise self._error(f"expected calc, send, recv, requires or irequires, found {text[:60]!r}")
        if found["ns"] is not None:
            return (StepMark(step) if step is not None else Compute(int(found["ns"]))), found["label"]
        peer, tag = int(found["peer"]), int(found["tag"] or 0)
        sends = found["way"] == "send"
        if (found["to"] == "to") is not sends or (peer < 0 and sends):
            raise self._error("expected `send Nb to RANK` or `recv Nb from RANK`")
        if peer >= self._world_size:
            raise self._error(f"rank {peer} of num_ranks {self._world_size}")
        if tag < 0:
            raise self._error("a receive of any tag can't be said in a program", "give messages their tags")
        if tag > MAX_TAG:
            raise self._error(f"tag {tag} is beyond {MAX_TAG}")
        return (Send if sends else Recv)(peer, int(found["size"]), tag=tag), found["label"]

    def _graph(self, block: _Block) -> Graph:
        after: list[list[int]] = [[] for _ in block.ops]
        beside: list[list[int]] = [[] for _ in block.ops]
        for self._line, label, way, earlier in block.needs:
            for name in (label, earlier):
                if name not in block.labels:
                    raise self._error(f"nothing in this rank is labelled {name}")
            (after if way == "requires" else beside)[block.labels[label]].append(block.labels[earlier])
        return tuple(Node(op, tuple(a), tuple(b)) for op, a, b in zip(block.ops, after, beside, strict=True))


class _Block:
    """What is between the brackets of a rank."""

    def __init__(self) -> None:
        self.ops: list[Compute | Send | Recv | StepMark] = []
        self.labels: dict[str, int] = {}
        self.needs: list[tuple[int, str, str, str]] = []

    def add(self, op: Compute | Send | Recv | StepMark, label: str | None) -> None:
        if label is not None:
            self.labels[label] = len(self.ops)
        self.ops.append(op)


def write(world_size: int, graphs: Mapping[int, Graph]) -> bytes:
    """The schedule as text. Raises TraceError for a tag that 32 bits can't hold."""
    lines = [f"num_ranks {world_size}"]
    for rank in range(world_size):
        lines += ["", f"rank {rank} {{"]
        for index, node in enumerate(graphs.get(rank, ()), 1):
            lines += _lines(node, index, f"rank {rank}, operation {index}")
        lines.append("}")
    return "\n".join([*lines, ""]).encode()


def _lines(node: Node, index: int, place: str) -> list[str]:
    op = node.op
    assert not isinstance(op, Collective)
    if isinstance(op, StepMark):
        head = [f"// step {op.step} ends", f"l{index}: calc 0"]
    elif isinstance(op, Compute):
        head = [f"l{index}: calc {op.ns}"]
    else:
        if not 0 <= op.tag <= MAX_TAG:
            raise TraceError(f"tag {op.tag} is not from 0 to {MAX_TAG}", place=place)
        way = "send {}b to {} tag {}" if isinstance(op, Send) else "recv {}b from {} tag {}"
        head = [f"l{index}: {way.format(op.count * op.dtype.itemsize, op.peer, op.tag)}"]
    return [
        *head,
        *(f"l{index} requires l{earlier + 1}" for earlier in node.after),
        *(f"l{index} irequires l{earlier + 1}" for earlier in node.beside),
    ]
