"""Events as a network file says them, each a kind and its settings, turned into courses.

    events:
      - degrade: {link: host2, at: 1 s, for: 500 ms, rate: 1 gbit}   # or delay, or loss; `way: up` for one direction
      - down: {link: host1, at: 2 s, for: 20 ms}                     # without `for`: to the end
      - flap: {link: host1, at: 3 s, times: 5, down: 10 ms, up: 40 ms}
      - partition: {nodes: [host0, host1], at: 4 s, for: 1 s}        # every link with one end among these
      - loss_burst: {link: host1, at: 5 s, for: 1 ms, loss: 30%}
      - straggler: {link: host3, slowdown: 4}                        # a fourth of the link's rate
      - churn: {at: 0 s, for: 10 s, mean_up: 1 s, mean_down: 20 ms}  # ups and downs at random, from the seed
      - rate_trace: {link: host1, way: up, file: rate.csv}
      - delay_trace: {link: host1, file: delay.csv}
      - mahimahi: {link: host1, way: down, file: cellular.down}
      - course: {link: host2, way: up, steps: [{at: 1 s, rate: 1 gbit}, {at: 2 s}]}   # what all of these come to

`link` is a name or a list of names; without it, every link. Where events overlap, the later one in the list wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random

from emulator.draws import exponential
from emulator.event_traces import read_csv, read_mahimahi
from emulator.events import WAYS, Course, Effect, Step, Way, direction_of
from emulator.impairments import ALWAYS, Event
from emulator.links import Direction, Link, property_to_plain, read_loss, read_rate
from emulator.marked import Node
from emulator.settings import Settings, length_of, required, start_of
from emulator.units import Duration, Rate

MAX_STEPS = 100_000
"""Of all courses together: a bound on what one file can ask for."""
MIN_RATE = Rate(2400)
"""A card's bucket of one super-packet has to fill within what tbf can say, 2**32 ticks of 64 ns."""
DOWN = Effect(loss=Event(ALWAYS))
_UNCHANGED = Effect()
_EFFECT = ("rate", "delay", "loss")
_WHERE = ("link", "way")
_WHEN = ("at", "for")


@dataclass(frozen=True, slots=True)
class _Context:
    links: Mapping[str, Link]
    seed: int


def read_events(node: Node, links: Sequence[Link], seed: int) -> tuple[Course, ...]:
    """The courses of a file's list of events. Raises NetworkError with the place of what can't be used."""
    context = _Context({link.name: link for link in links}, seed)
    courses: list[Course] = []
    steps = 0
    for entry in node.items():
        kinds = entry.mapping(_KINDS)
        if len(kinds) != 1:
            raise entry.error(f"expected one kind of event: {', '.join(_KINDS)}")
        ((kind, settings),) = kinds.items()
        for course in _KINDS[kind](settings, context):
            steps += len(course.steps)
            if steps > MAX_STEPS:
                raise settings.error(f"the events have more than {MAX_STEPS} steps, counted for each direction")
            courses.append(course)
    return tuple(courses)


def events_to_plain(courses: Sequence[Course]) -> list[object]:
    """The events as a file says them, every value in full: `read_events` of it gives them back."""
    return [{"course": _course_to_plain(course)} for course in courses]


def _course_to_plain(course: Course) -> dict[str, object]:
    steps = [
        {"at": str(step.at)}
        | {
            name: property_to_plain(name, value)
            for name in _EFFECT
            if (value := getattr(step.effect, name)) is not None
        }
        for step in course.steps
    ]
    period = {"period": str(course.period)} if course.period else {}
    return {"link": course.link, "way": course.way, "steps": steps, **period}


def _degrade(node: Node, context: _Context) -> Iterator[Course]:
    settings = node.mapping((*_WHERE, *_WHEN, *_EFFECT))
    effect = _effect(settings)
    if effect == _UNCHANGED:
        raise node.error(f"expected one of {', '.join(_EFFECT)}")
    yield from _spread(node, _where(settings, context), _during(settings, effect))


