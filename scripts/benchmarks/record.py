"""What recording costs a job: the same job plain and under `tracebed record`, in turns, in the same run.

Two jobs of two ranks on gloo, each with its own clock: a DDP step (four buckets, hundreds of ms of compute), where the cost is a
share of the step; and all-reduces of 4 kB one after the other with nothing between, where it is microseconds an operation.
"""

# Debian packages: iproute2
from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

STEPS = """
import sys, time, torch, torch.distributed as dist
from statistics import median
from torch import nn
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(12)]), bucket_cap_mb=12)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
times = []
for _ in range(int(sys.argv[1])):
    began = time.perf_counter()
    optimizer.zero_grad()
    model(torch.randn(256, 1024)).sum().backward()
    optimizer.step()
    times.append(time.perf_counter() - began)
if dist.get_rank() == 0:
    print("took", median(times[2:]))
dist.destroy_process_group()
"""
OPERATIONS = """
import sys, time, torch, torch.distributed as dist
from statistics import median
torch.set_num_threads(1)
dist.init_process_group("gloo")
tensor = torch.ones(1024)
times = []
for _ in range(10):
    began = time.perf_counter()
    for _ in range(int(sys.argv[1])):
        dist.all_reduce(tensor)
    times.append((time.perf_counter() - began) / int(sys.argv[1]))
if dist.get_rank() == 0:
    print("took", median(times[1:]))
dist.destroy_process_group()
"""


def seconds(script: Path, count: int, trace: Path | None) -> float:
    """What rank 0's clock says of a step, or of an operation."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    where = ["--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", str(port)]
    job = [sys.executable, "-m", "torch.distributed.run", *where, str(script), str(count)]
    if trace is not None:
        main = "from replay.cli.main import main; main()"
        job = [sys.executable, "-c", main, "record", "-o", str(trace), "--warmup", "0", "--", *job]
    done = subprocess.run(
        job, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=True, cwd=script.parent
    )
    return max(float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("took"))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--rounds", type=int, default=5, help="of each, plain and recorded in turns (default: 5)")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name, text, count in (("step", STEPS, 20), ("operation", OPERATIONS, 200)):
            script = Path(folder) / f"{name}.py"
            script.write_text(text)
            plain, recorded = [], []
            for _ in range(chosen.rounds):
                plain.append(seconds(script, count, None))
                recorded.append(seconds(script, count, script.with_suffix(".trace")))
            before, after = 1e6 * median(plain), 1e6 * median(recorded)
            print(
                f"{name:<10} plain {before:>10.1f} us, recorded {after:>10.1f} us: "
                f"{after - before:+.1f} us, {100 * (after / before - 1):+.2f}%  (plain from {1e6 * min(plain):.1f} to "
                f"{1e6 * max(plain):.1f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
