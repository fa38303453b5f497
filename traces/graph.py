"""Programs as graphs: each rank's operations, and which of them each waits for. Pure.

Some formats (GOAL) hold a graph where a Program is straight-line. `programs` puts a graph in line, so that no rank waits for
what can't come: the order is one in which all ranks together can go on.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from heapq import heappop, heappush

from traces.errors import TraceError
from traces.program import Collective, Communication, Compute, Finding, Op, Program, Recv, Send, StepMark, Wait


@dataclass(frozen=True, slots=True)
class Node:
    """An operation of a rank, and the indices of those that it follows: `after` they ended, `beside` they started."""

    op: Compute | Communication | StepMark
    after: tuple[int, ...] = ()
    beside: tuple[int, ...] = ()


Graph = tuple[Node, ...]


def programs(
    graphs: Mapping[int, Graph], groups: Mapping[int, int] | None = None
) -> tuple[dict[int, Program], tuple[Finding, ...]]:
    """A program of each rank, and what is held back in it. What nothing waits for is waited for at the end.

    `groups`: how many ranks a group has, of those with collectives. Computes of 0 ns only tie others together; left out.

    A program keeps its graph's order wherever that can run. TraceError where operations of a rank follow each other in a
    circle; messages without a partner are left to `traces.checks`.
    """
    lines = {rank: _Line(rank, graph) for rank, graph in sorted(graphs.items())}
    post = _Post(groups or {})
    while True:
        for line in lines.values():
            line.go_on(post)
        if not any(line.ready for line in lines.values()) and not _let_go(lines):
            break
    findings = []
    for line in lines.values():
        if line.left:
            raise TraceError("operations follow each other in a circle", place=f"rank {line.rank}")
        line.wait(sorted(line.at_op.keys() - line.moment.keys()))
        if line.held_back:
            text = f"{line.held_back} operations wait for others that the file lets run beside them"
            findings.append(Finding("serialised", text, rank=line.rank))
    return {rank: Program(rank, tuple(line.ops)) for rank, line in lines.items()}, tuple(findings)


class Growing:
    """A rank's graph as it is made from a program: `gate` is what the program's next operation follows."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._gate: frozenset[int] = frozenset()
        self._lanes: dict[int, frozenset[int]] = {}  # what the lane's next operation follows
        self._ends: dict[int, frozenset[int]] = {}  # by operation: what has ended when it has
        self._implied: dict[int, frozenset[int]] = {}  # by operation: what it follows, which its end implies

    def add(self, op: Compute | Communication | StepMark, after: frozenset[int], beside: tuple[int, ...] = ()) -> int:
        """A new node's index."""
        self.nodes.append(Node(op, tuple(sorted(after)), beside))
        return len(self.nodes) - 1

    def go_on(self, op: Compute | StepMark | Wait) -> None:
        """What the program itself does."""
        if isinstance(op, Wait):
            self._gate = (self._gate - self._implied[op.op]) | self._ends[op.op]
        else:
            self._gate = frozenset({self.add(op, self._gate)})

    def start(self, index: int, lane: int | None, nodes: Callable[[frozenset[int]], frozenset[int]]) -> None:
        """Operation `index` starts, behind those of its lane: `nodes` takes what it follows, and gives what its end is."""
        follows = self._gate if lane is None else self._gate | self._lanes.get(lane, frozenset())
        self._implied[index] = follows
        self._ends[index] = nodes(follows)
        if lane is not None:
            self._lanes[lane] = self._ends[index]


def graph_of(program: Program, lanes: Mapping[int, int]) -> Graph:
    """The graph of `program`; `lanes`: of each group. A lane's collectives are beside each other: they run in this order."""
    growing = Growing()
    last: dict[int, tuple[int, ...]] = {}  # of a lane
    for index, op in enumerate(program.ops):
        if isinstance(op, Communication):
            beside = last.get(lanes[op.group], ()) if isinstance(op, Collective) else ()
            growing.start(index, None, partial(_alone, growing, op, beside))
            if isinstance(op, Collective):
                last[lanes[op.group]] = (len(growing.nodes) - 1,)
        else:
            growing.go_on(op)
    return tuple(growing.nodes)


def _alone(growing: Growing, op: Communication, beside: tuple[int, ...], after: frozenset[int]) -> frozenset[int]:
    return frozenset({growing.add(op, after, beside)})


