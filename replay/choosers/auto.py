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


def choose(asked: Asked, fabric: Fabric) -> Choice:
    """Runs every algorithm's schedule in the model, at the upper end of the operation's size class, and takes the fastest; the
    default where it is as fast. An all-to-all whose blocks differ is judged by even blocks.
    """
    names = [name for name in known(asked.kind) if asked.even or need_of(asked.kind, name) is not Need.EVEN]
    times = {name: _model_ns(asked, name, fabric) for name in names}
    best = min(times, key=lambda name: times[name])
    usual = default(asked.kind, None)
    if best == usual:
        others = [f"{name} {times[name] / 1000:.4g}" for name in sorted(times, key=lambda name: times[name])[1:2]]
        return Choice(
            best, f"the model has {times[best] / 1000:.4g} us for it{''.join(f', {text} us' for text in others)}"
        )
    return Choice(best, f"the model has {times[best] / 1000:.4g} us for it, {times[usual] / 1000:.4g} us for {usual}")


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