def _down(node: Node, context: _Context) -> Iterator[Course]:
    settings = node.mapping((*_WHERE, *_WHEN))
    yield from _spread(node, _where(settings, context), _during(settings, DOWN))


def _loss_burst(node: Node, context: _Context) -> Iterator[Course]:
    settings = node.mapping((*_WHERE, *_WHEN, "loss"))
    required(node, settings, "for")
    effect = Effect(loss=read_loss(required(node, settings, "loss")))
    yield from _spread(node, _where(settings, context), _during(settings, effect))


def _flap(node: Node, context: _Context) -> Iterator[Course]:
    settings = node.mapping((*_WHERE, "at", "times", "down", "up"))
    down, up = (length_of(required(node, settings, name)) for name in ("down", "up"))
    times = required(node, settings, "times").integer(1, MAX_STEPS // 2)
    starts = [start_of(settings) + turn * (down + up) for turn in range(times)]
    steps = [
        Step(Duration(at), effect) for start in starts for at, effect in ((start, DOWN), (start + down, _UNCHANGED))
    ]
    yield from _spread(node, _where(settings, context), steps)


def _partition(node: Node, context: _Context) -> Iterator[Course]:
    settings = node.mapping(("nodes", *_WHEN))
    nodes = required(node, settings, "nodes")
    known = {end for link in context.links.values() for end in (link.a, link.b)}
    side = {child.choice(sorted(known)) for child in nodes.items()}
    cut = [link for link in context.links.values() if len({link.a, link.b} & side) == 1]
    if not cut:
        raise nodes.error("no link joins these nodes to others")
    yield from _spread(node, [(link, way) for link in cut for way in WAYS], _during(settings, DOWN))


def _straggler(node: Node, context: _Context) -> Iterator[Course]:
    settings = node.mapping((*_WHERE, *_WHEN, "slowdown"))
    slowdown = required(node, settings, "slowdown").integer(2, 10**6)
    for link, way in _where(settings, context):
        rate = direction_of(link, way).rate
        if rate is None:
            raise node.error(_no_rate(link))
        yield from _spread(node, [(link, way)], _during(settings, Effect(rate=Rate(rate // 8 // slowdown * 8))))


def _churn(node: Node, context: _Context) -> Iterator[Course]:
    """Times up and down are exponentially distributed; each link has draws of its own."""
    settings = node.mapping(("link", *_WHEN, "mean_up", "mean_down"))
    means = [length_of(required(node, settings, name)) for name in ("mean_up", "mean_down")]
    end = start_of(settings) + length_of(required(node, settings, "for"))
    for link in dict.fromkeys(link for link, _ in _where(settings, context)):
        draws, at = Random(f"{context.seed}/{link.name}/{node.key}"), int(start_of(settings))
        steps: list[Step] = []
        while (at := at + exponential(draws, means[len(steps) % 2])) < end:
            steps.append(Step(Duration(at), _UNCHANGED if len(steps) % 2 else DOWN))
            if len(steps) > MAX_STEPS:
                raise node.error(f"more than {MAX_STEPS} ups and downs")
        if len(steps) % 2:
            steps.append(Step(Duration(end), _UNCHANGED))
        if steps:
            yield from _spread(node, [(link, way) for way in WAYS], steps)


def _rate_trace(node: Node, context: _Context) -> Iterator[Course]:
    settings = node.mapping((*_WHERE, "file"))
    rows = read_csv(required(node, settings, "file"), Rate, 8)
    yield from _spread(node, _where(settings, context), [Step(at, Effect(rate=rate)) for at, rate in rows])


def _delay_trace(node: Node, context: _Context) -> Iterator[Course]:
    settings = node.mapping((*_WHERE, "file"))
    rows = read_csv(required(node, settings, "file"), Duration, 1)
    yield from _spread(node, _where(settings, context), [Step(at, Effect(delay=delay)) for at, delay in rows])


def _mahimahi(node: Node, context: _Context) -> Iterator[Course]:
    settings = node.mapping((*_WHERE, "file"))
    file = required(node, settings, "file")
    for link, way in _where(settings, context):
        rates, period = read_mahimahi(file, direction_of(link, way).overhead)
        yield from _spread(node, [(link, way)], [Step(at, Effect(rate=rate)) for at, rate in rates], period)


def _course(node: Node, context: _Context) -> Iterator[Course]:
    settings = node.mapping((*_WHERE, "steps", "period"))
    steps = []
    for child in required(node, settings, "steps").items():
        step = child.mapping(("at", *_EFFECT))
        steps.append(Step(required(child, step, "at").parse(Duration.parse), _effect(step)))
    period = length_of(settings["period"]) if "period" in settings else None
    if not steps:
        raise node.error("expected at least one step")
    if any(after.at <= before.at for before, after in pairwise(steps)) or (period and steps[-1].at >= period):
        raise node.error("the times of the steps have to rise, and to end before the period does")
    yield from _spread(node, _where(settings, context), steps, period)


_KINDS: Mapping[str, Callable[[Node, _Context], Iterator[Course]]] = {
    "degrade": _degrade,
    "down": _down,
    "flap": _flap,
    "partition": _partition,
    "loss_burst": _loss_burst,
    "straggler": _straggler,
    "churn": _churn,
    "rate_trace": _rate_trace,
    "delay_trace": _delay_trace,
    "mahimahi": _mahimahi,
    "course": _course,
}


def _where(settings: Settings, context: _Context) -> list[tuple[Link, Way]]:
    """The directions that `link` and `way` name."""
    names = list(context.links)
    if "link" in settings:
        node = settings["link"]
        names = [child.choice(names) for child in (node.items() if isinstance(node.value, tuple) else (node,))]
    ways = (settings["way"].choice(WAYS),) if "way" in settings else WAYS
    return [(context.links[name], way) for name in names for way in ways]


def _during(settings: Settings, effect: Effect) -> list[Step]:
    """`effect` from `at`, for as long as `for` says."""
    start = start_of(settings)
    steps = [Step(start, effect)]
    if "for" in settings:
        steps.append(Step(Duration(start + length_of(settings["for"])), _UNCHANGED))
    return steps


def _effect(settings: Settings) -> Effect:
    return Effect(
        rate=read_rate(settings["rate"]) if "rate" in settings else None,
        delay=settings["delay"].parse(Duration.parse) if "delay" in settings else None,
        loss=read_loss(settings.get("loss")),
    )


def _spread(
    node: Node, directions: Sequence[tuple[Link, Way]], steps: Sequence[Step], period: Duration | None = None
) -> Iterator[Course]:
    """The same course for each direction, if each can be what it says."""
    for link, way in directions:
        for step in steps:
            if problem := _problem(link, direction_of(link, way), step.effect):
                raise node.error(f"at {step.at}: {problem}")
        yield Course(link.name, way, tuple(steps), period)


def _problem(link: Link, own: Direction, effect: Effect) -> str | None:
    """Why the link can't be so, or None."""
    if effect.rate is not None and own.rate is None:
        return _no_rate(link)
    if effect.rate is not None and effect.rate < MIN_RATE:
        return f"rate {effect.rate} is less than {MIN_RATE}, the least that an event can set"
    if effect.delay is not None and effect.delay < own.jitter:
        return f"delay {effect.delay} is less than the jitter {own.jitter} of link '{link.name}'"
    if effect.delay == 0 and own.reorder:
        return f"link '{link.name}' reorders packets by skipping the delay, and there would be none"
    return None


def _no_rate(link: Link) -> str:
    return f"link '{link.name}' is unlimited: it has no rate to change"
