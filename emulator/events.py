"""What happens to links while a job runs: courses of one direction over time, and the timeline of changes they make.

An event only ever changes a direction's rate, delay or loss, live and in place: what is queued stays queued. A link that
is down loses 100 % of what is sent on it, rather than its devices being down: so no queue is emptied and no route
goes, and what waits is sent and lost, as on a fibre that was cut. Times count from Go, the job's start.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import count, groupby
from typing import Literal

from emulator.impairments import Loss
from emulator.links import Direction, Link
from emulator.units import Duration, Rate

Way = Literal["up", "down"]
WAYS: tuple[Way, ...] = ("up", "down")


@dataclass(frozen=True, slots=True)
class Effect:
    """What a direction is while an event lasts; None leaves a property as it is."""

    rate: Rate | None = None
    delay: Duration | None = None
    loss: Loss | None = None

    def on(self, direction: Direction) -> Direction:
        """The direction under this effect."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(direction, **{name: value for name, value in values.items() if value is not None})


@dataclass(frozen=True, slots=True)
class Step:
    """From `at` after Go until the next step of its course."""

    at: Duration
    effect: Effect


@dataclass(frozen=True, slots=True)
class Course:
    """One direction of a link over time. The times of `steps` rise; before the first, nothing is changed.

    `period` None: the last step stays. Otherwise all begins again with each period, which is longer than the steps.
    """

    link: str
    way: Way
    steps: tuple[Step, ...]
    period: Duration | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """From `at` after Go on, the direction `way` of `link` is `direction`."""

    at: Duration
    link: str
    way: Way
    direction: Direction


def direction_of(link: Link, way: Way) -> Direction:
    """The link's own direction, as no event has changed it."""
    return link.a_to_b if way == "up" else link.b_to_a


def timeline(links: Sequence[Link], courses: Sequence[Course]) -> Iterator[Change]:
    """Every change in order of time, made as it is asked for: it has no end where a course has a period.

    Where courses of one direction overlap, each property is that of the last listed course which sets it.
    """
    own = {(link.name, way): direction_of(link, way) for link in links for way in WAYS}
    now = dict(own)
    effects: dict[tuple[str, Way], dict[int, Effect]] = {key: {} for key in own}
    streams = [_played(index, course) for index, course in enumerate(courses)]
    for at, together in groupby(heapq.merge(*streams), key=lambda step: step[0]):
        touched: dict[tuple[str, Way], None] = {}
        for _, index, effect in together:
            key = courses[index].link, courses[index].way
            effects[key][index] = effect
            touched[key] = None
        for key in touched:
            direction = own[key]
            for _, effect in sorted(effects[key].items(), key=lambda item: item[0]):
                direction = effect.on(direction)
            if direction != now[key]:
                now[key] = direction
                yield Change(Duration(at), *key, direction)


def _played(index: int, course: Course) -> Iterator[tuple[int, int, Effect]]:
    for turn in count() if course.period else (0,):
        for step in course.steps:
            yield step.at + turn * (course.period or 0), index, step.effect


def possible(link: Link, way: Way, courses: Sequence[Course]) -> tuple[Direction, ...]:
    """The direction as it is without events and under each effect alone: whatever can be there at some time is there
    in one of them."""
    own = direction_of(link, way)
    effects = [
        step.effect for course in courses if (course.link, course.way) == (link.name, way) for step in course.steps
    ]
    return tuple(dict.fromkeys((own, *(effect.on(own) for effect in effects))))
