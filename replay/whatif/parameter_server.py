"""Parameter servers: workers push gradients and pull parameters."""

from __future__ import annotations

from replay.whatif.options import VALUE, Options
from replay.whatif.registry import Scenario, what_if
from replay.whatif.servers import BSP, Architecture, Sync, even, gradient_groups, partition, serve
from traces.program import Seat, Serving

MOST = 1024


@what_if(
    "ps=SERVERS,colocated=yes|no,sync=bsp|async|ssp:STEPS,partition=SIZE,along=GROUP",
    does="gradients are pushed to parameter servers and parameters pulled back, in place of all-reduces; on hosts of their own, "
    "or colocated with the first workers; ssp:3 lets a worker be 3 steps ahead of the slowest",
    assumes="tensors of a partition's size (4.096 MB) or more are split evenly over the servers, others go whole to the least "
    "loaded; parameters are as large as gradients; each worker's own step is what counts where they do not wait for each other",
    source="Li et al., OSDI 2014; Ho et al., NIPS 2013 (SSP); MXNet's KVStore (partition)",
)
def parameter_server(scenario: Scenario, options: Options) -> tuple[Scenario, str]:
    """Server i of the colocated is on the host of the i-th worker."""
    trace = scenario.trace
    groups = gradient_groups(trace, options)
    colocated = options.choice("colocated", ("yes", "no"), "no") == "yes"
    count = options.whole(VALUE, 1, trace.world_size if colocated else MOST)
    servers = range(trace.world_size, trace.world_size + count)
    smallest = partition(options)
    architecture = Architecture(
        seats={server: Seat(index if colocated else -1) for index, server in enumerate(servers)},
        shares=even(servers),
        serving=Serving(smallest),
        sync=_sync(options),
    )
    made, became = serve(trace, groups, architecture)
    where = f"colocated with workers 0 to {count - 1}" if colocated else "on hosts of their own"
    statement = (
        f"{count} parameter servers {where}, {options.said.get('sync', 'bsp')}: {became}; tensors of "
        f"{smallest} or more are split evenly over them, others go whole to the least loaded"
    )
    return scenario.on(made), statement


def _sync(options: Options) -> Sync:
    said, colon, steps = options.said.get("sync", "bsp").partition(":")
    if said == "ssp":
        if not (steps.isascii() and steps.isdigit() and len(steps) < 7):
            raise options.error(f"sync=ssp:{steps} has no number of steps", "write sync=ssp:3, say")
        return Sync(together=False, staleness=int(steps))
    if said not in ("bsp", "async") or colon:
        raise options.error(f"sync={options.said['sync']} is not known", "write bsp, async, or ssp:3")
    return BSP if said == "bsp" else Sync(together=False)
