"""A ring all-reduce in virtual time and in ns-3: wall seconds a GB that crosses a host's link, in turns, in the same run.

The same ring on the same star, TCP, as large, at the same MTU, the same segments going on as they come; ns-3 3.37 from Debian is
C++ of the same machine, compiled with -O2. Ours is the whole command, with its start and the boot of the lab kernel. Both print
the simulated time of the last step, so that it can be seen that they ran the same.
"""

# Debian packages: libns3-dev g++
from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from replay.plan import DEFAULT_SEGMENT
from replay.results import Run
from traces import archive
from traces.program import Collective, CollectiveKind, Group, Op, Program, StepMark, Trace, Wait

GOALS = {"burst": 10.0, "packet": 2.0}
DELAY_US = 1
MTUS = {10: 1500, 100: 9000}
LIBRARIES = ("core", "network", "internet", "point-to-point")


@dataclass(frozen=True, slots=True)
class Took:
    """Wall seconds in all, and the simulated time of the last step in ms."""

    wall_s: float
    step_ms: float


def ring(ranks: int, nbytes: int, steps: int) -> Trace:
    ops: list[Op] = []
    for step in range(steps):
        ops += [Collective(CollectiveKind.ALL_REDUCE, 0, nbytes), Wait(len(ops)), StepMark(step)]
    group = Group(0, "0", tuple(range(ranks)), 0, "default_pg")
    return Trace(ranks, (group,), {rank: Program(rank, tuple(ops)) for rank in range(ranks)}, steps)


def ours(folder: Path, trace: Path, ranks: int, gbit: int, fidelity: str) -> Took:
    network = folder / "star.yaml"
    network.write_text(
        f"topology: {{star: {{hosts: {ranks}}}}}\nlink: {{rate: {gbit} gbit, delay: {DELAY_US} us, mtu: {MTUS[gbit]}}}\n"
    )
    main = "from replay.cli.main import main; main()"
    where = ["--network", str(network), "--fidelity", fidelity, "-o", str(folder / "runs"), "--json"]
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", main, "replay", str(trace), *where], capture_output=True, check=True, text=True
    )
    wall = time.monotonic() - began
    (run,) = msgspec.json.decode(done.stdout, type=list[Run])
    (steps,) = (folder / "runs").glob("*/steps.csv")
    last = steps.read_text().splitlines()[-1].split(",")
    subprocess.run(["rm", "-r", str(folder / "runs")], check=True)
    assert run.status == "complete"
    return Took(wall, int(last[2]) / 1e6)


def ns3(program: Path, ranks: int, nbytes: int, steps: int, gbit: int) -> Took:
    began = time.monotonic()
    settings = [ranks, nbytes, steps, f"{gbit}Gbps", f"{DELAY_US}us", MTUS[gbit], DEFAULT_SEGMENT]
    done = subprocess.run([program, *map(str, settings)], capture_output=True, check=True, text=True)
    wall = time.monotonic() - began
    ends = [0.0, *map(float, done.stdout.split())]
    return Took(wall, 1e3 * (ends[-1] - ends[-2]))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--ranks", type=int, default=8)
    options.add_argument("--mb", type=int, default=100, help="of the tensor (default: 100)")
    options.add_argument("--steps", type=int, default=3)
    options.add_argument("--rounds", type=int, default=1, help="the best of so many (default: 1)")
    chosen = options.parse_args()
    nbytes, ranks = chosen.mb * 1_000_000, chosen.ranks
    carried = chosen.steps * 2 * (ranks - 1) * nbytes / 1e9
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = folder / "ns3_ring"
        source = Path(__file__).with_name("ns3_ring.cc")
        libraries = [f"-lns3-{library}" for library in LIBRARIES]
        subprocess.run(["g++", "-O2", "-std=c++17", str(source), "-o", str(program), *libraries], check=True)
        trace = folder / "ring.trace"
        archive.write(ring(ranks, nbytes, chosen.steps), trace)
        print(f"{ranks} ranks, {chosen.mb} MB, {chosen.steps} steps: {carried:.2f} GB on the hosts' links, one way")
        print(f"{'':<20}{'wall':>9}{'a GB':>10}{'last step':>14}{'times as fast as ns-3':>24}{'asked':>7}")
        for gbit in MTUS:
            found: dict[str, list[Took]] = {"ns-3": [], "burst": [], "packet": []}
            for _ in range(chosen.rounds):
                found["ns-3"].append(ns3(program, ranks, nbytes, chosen.steps, gbit))
                for fidelity in GOALS:
                    found[fidelity].append(ours(folder, trace, ranks, gbit, fidelity))
            best = {which: min(runs, key=lambda took: took.wall_s) for which, runs in found.items()}
            for which, took in best.items():
                against = f"{best['ns-3'].wall_s / took.wall_s:>24.1f}{GOALS[which]:>7.0f}" if which in GOALS else ""
                print(
                    f"{gbit:>4} Gbit/s, {which:<7}{took.wall_s:>7.1f} s{took.wall_s / carried:>8.2f} s"
                    f"{took.step_ms:>11.3f} ms{against}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
