"""Whether gradients travel under the backward pass, and in which steps they travel at all."""

from __future__ import annotations

from fractions import Fraction

from replay.whatif.edit import Edit, Place, edited, edits_of
from replay.whatif.gradients import Round, rounds
from replay.whatif.options import VALUE, Options
from replay.whatif.registry import Scenario, what_if
from replay.whatif.tensors import BACKWARD, contents, model_of
from traces.errors import TraceError
from traces.model import Model


@what_if(
    "overlap=off|on,model=NAME,along=GROUP",
    does="off: all gradients are started when the backward pass has ended, in order; on: each when its layers are done",
    assumes="on: the backward pass is two thirds of the compute before, shared out by the layers' floating-point operations",
    source="PaLM, arXiv 2204.02311, appendix B",
)
def overlap(scenario: Scenario, options: Options) -> tuple[Scenario, str]:
    """No overlap, or as much as a job has that reduces while it computes."""
    is_on = options.choice(VALUE, ("off", "on")) == "on"
    trace = scenario.trace
    edits = edits_of(trace)
    model = model_of(trace, options)
    if is_on and model is None:
        text = "the trace does not say when each gradient is there"
        raise options.no_model(text)
    for one in rounds(trace, options):
        if is_on:
            assert model is not None
            _spread(one, edits, model, options)
        else:
            gather(one, edits)
    changed = scenario.on(edited(trace, edits))
    if is_on:
        return (
            changed,
            "overlap on: gradients start while the backward pass, 2/3 of the compute before, goes on, by flops",
        )
    return changed, "overlap off: all gradients of a step start when its backward pass has ended, in order"


def gather(one: Round, edits: dict[int, Edit]) -> None:
    """Starts a round's gradients behind its backward pass: where the first is waited for, and the last has been started."""
    for rank, started in one.started.items():
        edit = edits[rank]
        waits = [each.wait for each in started if each.wait >= 0]
        place = max(min([*waits, one.end[rank]]), started[-1].start)
        keys = []
        for number, each in enumerate(started):
            edit.remove(each.start)
            keys.append(edit.start(Place(place), one.ops[number]))
        for each, key in zip(started, keys, strict=True):
            if each.wait >= 0:
                edit.remove(each.wait)
                edit.wait(Place(max(each.wait, place)), key)


def _spread(one: Round, edits: dict[int, Edit], model: Model, options: Options) -> None:
    """Starts each of a round's gradients when the backward pass has done its layers."""
    try:
        tensors = contents(one.ops, model)
    except TraceError as error:
        raise options.wrong_model(error) from None
    costs = [layer.flops for layer in model.layers]
    lowest = len(costs)
    done = []
    for parts in tensors:
        lowest = min([lowest, *(part.layer for part in parts)])
        done.append(1 - BACKWARD + BACKWARD * Fraction(sum(costs[lowest:]), max(1, sum(costs))))
    for rank, started in one.started.items():
        edit = edits[rank]
        begin, first, last = (edit.done_ns[at] for at in (one.begin[rank], started[0].start, started[-1].start))
        if first != last:
            raise options.error("gradients are started while ranks compute already", "leave it out")
        for number, each in enumerate(started):
            at = edit.place(begin + int((last - begin) * done[number]), one.begin[rank], each.start)
            edit.remove(each.start)
            key = edit.start(at, one.ops[number])
            if each.wait >= 0:
                edit.remove(each.wait)
                edit.wait(Place(each.wait), key)


@what_if(
    "local-sgd=H,after=STEPS,along=GROUP",
    does="replicas meet in every Hth step only, and reduce all behind its compute; the first after=STEPS steps reduce as recorded",
    assumes="what is averaged (the weights) is as large as the gradients; averaging costs no compute",
    source="Stich, ICLR 2019, arXiv 1805.09767; after: post-local SGD, Lin et al., ICLR 2020, arXiv 1808.07217",
)
def local_sgd(scenario: Scenario, options: Options) -> tuple[Scenario, str]:
    """Fewer synchronisations."""
    trace = scenario.trace
    every, after = options.whole(VALUE, 1, 10**6), options.whole("after", 0, 10**6, 0)
    if trace.step_count < after + every:
        text = f"of {trace.step_count} steps none is step {after + every}, the first to meet"
        raise options.error(text, f"`tracebed scale --repeat` makes more; best {after} and a multiple of {every}")
    edits = edits_of(trace)
    met = set()
    for one in rounds(trace, options):
        since = one.step - after + 1
        if since <= 0 or since % every == 0:
            met.add(one.step)
            if since > 0:
                gather(one, edits)
            continue
        for rank, started in one.started.items():
            for each in started:
                edits[rank].remove(each.start)
                if each.wait >= 0:
                    edits[rank].remove(each.wait)
    if not met:
        raise options.error("no step is left in which replicas meet", "leave out what thinned them out before")
    changed = scenario.on(edited(trace, edits))
    behind = f" behind the first {after}" if after else ""
    return (
        changed,
        f"local SGD: replicas meet in {len(met)} of {trace.step_count} steps, every {every}{behind}, with all weights",
    )
