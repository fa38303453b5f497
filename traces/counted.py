"""Findings that count how often something was met, in words that are fixed for each code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from traces.program import Finding, Severity


def counted(counts: Iterable[tuple[str, int]], words: Mapping[str, str | tuple[str, Severity]]) -> tuple[Finding, ...]:
    """A finding for each (code, number) whose number isn't 0, in that order: the number and the code's words behind it.

    Words without a severity are "info". What is an error makes replay wrong.
    """
    found = []
    for code, number in counts:
        said = words[code]
        severity: Severity
        text, severity = (said, "info") if isinstance(said, str) else said
        if number:
            found.append(Finding(code, f"{number} {text}", severity, replayable=severity != "error"))
    return tuple(found)
