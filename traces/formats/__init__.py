"""Foreign formats, one file each: NAME, `sniff(head)` and `read`. Adding one is a file and a line here.

Most hold one rank's recording, from which a program still has to be found; some hold programs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from traces.errors import TraceError
from traces.files import HEAD_BYTES, Opened
from traces.formats import (
    aicb,
    chakra,
    flight_recorder,
    goal,
    horovod,
    inspector,
    kineto,
    nccl_log,
    param,
    pcap,
    pmpi,
    pytorch_et,
    recorded,
    simai,
    smpi,
)
from traces.program import Trace
from traces.recording import Recording


@dataclass(frozen=True, slots=True)
class Format:
    """A format in which each file is a recording of one rank."""

    name: str
    sniff: Callable[[bytes], bool]
    read: Callable[[bytes, str], Recording]


@dataclass(frozen=True, slots=True)
class StreamFormat:
    """As `Format`, for files of hundreds of MB: `read` takes the file in blocks, in order, and keeps none of them."""

    name: str
    sniff: Callable[[bytes], bool]
    read: Callable[[Iterable[bytes], str], Recording]


@dataclass(frozen=True, slots=True)
class ProgramFormat:
    """A format that holds programs; `read` takes all files of the job and leaves the sources out."""

    name: str
    sniff: Callable[[bytes], bool]
    read: Callable[[Sequence[Opened]], Trace]


_ALL: tuple[Format | StreamFormat | ProgramFormat, ...] = (
    StreamFormat(kineto.NAME, kineto.sniff, kineto.read),
    Format(recorded.NAME, recorded.sniff, recorded.read),
    Format(pytorch_et.NAME, pytorch_et.sniff, pytorch_et.read),
    Format(flight_recorder.NAME, flight_recorder.sniff, flight_recorder.read),
    ProgramFormat(goal.NAME, goal.sniff, goal.read),
    ProgramFormat(horovod.NAME, horovod.sniff, horovod.read),
    ProgramFormat(chakra.NAME, chakra.sniff, chakra.read),
    ProgramFormat(pcap.NAME, pcap.sniff, pcap.read),
    ProgramFormat(param.NAME, param.sniff, param.read),
    ProgramFormat(smpi.NAME, smpi.sniff, smpi.read),
    ProgramFormat(nccl_log.NAME, nccl_log.sniff, nccl_log.read),
    ProgramFormat(inspector.NAME, inspector.sniff, inspector.read),
    ProgramFormat(pmpi.NAME, pmpi.sniff, pmpi.read),
    ProgramFormat(aicb.NAME, aicb.sniff, aicb.read),
    ProgramFormat(simai.NAME, simai.sniff, simai.read),
)
FORMATS = {known.name: known for known in _ALL}


def choose(head: bytes, name: str | None = None) -> Format | StreamFormat | ProgramFormat | None:
    """The format called `name`, or else the one that the content's `head` shows; None where it shows none.

    Raises TraceError.
    """
    if name is not None and name not in FORMATS:
        raise TraceError(f"unknown format {name!r}", mend=f"known: {', '.join(FORMATS)}")
    if name is not None:
        return FORMATS[name]
    head = head[:HEAD_BYTES]
    return next((known for known in FORMATS.values() if known.sniff(head)), None)
