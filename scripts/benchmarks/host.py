"""A ring all-reduce on this machine's kernel: against iperf3 on the same shaped links, and unshaped against MPICH.

Shaped: two hosts, links of 1 and 5 Gbit/s, 100 MB; what iperf3 gets of the same links one way, and what a rank sends meanwhile in
the all-reduce, each way at once. Unshaped: links without a rate, and mpi4py with MPICH's wheel on the same processors, whose ranks
share memory. The median of the steps but the first of each; needs root.
"""

# Debian packages: iproute2 iperf3
from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median

import msgspec
import numpy as np

from emulator.beds.netns import NetnsBed
from emulator.ledger import Ledger
from emulator.network import Network, from_dict
from replay import coordinator
from replay.control import Result
from replay.plan import lower
from replay.request import STALL_S
from traces.program import Collective, CollectiveKind, Group, Op, Program, StepMark, Trace, Wait

GOALS = {"iperf3": 0.97, "MPICH": 1.0}
MPI = """
import sys, time
import numpy as np
from mpi4py import MPI
world, size, steps = MPI.COMM_WORLD, int(sys.argv[1]), int(sys.argv[2])
given, got = np.ones(size // 4, np.float32), np.empty(size // 4, np.float32)
took = []
for _ in range(steps):
    world.Barrier()
    began = time.perf_counter()
    world.Allreduce(given, got)
    took.append(time.perf_counter() - began)
if world.rank == 0:
    print(*took[1:])
"""


def star(ranks: int, rate: str) -> Network:
    return from_dict({"topology": {"star": {"hosts": str(ranks)}}, "link": {"rate": rate}})


def ring(ranks: int, nbytes: int, steps: int) -> Trace:
    ops: list[Op] = []
    for step in range(steps):
        ops += [Collective(CollectiveKind.BARRIER, 0, 0), Wait(len(ops))]
        ops += [Collective(CollectiveKind.ALL_REDUCE, 0, nbytes), Wait(len(ops)), StepMark(step)]
    group = Group(0, "0", tuple(range(ranks)), 0, "default_pg")
    return Trace(ranks, (group,), {rank: Program(rank, tuple(ops)) for rank in range(ranks)}, steps)


def all_reduces_s(trace: Trace, bed: NetnsBed) -> float:
    """Seconds of an all-reduce, from when its last rank began it to when its last ended it."""
    results = coordinator.run(lower(trace), bed, stall_s=STALL_S).results
    places = [at for at, op in enumerate(trace.programs[0].ops) if isinstance(op, Collective) and op.count][1:]

    def times(which: str) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        return np.array([np.frombuffer(_column(result, which), np.int64)[places] for result in results.values()])

    return median(((times("ended").max(0) - times("began").max(0)) / 1e9).tolist())


def _column(result: Result, which: str) -> bytes:
    return result.ended if which == "ended" else result.began


def iperf3_gbit(bed: NetnsBed, seconds: int) -> float:
    """Payload from host0 to host1, its first second left out."""
    serve = subprocess.Popen(
        ["iperf3", "-s", "-1"], preexec_fn=partial(bed.enter, "host1"), stdout=subprocess.DEVNULL, process_group=0
    )
    try:
        time.sleep(0.5)
        asked = ["iperf3", "-c", bed.address("host1"), "-t", str(seconds), "-O", "1", "-J"]
        done = subprocess.run(asked, preexec_fn=partial(bed.enter, "host0"), capture_output=True, check=True)
        found = msgspec.json.decode(done.stdout)
    finally:
        serve.kill()
        serve.wait()
    return float(found["end"]["sum_received"]["bits_per_second"]) / 1e9


def mpich_s(ranks: int, nbytes: int, steps: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "job.py"
        script.write_text(MPI)
        mpiexec = Path(sys.executable).with_name("mpiexec")
        done = subprocess.run(
            [mpiexec, "-n", str(ranks), sys.executable, script, str(nbytes), str(steps)],
            capture_output=True, check=True, text=True,
        )  # fmt: skip
    return median(map(float, done.stdout.split()))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--seconds", type=int, default=5, help="of iperf3 (default: 5)")
    options.add_argument("--steps", type=int, default=11, help="the first is left out (default: 11)")
    chosen = options.parse_args()
    nbytes = 100_000_000
    for gbit in (1, 5):
        with Ledger(f"bench-{time.monotonic_ns():x}") as own, NetnsBed(star(2, f"{gbit} gbit"), own) as bed:
            theirs = iperf3_gbit(bed, chosen.seconds)
            took = all_reduces_s(ring(2, nbytes, chosen.steps), bed)
        ours = nbytes * 8 / took / 1e9  # 2 (N-1)/N of the tensor, N = 2
        print(
            f"{gbit} Gbit/s: iperf3 {theirs:.4f} Gbit/s of payload, an all-reduce {ours:.4f} each way: {ours / theirs:.1%} "
            f"(asked {GOALS['iperf3']:.0%})",
            flush=True,
        )
    for ranks in (2, 4):
        for size in (1_000_000, 16_000_000, 100_000_000):
            with Ledger(f"bench-{time.monotonic_ns():x}") as own, NetnsBed(star(ranks, "unlimited"), own) as bed:
                ours = all_reduces_s(ring(ranks, size, chosen.steps), bed)
            theirs = mpich_s(ranks, size, chosen.steps)
            print(
                f"unshaped, {ranks} ranks, {size / 1e6:.0f} MB: MPICH {theirs * 1e3:.2f} ms, ours {ours * 1e3:.2f}: "
                f"{theirs / ours:.2f} times as fast (asked {GOALS['MPICH']:g})",
                flush=True,
            )


if __name__ == "__main__":
    main()
