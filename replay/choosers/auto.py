"""The algorithm that an alpha-beta model of the network finds fastest (`replay.collectives.model`), of all that there are."""

from __future__ import annotations

from dataclasses import replace

from replay.choosers.asked import Asked, Choice
from replay.collectives.model import duration_ns
from replay.collectives.registry import Need, known, need_of, schedule_of
from replay.collectives.registry import choose as default
from replay.collectives.schedule import Call
from replay.collectives.wires import Fabric
from traces.program import CollectiveKind

NEAR = 1.05
"""The default stays where it takes so much at most: with TCP, algorithms that speak with many ranks at once take up to 7 % more
than the model has (tests/replay/test_lab_collectives.py)."""


def choose(asked: Asked, fabric: Fabric) -> Choice:
    """Runs every algorithm's schedule in the model, at the upper end of the operation's size class, and takes the fastest, or the
    default where that is near. An all-to-all whose blocks differ is judged by even blocks. Cost: seconds for a size class of
    64 ranks.
    """
    can = {Need.EVEN: asked.even, Need.ISLANDS: bool(fabric.islands(asked.ranks)), Need.WIRES: True, None: True}
    names = [name for name in known(asked.kind) if can[need_of(asked.kind, name)]]
    times = {name: _model_ns(asked, name, fabric) for name in names}
    usual = default(asked.kind, None)
    others = [name for name in names if name != usual]
    if not others:
        return Choice(usual, "there is no other")
    best = min(others, key=lambda name: times[name])
    taken, left = (usual, best) if times[usual] <= NEAR * times[best] else (best, usual)
    return Choice(taken, f"the model has {_us(times[taken])} for it, and {_us(times[left])} for {left}")


def _us(ns: float) -> str:
    return f"{ns / 1000:.4g} us"


def _model_ns(asked: Asked, name: str, fabric: Fabric) -> float:
    call = replace(_of_class(asked), algorithm=name, islands=fabric.islands(asked.ranks))
    wires = fabric.wires(asked.ranks)
    if need_of(asked.kind, name) is Need.WIRES:
        call = replace(call, wires=wires)
    schedules = [schedule_of(replace(call, me=me)) for me in range(call.size)]
    return duration_ns(schedules, wires, call.itemsize)


def _of_class(asked: Asked) -> Call:
    """The operation, as large as its class is at most."""
    call = asked.call
    if not asked.nbytes:
        return call
    count = -(-asked.size_class * call.count // max(1, asked.nbytes))
    splits = (-(-asked.size_class // (call.size * call.itemsize)),) * call.size
    if asked.kind == CollectiveKind.ALL_TO_ALL:
        return replace(call, count=sum(splits), send_splits=splits, recv_splits=splits)
    return replace(call, count=count)
