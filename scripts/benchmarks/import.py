"""A Kineto file of 300 MB, plain and gzip: `import_files` against json.loads, time and growth of peak memory.

The file is made from a recording of ours: its events again and again, each time later and with other ids, in PyTorch's own
layout. Each reading runs in a process of its own, after all imports; memory is the growth of its peak resident size. For gzip
json.loads gets what gzip.open reads. The file is in the page cache for both.
"""

# Debian packages:
from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

GOALS = {"time": 10.0, "memory": 0.5}
READERS = {
    "json.loads": "import gzip, json\ndef read(p): return json.loads((gzip.open(p) if p.endswith('gz') else open(p, 'rb')).read())",
    "tracebed": "from pathlib import Path\nfrom traces.importer import import_files\ndef read(p): return import_files([Path(p)])",
}
MEASURE = """
import re, sys, time
# Not ru_maxrss, which a process has from the one that started it.
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024
before, began = peak(), time.perf_counter()
kept = read(sys.argv[1])
print(time.perf_counter() - began, peak() - before)
"""
_NUMBERS = re.compile(rb'("(?:ts|Record function id|External id|correlation|id)": )(\d+)')


def grown(source: Path, target: Path, size: int) -> None:
    """`source` with its events repeated up to about `size` bytes."""
    data = gzip.decompress(source.read_bytes())
    opens = data.index(b"[", data.index(b'"traceEvents"')) + 1
    closes = opens + data[opens:].rindex(b"\n  }\n  ]") + len(b"\n  }")
    events = b"\n  " + data[opens:closes].lstrip()  # a blank line stands before the first only
    spans = [(e["ts"], e["ts"] + e.get("dur", 0)) for e in json.loads(data)["traceEvents"] if e.get("ph") == "X"]
    period = round(max(end for _, end in spans) - min(start for start, _ in spans)) + 1_000
    with target.open("wb") as out:
        out.write(data[:opens])
        for turn in range(max(1, round(size / len(events)))):
            shift = {b'"ts": ': turn * period}
            moved = _NUMBERS.sub(
                lambda m, s=shift, t=turn: m[1] + b"%d" % (int(m[2]) + s.get(m[1], t * 10_000_000)), events
            )
            out.write((b"," if turn else b"") + moved)
        out.write(data[closes:])


def measured(reader: str, file: Path) -> tuple[float, int]:
    """Seconds and bytes."""
    code = READERS[reader] + MEASURE
    done = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True)
    seconds, growth = done.stdout.split()
    return float(seconds), int(growth)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    corpus = Path(os.environ.get("TRACEBED_CORPUS", "../shared/traces"))
    sources = [
        corpus / "HolisticTraceAnalysis/tests/data/nccl_parser_config/nccl_data.json.gz",
        corpus / "self-recorded-gloo/resnet50-ddp/kineto.rank-0.json.gz",
    ]
    options.add_argument("sources", nargs="*", type=Path, default=sources, help="recordings to make the files of")
    options.add_argument("--mb", type=int, default=300, help="size of the files (default: 300)")
    options.add_argument("--rounds", type=int, default=3, help="the best of so many (default: 3)")
    chosen = options.parse_args()
    print(f"{'file':<26}{'MB':>6}{'json.loads':>12}{'ours':>9}{'times':>7}{'memory of its size':>20}")
    for source in chosen.sources:
        with tempfile.TemporaryDirectory() as folder:
            plain = Path(folder) / source.name.removesuffix(".gz")
            grown(source, plain, chosen.mb * 1_000_000)
            packed = plain.with_name(plain.name + ".gz")
            packed.write_bytes(gzip.compress(plain.read_bytes(), 6))
            for file in (plain, packed):
                found = {reader: [measured(reader, file) for _ in range(chosen.rounds)] for reader in READERS}
                theirs, ours = (min(seconds for seconds, _ in found[reader]) for reader in READERS)
                memory = max(growth for _, growth in found["tracebed"]) / plain.stat().st_size
                size = plain.stat().st_size / 1e6
                print(f"{file.name:<26}{size:>6.0f}{theirs:>10.2f} s{ours:>7.2f} s{theirs / ours:>7.1f}{memory:>20.2f}")
    print(f"asked for: {GOALS['time']:g} times as fast, {GOALS['memory']:g} of the size")


if __name__ == "__main__":
    main()
