"""Small jobs for what-ifs, and programs as short lines that can be compared by eye."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from replay.whatif.registry import apply
from tests.replay.network import trace_of
from traces.program import Collective, CollectiveKind, Compute, DType, Op, Program, Send, StepMark, Trace, Wait

SIZES = (100, 200, 50)
"""Elements of the three gradients of a step, of 4 bytes each."""

MODEL = """
name: three
source: a test
device: none
dtype: float32
batch: 1
tflops: 1
layers:
  - {name: low, tensors: [5x10], flops: 30, activation: 1}
  - {name: middle, tensors: [150, 50], flops: 40, activation: 1}
  - {name: high, tensors: [10x10], flops: 30, activation: 1}
"""
"""What the jobs train: forward passes of 30, 40 and 30 ns where a step computes 300."""


def gradient(number: int) -> Collective:
    return Collective(CollectiveKind.ALL_REDUCE, 0, SIZES[number], DType.FLOAT32, name=f"g{number}")


def overlapping(steps: int = 2, ranks: int = 2, optimizer: int = 0) -> Trace:
    """Each step computes 100 ns forward and 60, 80 and 60 ns backward, each followed by a gradient; then waits for all."""
    ops: list[Op] = []
    for step in range(steps):
        first = len(ops)
        ops += [Compute(160), gradient(0), Compute(80), gradient(1), Compute(60), gradient(2)]
        ops += [Wait(first + 1), Wait(first + 3), Wait(first + 5)]
        ops += [Compute(optimizer)] if optimizer else []
        ops.append(StepMark(step))
    return trace_of(dict.fromkeys(range(ranks), ops), steps=steps)


def behind(steps: int = 2, ranks: int = 2) -> Trace:
    """The same job without overlap: 300 ns of compute, then each gradient and its wait."""
    ops: list[Op] = []
    for step in range(steps):
        ops.append(Compute(300))
        for number in range(3):
            ops += [gradient(number), Wait(len(ops))]
        ops.append(StepMark(step))
    return trace_of(dict.fromkeys(range(ranks), ops), steps=steps)


def model_file(folder: Path) -> Path:
    """The file of MODEL."""
    path = folder / "three.yaml"
    path.write_text(MODEL)
    return path


def changed(trace: Trace, *what_ifs: str, rank: int = 0) -> str:
    """What the rank does after the what-ifs, as `lines` has it."""
    return lines(apply(trace, what_ifs).trace.programs[rank])


def lines(program: Program) -> str:
    """One word an operation, one line a step: 160 computes so many ns, +g0 starts g0, -g0 waits for it.

    Neighbouring computes of one name are added up, as they take the same time.
    """
    said: list[str] = []
    busy: list[tuple[int, str]] = []
    for op in program.ops:
        if isinstance(op, Compute):
            if busy and busy[-1][1] == op.name:
                busy[-1] = busy[-1][0] + op.ns, op.name
            else:
                busy.append((op.ns, op.name))
            continue
        said += [f"{ns}{f':{name}' if name else ''}" for ns, name in busy]
        busy.clear()
        if isinstance(op, StepMark):
            said.append("|")
        elif isinstance(op, Wait):
            said.append(f"-{_name(program.ops, op.op)}")
        else:
            said.append(f"+{op.name}")
    return " ".join(said + [f"{ns}{f':{name}' if name else ''}" for ns, name in busy])


def _name(ops: Sequence[Op], index: int) -> str:
    op = ops[index]
    assert isinstance(op, Collective | Send)
    return op.name
