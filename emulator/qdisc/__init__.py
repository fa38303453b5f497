"""Queueing disciplines as values, to and from the kernel.

A kind is one file with one class: fields, `encode` to the bytes of TCA_OPTIONS, `decode` from them. pyroute2 only
carries the bytes: its own netem can't set a rate, rounds delays to microseconds and drops keywords it doesn't know in
silence (0.9.7, pyroute2/netlink/rtnl/tcmsg/sched_netem.py).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import TYPE_CHECKING

from emulator.errors import BedError, MachineError
from emulator.qdisc.fifo import ByteFifo, PacketFifo
from emulator.qdisc.fq import Fq
from emulator.qdisc.netem import Netem
from emulator.qdisc.red import Red
from emulator.qdisc.tbf import Tbf

if TYPE_CHECKING:
    from pyroute2 import IPRoute

Qdisc = Netem | Tbf | Red | Fq | PacketFifo | ByteFifo
KINDS: Mapping[str, type[Qdisc]] = {made.kind: made for made in (Netem, Tbf, Red, Fq, PacketFifo, ByteFifo)}
ROOT = 0xFFFFFFFF  # TC_H_ROOT
FIRST, SECOND = 0x10000, 0x20000  # handles 1: and 2:
CLASS = FIRST + 1  # 1:1, a tbf's only class


@dataclass(frozen=True, slots=True)
class Nested:
    """A tbf in which packets wait in another qdisc than the bfifo that it makes for itself; its own `limit` is idle then
    (net/sched/sch_tbf.c)."""

    outer: Tbf
    inner: Red | Fq


Stage = Qdisc | Nested
"""What one device of a wire, or a host's card, has."""


def register() -> None:
    """Have pyroute2 pass the options of these kinds through as bytes, in the whole process; once more is harmless.

    From then on its own `IPRoute.tc("add", "tbf", rate=...)` sends no options: use `install`.
    """
    from pyroute2.netlink import nla_string
    from pyroute2.netlink.rtnl.tcmsg import plugins

    # The payload travels under a keyword of its own: pyroute2 takes `rate` for the estimator's attribute.
    opaque = SimpleNamespace(
        parent=ROOT,
        options=type("options", (nla_string,), {"__slots__": ()}),
        stats=type("stats", (nla_string,), {"__slots__": ()}),
        get_parameters=lambda keywords: keywords.get("payload"),
    )
    for kind in KINDS:
        plugins[kind] = opaque


def places(stage: Stage) -> Sequence[tuple[Qdisc, int, int]]:
    """Each qdisc of a stage, with its handle and its parent."""
    if isinstance(stage, Nested):
        return (stage.outer, FIRST, ROOT), (stage.inner, SECOND, CLASS)
    return ((stage, FIRST, ROOT),)


def install(ipr: IPRoute, ifindex: int, stage: Stage) -> None:
    """Put `stage` on a device that has no qdisc, and check what the kernel made of it.

    Raises MachineError where this kernel doesn't know the kind, BedError where it refuses it or reports something else.
    """
    for qdisc, handle, parent in places(stage):
        _send(ipr, "add", ifindex, qdisc, handle, parent)


def change(ipr: IPRoute, ifindex: int, stage: Stage) -> None:
    """Turn what a device has, of the same kind, into `stage`; packets in it stay. What a tbf holds its packets in stays as
    it was, for a change of it would lose them. Raises as `install` does."""
    _send(ipr, "change", ifindex, stage.outer if isinstance(stage, Nested) else stage)


def _send(ipr: IPRoute, command: str, ifindex: int, qdisc: Qdisc, handle: int = FIRST, parent: int = ROOT) -> None:
    from pyroute2.netlink.exceptions import NetlinkError

    register()
    try:
        ipr.tc(command, qdisc.kind, ifindex, handle, parent=parent, payload=qdisc.encode())
    except NetlinkError as error:
        if error.code == errno.ENOENT and command == "add":
            mend = f"load sch_{qdisc.kind}, or take a kernel that has it"
            raise MachineError(f"this kernel has no {qdisc.kind}", mend=mend) from error
        raise BedError(f"device {ifindex}: can't {command} {qdisc.kind}: {os.strerror(error.code)}") from error
    verify(qdisc, read_back(ipr, ifindex, parent))


def read_back(ipr: IPRoute, ifindex: int, parent: int = ROOT) -> Qdisc:
    """The qdisc at `parent` of a device, as the kernel reports it. Raises BedError where none of these kinds is
    there."""
    register()
    for message in ipr.get_qdiscs(index=ifindex):
        if message["parent"] == parent:
            kind = message.get_attr("TCA_KIND")
            if kind in KINDS:
                return KINDS[kind].decode(message.get_attr("TCA_OPTIONS"))
            raise BedError(f"device {ifindex} has a qdisc of kind {kind}, expected one of {', '.join(KINDS)}")
    raise BedError(f"device {ifindex} has no qdisc at parent {parent:#x}")


def verify(asked: Qdisc, got: Qdisc) -> None:
    """Check that the kernel has what was asked, to the last step that it can store. Raises BedError with what
    differs."""
    if asked.kind != got.kind:
        raise BedError(f"asked for {asked.kind}, the kernel has {got.kind}")
    expected = type(asked).decode(asked.encode())
    for field in fields(expected):
        want, have = getattr(expected, field.name), getattr(got, field.name)
        if want != have and not (want is None and field.name in asked.kernel_chooses):
            raise BedError(f"{asked.kind} {field.name}: asked for {want}, the kernel has {have}")