class _Line:
    """One rank's program as it grows. `ready`: nodes that nothing keeps; `open`: messages on their way."""

    def __init__(self, rank: int, graph: Graph) -> None:
        self.rank = rank
        self.graph = graph
        self.ops: list[Op] = []
        self.held_back = 0
        self.left = len(graph)
        self.at_op: dict[int, int] = {}  # a message's node -> its operation
        self.moment: dict[int, int] = {}  # a node that the program has stopped for -> the number of that stop
        self.open: set[int] = set()
        self._missing = [len(node.after) + len(node.beside) for node in graph]
        self._after: list[list[int]] = [[] for _ in graph]
        self._beside: list[list[int]] = [[] for _ in graph]
        for index, node in enumerate(graph):
            for earlier in node.after:
                self._after[earlier].append(index)
            for earlier in node.beside:
                self._beside[earlier].append(index)
        self.ready = [index for index, missing in enumerate(self._missing) if not missing]
        self._stops = 0

    def go_on(self, post: _Post) -> None:
        """Takes up all that can start, in the graph's order."""
        while self.ready:
            self._take(heappop(self.ready), post)

    def _take(self, index: int, post: _Post) -> None:
        node = self.graph[index]
        self.left -= 1
        self.wait([n for n in node.after if n not in self.moment])
        follows = max((self.moment[n] for n in node.after), default=0)
        self.held_back += follows < self._stops and not node.beside and node.op != Compute(0)
        if isinstance(node.op, Communication):
            self.at_op[index] = len(self.ops)
            self.ops.append(node.op)
            self.open.add(index)
            self._free(self._beside[index])
            post.take(self, index, node.op)
            return
        if isinstance(node.op, StepMark) or node.op.ns:
            self.ops.append(node.op)
            self._stops += isinstance(node.op, Compute)
            follows = self._stops
        self.moment[index] = follows
        self._free(self._beside[index])
        self._free(self._after[index])

    def wait(self, nodes: list[int]) -> None:
        """Stops for messages."""
        self._stops += bool(nodes)
        for node in nodes:
            self.ops.append(Wait(self.at_op[node]))
            self.moment[node] = self._stops

    def end(self, index: int) -> None:
        """The message has ended; it may be told again."""
        if index in self.open:
            self.open.remove(index)
            self._free(self._after[index])

    def _free(self, nodes: list[int]) -> None:
        for node in nodes:
            self._missing[node] -= 1
            if not self._missing[node]:
                heappush(self.ready, node)


class _Post:
    """Brings together what ends when all its ranks have started it: a send and its receive, a group's n-th collective."""

    def __init__(self, groups: Mapping[int, int]) -> None:
        self._groups = groups
        self._calls: Counter[tuple[int, int]] = Counter()  # (rank, group) -> collectives so far
        self._met: defaultdict[tuple[int, int], list[tuple[_Line, int]]] = defaultdict(list)
        self._waiting: defaultdict[tuple[type, int, int, int], deque[tuple[_Line, int]]] = defaultdict(deque)

    def take(self, line: _Line, index: int, op: Communication) -> None:
        if isinstance(op, Collective):
            self._calls[line.rank, op.group] += 1
            met = self._met[op.group, self._calls[line.rank, op.group]]
            met.append((line, index))
            if len(met) == self._groups[op.group]:
                for there, member in met:
                    there.end(member)
            return
        sender, receiver = (line.rank, op.peer) if isinstance(op, Send) else (op.peer, line.rank)
        other = self._waiting[Recv if isinstance(op, Send) else Send, sender, receiver, op.tag]
        if other:
            there, partner = other.popleft()
            there.end(partner)
            line.end(index)
        else:
            self._waiting[type(op), sender, receiver, op.tag].append((line, index))


def _let_go(lines: Mapping[int, _Line]) -> bool:
    """When nothing goes on: all sends leave, as short messages do before anybody takes them; else nothing else comes."""
    for kind in (Send, Recv, Collective):
        kept = [(line, n) for line in lines.values() for n in sorted(line.open) if isinstance(line.graph[n].op, kind)]
        for line, node in kept:
            line.end(node)
        if kept:
            return True
    return False


def one_step(programs: Mapping[int, Program]) -> dict[int, Program]:
    """Programs that end with a mark where none has one: the whole is one step."""
    if any(isinstance(op, StepMark) for p in programs.values() for op in p.ops):
        return dict(programs)
    return {rank: replace(p, ops=(*p.ops, StepMark(0))) for rank, p in programs.items()}
