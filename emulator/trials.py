"""What this machine's kernel can do for a bed, found out by making one of each in a namespace that is thrown away."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from emulator import qdisc, steering, wire
from emulator.errors import BedError, MachineError
from emulator.ledger import Ledger
from emulator.namespace import Namespace, inside
from emulator.qdisc import Qdisc
from emulator.qdisc.fq import Fq
from emulator.qdisc.netem import Netem
from emulator.qdisc.red import Red
from emulator.qdisc.tbf import Tbf
from emulator.units import Probability, Rate, Size

if TYPE_CHECKING:
    from pyroute2 import IPRoute

_SHAPER = Tbf(rate=Rate(8_000_000), burst=Size(3000), limit=Size(30_000))
_QDISCS: Mapping[str, tuple[Qdisc, str]] = {
    "netem": (Netem(), "delay, loss and exact rates"),
    "tbf": (_SHAPER, "queues in bytes, and hosts' cards"),
    "fq": (Fq(limit=100, flow_limit=100), "hosts' cards"),
    "red": (
        Red(limit=Size(30_000), minimum=Size(3000), maximum=Size(9000), probability=Probability(1), ecn=True),
        "queues that mark",
    ),
}
_A, _B = "trial-a", "trial-b"


@dataclass(frozen=True, slots=True)
class Trial:
    """One thing that was tried: `why` it failed, "" where it works; `modules` are what it may need loaded."""

    name: str
    purpose: str
    why: str
    modules: tuple[str, ...]

    def mend(self) -> str:
        """The line that gives this kernel what it lacks, or says what to do without."""
        if not self.why:
            return ""
        if all(_on_disk(module) for module in self.modules):
            return f"sudo modprobe -a {' '.join(self.modules)}"
        return f"run with --on virtual: Linux {platform.release()} comes without {' and '.join(self.modules)}"


def kernel() -> tuple[Trial, ...]:
    """Every part tried, each by itself. Raises MachineError where not even a namespace can be made."""
    with Ledger(f"doctor-{os.getpid()}") as own, closing(Namespace(f"tb-{own.run_id}", own)) as made:
        return tuple(_in_namespace(made.name))


def has_netem(ipr: IPRoute) -> bool:
    """Whether this kernel has it, found out on the loopback of a namespace that has no qdisc there."""
    loopback = wire.device(ipr, "lo")
    try:
        qdisc.install(ipr, loopback, Netem())
    except MachineError:
        return False
    ipr.tc("del", index=loopback, parent=qdisc.ROOT)
    return True


def _in_namespace(name: str) -> list[Trial]:
    from pyroute2 import IPRoute

    with inside(name), IPRoute() as ipr:
        found = [_try("veth", "links", ("veth",), lambda: wire.add_pair(ipr, _A, _B, 1500))]
        if found[0].why:
            return found
        for kind, (example, purpose) in _QDISCS.items():
            found.append(_try(kind, purpose, (f"sch_{kind}",), partial(_install, ipr, example)))
        filters = ("sch_ingress", "cls_u32", "act_mirred")
        found.append(_try("redirect", "links as boxes", filters, partial(_redirect, ipr)))
        off = partial(wire.set_offloads, [_A], send=False, receive=False)
        found.append(_try("offloads", "packets one by one", (), off))
    return found


def _install(ipr: IPRoute, example: Qdisc) -> None:
    device = wire.device(ipr, _A)
    qdisc.install(ipr, device, example)
    ipr.tc("del", index=device, parent=qdisc.ROOT)


def _redirect(ipr: IPRoute) -> None:
    entry, exit_ = wire.device(ipr, _A), wire.device(ipr, _B)
    steering.open_ingress(ipr, entry)
    steering.redirect_all(ipr, entry, exit_)


def _try(name: str, purpose: str, modules: tuple[str, ...], what: Callable[[], None]) -> Trial:
    from pyroute2.netlink.exceptions import NetlinkError

    why = ""
    try:
        what()
    except MachineError as error:
        why = error.why
    except (BedError, NetlinkError, OSError) as error:
        why = str(error)
    return Trial(name, purpose, why, modules)


def _on_disk(module: str) -> bool:
    folder = Path("/lib/modules") / platform.release()
    return any(folder.rglob(f"{module}.ko*"))
