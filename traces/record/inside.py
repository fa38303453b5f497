"""Recording from inside a job, without the launcher."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from traces import archive
from traces.errors import TraceError
from traces.record.join import join
from traces.record.launch import HOOK


def step() -> None:
    """A training step ends here. Does nothing where nobody records."""
    _hook("steps").step()


@contextmanager
def recording(output: str | os.PathLike[str], *, warmup: int = 0) -> Iterator[None]:
    """Record what this process communicates in the block; all ranks enter and leave it together.

    The process group exists already. At the end rank 0 joins what the ranks wrote beside `output` and leaves out the first
    `warmup` steps; ranks on other machines need the same file system. Raises TraceError.
    """
    import torch.distributed as dist

    if not dist.is_initialized():
        raise TraceError("no process group is there to record", mend="call init_process_group first")
    folder = Path(f"{output}.recording")
    if dist.get_rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    recorder = _hook("torch_hook").record(str(folder))
    try:
        yield
    finally:
        recorder.close()
        dist.barrier()
        if dist.get_rank() == 0:
            archive.write(join(folder, warmup=warmup), Path(output))
            shutil.rmtree(folder)


def _hook(module: str) -> Any:
    """The hook's module, the same one as under the launcher: there its folder is on the path already."""
    if str(HOOK) not in sys.path:
        sys.path.append(str(HOOK))
    return importlib.import_module(f"tracebed_record.{module}")
