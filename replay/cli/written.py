"""What commands say of the trace that they have written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from traces.program import Trace


def say(trace: Trace, output: Path, *, as_json: bool, note: str = "", more: Mapping[str, object] | None = None) -> None:
    """One line with `note` in it, or JSON with `more` in it."""
    from traces import archive

    if not as_json:
        ranks = f"{len(trace.programs)} of {trace.world_size} ranks, {trace.step_count} steps"
        click.echo(f"{output}: {note}{ranks}, {len(trace.findings)} findings (tracebed check {output})")
        return
    findings = [{"code": f.code, "rank": f.rank, "message": f.message, "severity": f.severity} for f in trace.findings]
    said = {
        "trace": str(output), "hash": archive.trace_hash(output), "world_size": trace.world_size,
        "ranks": sorted(trace.programs), "steps": trace.step_count, "findings": findings, **(more or {}),
    }  # fmt: skip
    click.echo(json.dumps(said))
