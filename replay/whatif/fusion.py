"""Which gradients travel together: Horovod's fusion, DDP's buckets, MG-WFBP's merging, and each tensor alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from replay.whatif.edit import Edit, edited, edits_of
from replay.whatif.gradients import Part, Piece, Round, pieces, regroup, rounds
from replay.whatif.options import VALUE, Options
from replay.whatif.registry import Scenario, what_if
from replay.whatif.tensors import model_of, tensors
from traces.errors import TraceError

_TENSORS = (
    "tensors are known where a model's description (model=, or what the trace was made from) fits the recorded sizes"
)
_OFF = "off"


@dataclass(frozen=True, slots=True)
class Ready:
    """What fusing goes by: bytes, element type, and the compute of its step in ns after which the last rank has it."""

    nbytes: int
    dtype: str
    ns: int


@what_if(
    "fusion=SIZE|off,cycle=TIME,model=NAME,along=GROUP",
    does="fuses gradients as Horovod does: what is ready when a cycle (5ms) begins travels together, up to SIZE (64MiB); off: "
    "each tensor alone",
    assumes=f"negotiating and copying cost nothing; {_TENSORS}",
    source="Horovod, docs/tensor-fusion.rst; defaults before 0.21: 64 MB, 5 ms",
)
def fusion(scenario: Scenario, options: Options) -> tuple[Scenario, str]:
    """Horovod's tensor fusion, or none."""
    if options.said[VALUE] == _OFF:
        changed, counts = _regrouped(scenario, options, _alone, "tensor", must_know=True)
        return changed, f"fusion off: {counts}, each started when it is ready"
    threshold, cycle = options.size(VALUE), options.duration("cycle", "5ms")
    changed, counts = _regrouped(scenario, options, lambda ready: horovod(ready, threshold, cycle), "fused", cycle)
    said = (
        f"fusion: {counts} of up to {threshold}, started every {cycle} of a step's compute; negotiating costs nothing"
    )
    return changed, said


@what_if(
    "buckets=SIZE,first=SIZE,model=NAME,along=GROUP",
    does="cuts DDP's buckets anew, as with bucket_cap_mb: each is closed by the tensor with which it reaches SIZE (25MiB), the "
    "first 1MiB",
    assumes=f"copying costs nothing; {_TENSORS}",
    source="torch, csrc/distributed/c10d/reducer.cpp, compute_bucket_assignment_by_size",
)
def buckets(scenario: Scenario, options: Options) -> tuple[Scenario, str]:
    """DDP's buckets."""
    cap, first = options.size(VALUE), options.size("first", "1MiB")
    changed, counts = _regrouped(scenario, options, lambda ready: ddp(ready, first, cap), "bucket")
    return changed, f"buckets: {counts}, closed at {first} and then at {cap} each"


@what_if(
    "merge=mg-wfbp,alpha=TIME,rate=RATE,model=NAME,along=GROUP",
    does="merges a gradient with the next one where waiting for that takes less than the start-up that is saved",
    assumes=f"an all-reduce of S bytes takes alpha + S / rate, as you say; {_TENSORS}",
    source="MG-WFBP: Shi, Chu, Li, INFOCOM 2019, arXiv 1811.11141, algorithm 1",
)
def merge(scenario: Scenario, options: Options) -> tuple[Scenario, str]:
    """MG-WFBP's merged gradients."""
    options.choice(VALUE, ("mg-wfbp",))
    alpha, rate = options.duration("alpha"), options.rate("rate")
    if not rate:
        raise options.error("nothing is ever sent at rate 0", "write rate=10gbit, say")
    changed, counts = _regrouped(scenario, options, lambda ready: mg_wfbp(ready, alpha, rate), "merged")
    return changed, f"merge: {counts}, where an all-reduce of S bytes takes {alpha} + S / {rate}"


_Fuse = Callable[[Sequence[Ready]], list[list[int]]]
"""Gives the numbers of what travels together, in order."""


