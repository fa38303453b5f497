"""A trace as files of another tool. What the tool's collectives can't do is lowered to messages by the default algorithms."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from emulator.errors import MachineError
from replay.messages import graphs, on_world
from replay.plan import lower
from traces.errors import TraceError
from traces.formats import chakra, goal, param, perfetto, smpi, table
from traces.program import Collective, Finding, Trace

Exported = tuple[bytes | Mapping[str, bytes], tuple[Finding, ...]]
"""The file, or the files of a folder by name, and what is not said there of the trace."""


def export(trace: Trace, name: str) -> Exported:
    """`trace` in the format `name`. Raises TraceError for an unknown format and for what can't be lowered or written.

    MachineError where a library that the format takes is not installed.
    """
    if name not in _FORMATS:
        raise TraceError(f"can't write {name!r}", mend=f"known: {', '.join(_FORMATS)}")
    return _FORMATS[name](trace)


def _goal(trace: Trace) -> Exported:
    data = goal.write(trace.world_size, graphs(lower(trace)))
    return data, _lowered(sum(isinstance(op, Collective) for p in trace.programs.values() for op in p.ops))


def _chakra(trace: Trace) -> Exported:
    lower(trace)  # refuses what ranks do not agree on, as for the others
    return chakra.write(trace)


def _smpi(trace: Trace) -> Exported:
    simple, lowered = on_world(trace, lower(trace))
    data, said = smpi.write(simple)
    return data, (*_lowered(lowered), *said)


def _param(trace: Trace) -> Exported:
    lower(trace)
    return param.write(trace)


def _csv(trace: Trace) -> Exported:
    return table.csv(trace), ()


def _parquet(trace: Trace) -> Exported:
    try:
        return table.parquet(trace), ()
    except ImportError as error:
        raise MachineError(
            "Parquet takes pyarrow, which is not here", mend="pip install 'tracebed[parquet]'"
        ) from error


def _lowered(number: int) -> tuple[Finding, ...]:
    text = f"{number} collectives were written as the messages of the default algorithms"
    return (Finding("as-messages", text, "info"),) if number else ()


_FORMATS: dict[str, Callable[[Trace], Exported]] = {
    goal.NAME: _goal,
    chakra.NAME: _chakra,
    smpi.NAME: _smpi,
    param.NAME: _param,
    perfetto.NAME: perfetto.write,
    table.CSV: _csv,
    table.PARQUET: _parquet,
}
