"""Installs every example qdisc on a device of its own and reads it back; the names of those that the kernel has as asked."""

from __future__ import annotations

from pyroute2 import IPRoute

from emulator import qdisc
from emulator.qdisc.fifo import ByteFifo, PacketFifo
from emulator.qdisc.fq import Fq
from emulator.qdisc.netem import Netem
from emulator.qdisc.red import Red
from emulator.qdisc.tbf import Tbf
from emulator.units import Probability, Rate, Size
from tests.emulator.test_qdisc_netem import EXAMPLES
from tests.guests.pair import report

OTHERS: dict[str, qdisc.Qdisc] = {
    "tbf": Tbf(rate=Rate.parse("1 gbit"), burst=Size(8000), limit=Size(10**6), overhead=24),
    "64-bit tbf": Tbf(rate=Rate.parse("800 gbit"), burst=Size(9038), limit=Size(10**8), overhead=24),
    "red": Red(limit=Size(10**6), minimum=Size(30000), maximum=Size(30001), probability=Probability(2**31), ecn=True),
    "fq": Fq(limit=10**6, flow_limit=10**5),
    "fq with pacing": Fq(limit=100, flow_limit=10, pacing=True),
    "pfifo": PacketFifo(100),
    "bfifo": ByteFifo(Size(65536)),
}

if __name__ == "__main__":
    verified = []
    examples: dict[str, qdisc.Qdisc] = {**EXAMPLES, **OTHERS}
    with IPRoute() as ipr:
        for number, (name, example) in enumerate(examples.items()):
            ipr.link("add", ifname=f"d{number}", kind="dummy")
            (device,) = ipr.link_lookup(ifname=f"d{number}")
            ipr.link("set", index=device, state="up")
            qdisc.install(ipr, device, example)  # raises where the kernel reports anything else
            if isinstance(example, Netem):  # whose changes keep what they don't mention
                qdisc.change(ipr, device, Netem())
                qdisc.change(ipr, device, example)
            verified.append(name)
    report(verified)