def _alone(ready: Sequence[Ready]) -> list[list[int]]:
    return [[number] for number in range(len(ready))]


def horovod(ready: Sequence[Ready], threshold: int, cycle_ns: int) -> list[list[int]]:
    """At each multiple of the cycle, what is ready, in buffers of up to `threshold` bytes; more than that goes alone."""
    made: list[list[int]] = []
    filled, last = 0, -1
    for number, one in enumerate(ready):
        tick = -(-one.ns // cycle_ns) if cycle_ns else one.ns
        if tick == last and filled + one.nbytes <= threshold and _alike(ready, made[-1], number):
            made[-1].append(number)
            filled += one.nbytes
        else:
            made.append([number])
            filled, last = one.nbytes, tick
    return made


def ddp(ready: Sequence[Ready], first: int, cap: int) -> list[list[int]]:
    """Buckets that are closed by what makes them reach their limit."""
    made: list[list[int]] = []
    limit, filled, is_open = first, 0, False
    for number, one in enumerate(ready):
        if is_open and _alike(ready, made[-1], number):
            made[-1].append(number)
        else:
            made.append([number])
            filled = 0
        filled += one.nbytes
        is_open = filled < limit
        if not is_open:
            limit = cap
    return made


def mg_wfbp(ready: Sequence[Ready], alpha_ns: int, rate: int) -> list[list[int]]:
    """A gradient joins those before it if it is ready less than alpha after these could have been sent."""
    made: list[list[int]] = []
    free = begins = nbytes = 0
    for number, one in enumerate(ready):
        if made and one.ns < begins + alpha_ns and _alike(ready, made[-1], number):
            made[-1].append(number)
            nbytes += one.nbytes
        else:
            if made:
                free = begins + alpha_ns + nbytes * 8 * 10**9 // rate
            made.append([number])
            nbytes = one.nbytes
        begins = max(free, one.ns)
    return made


def _alike(ready: Sequence[Ready], others: Sequence[int], number: int) -> bool:
    return ready[others[0]].dtype == ready[number].dtype


def _regrouped(
    scenario: Scenario, options: Options, fuse: _Fuse, name: str, cycle_ns: int = 0, *, must_know: bool = False
) -> tuple[Scenario, str]:
    """The scenario with each round's gradients fused and started at multiples of `cycle_ns`, and how many became how many."""
    trace = scenario.trace
    edits = edits_of(trace)
    model = model_of(trace, options)
    all_rounds = rounds(trace, options)
    before, after = set[int](), set[int]()
    for one in all_rounds:
        of = pieces(one, edits)
        if model is not None:
            try:
                of = tensors(one, edits, model)
            except TraceError as error:
                if must_know or "model" in options:
                    raise options.wrong_model(error) from None
                model = None
        elif must_know:
            text = "nobody says which tensors the recorded operations hold"
            raise options.no_model(text)
        parts = [
            Part(numbers, of[numbers[0]].op.name if name == "tensor" else f"{name} {place}", cycle_ns)
            for place, numbers in enumerate(fuse(list(_readiness(one, edits, of))))
        ]
        before.add(len(of))
        after.add(len(parts))
        regroup(one, edits, of, parts, options)
    what = "tensors" if model is not None else "recorded operations, taken as whole,"
    return scenario.on(edited(trace, edits)), f"{_span(before)} {what} a step become {_span(after)} operations"


def _span(counts: set[int]) -> str:
    return str(min(counts)) if len(counts) == 1 else f"{min(counts)} to {max(counts)}"


def _readiness(one: Round, edits: dict[int, Edit], of: Sequence[Piece]) -> Iterator[Ready]:
    for piece in of:
        times = [
            edits[rank].done_ns[place.before] + place.ns - edits[rank].done_ns[one.begin[rank]]
            for rank, place in piece.ready.items()
        ]
        yield Ready(piece.nbytes, piece.op.dtype, max(times))
