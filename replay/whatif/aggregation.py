"""Aggregation in the network: a switch adds up what passes."""

from __future__ import annotations

from emulator.units import Size
from replay.whatif.options import VALUE, Options
from replay.whatif.registry import Scenario, what_if
from replay.whatif.servers import Architecture, even, gradient_groups, serve
from traces.program import Seat, Serving

_MESSAGES = 8
"""Of a window: so many that the wire is not idle while one is being collected, and not one for each packet."""


@what_if(
    "ina=SLOTS,packet=SIZE,along=GROUP",
    does="a switch adds up the gradients: each worker sends them once and receives their sum once, with SLOTS packets (of "
    "1 KiB) under way at most",
    assumes="the aggregator is a host more, whose link takes no time and whose switch is where its network file puts it; its "
    "messages travel as the workers' do (TCP), an eighth of the slots each; one tensor after the other",
    source="Sapio et al. (SwitchML), NSDI 2021; Lao et al. (ATP), NSDI 2021",
)
def aggregation(scenario: Scenario, options: Options) -> tuple[Scenario, str]:
    """The window is all slots' bytes; a slot is used again when its sum has come back."""
    trace = scenario.trace
    groups = gradient_groups(trace, options)
    slots = options.whole(VALUE, 1, 1 << 20)
    packet = options.size("packet", "1 KiB")
    if not 64 <= packet <= 1 << 16:
        raise options.error(f"packet={packet} is no packet", "write 64 bytes to 64KiB")
    switch, window = trace.world_size, slots * packet
    architecture = Architecture(
        seats={switch: Seat(in_switch=True)},
        shares=even([switch]),
        serving=Serving(max(packet, window // _MESSAGES), window),
        lane=1 + max(group.lane for group in trace.groups),
    )
    made, became = serve(trace, groups, architecture)
    statement = f"aggregation in the switch of rank {switch}'s host, {slots} slots of {packet} ({Size(window)} under way): {became}"
    return scenario.on(made), statement
