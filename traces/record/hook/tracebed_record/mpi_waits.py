"""mpi4py's ways of waiting for requests: where their arguments are, and which requests a result says are over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Wait(NamedTuple):
    """One method of Request: of one request or of many, of which `needed` ("one", "all", "any", "some") must be over."""

    needed: str
    polls: bool  # it does not stop for them
    objects: bool  # the result has what was received, too

    def arguments(
        self, mpi: Any, owner: Any, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[Sequence[Any], Any, Sequence[Any], dict[str, Any]]:
        """(requests, their status or statuses, arguments that ask for those, keyword arguments)."""
        names = ["status"] if self.needed == "one" else ["requests", "status" if self.needed == "any" else "statuses"]
        given = {**dict(zip(names, args)), **kwargs}
        if self.needed != "one":
            given["requests"] = list(given["requests"])
        requests = [owner] if self.needed == "one" else given["requests"]
        if given.get(names[-1]) is None:
            given[names[-1]] = mpi.Status() if names[-1] == "status" else [mpi.Status() for _ in requests]
        return requests, given[names[-1]], [given[name] for name in names], {}

    def done(self, result: Any, requests: Sequence[Any], statuses: Any) -> list[tuple[int, Any]]:
        """(place, status) of each request that is over."""
        if self.needed in ("one", "all"):
            flag = (result[0] if self.objects else result) if self.polls else True
            each = [statuses] if self.needed == "one" else statuses
            return list(zip(range(len(requests)), each)) if flag else []
        if self.needed == "any":
            index, flag = (result[0], result[1]) if self.polls else (result[0] if self.objects else result, True)
            return [(index, statuses)] if flag and 0 <= index < len(requests) else []
        indices = result[0] if self.objects else result
        return list(zip(indices or (), statuses))


WAITS = {
    f"{verb}{'' if needed == 'one' else needed}": Wait(needed, verb.lower() == "test", verb.islower())
    for verb in ("Wait", "Test", "wait", "test")
    for needed in ("one", "all", "any", "some")
}
