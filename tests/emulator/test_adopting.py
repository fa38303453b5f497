"""Which container is which host of a network."""

from __future__ import annotations

import pytest

from emulator.adopting import Running, match
from emulator.errors import NetworkError


def container(name: str, service: str = "", number: int = 1) -> Running:
    return Running(name, 1, service, number, {})


WORKERS = [container("lab_worker_1", "worker"), container("lab_worker_2", "worker", 2)]
SINGLE = [container("lab_ps_1", "ps"), container("lab_db_1", "db")]


def names(found: dict[str, Running]) -> dict[str, str]:
    return {host: each.name for host, each in found.items()}


def test_a_host_is_the_container_of_the_service_that_is_called_like_it_and_others_are_left_alone() -> None:
    found = match(["ps", "worker-2", "worker_1"], [*WORKERS, *SINGLE], {})
    assert names(found) == {"ps": "lab_ps_1", "worker-2": "lab_worker_2", "worker_1": "lab_worker_1"}


def test_a_host_is_the_container_that_is_called_like_it() -> None:
    assert names(match(["b", "a"], [container("a"), container("b")], {})) == {"b": "b", "a": "a"}


def test_where_no_name_fits_they_are_matched_in_order() -> None:
    assert names(match(["host0", "host1"], WORKERS, {})) == {"host0": "lab_worker_1", "host1": "lab_worker_2"}


def test_chosen_pairs_hold() -> None:
    found = match(["a", "b"], [container("x"), container("y")], {"x": "b", "y": "a"})
    assert names(found) == {"b": "x", "a": "y"}


@pytest.mark.parametrize(
    ("hosts", "running", "chosen", "why"),
    [
        (["host0", "host1", "host2"], WORKERS, {}, "2 containers can't be 3 hosts"),
        (["ps", "cache"], SINGLE, {}, "no container is called like cache"),
        (["worker"], WORKERS, {}, "2 containers can't be 1 hosts"),  # which of the two?
        (["a", "b"], WORKERS, {"lab_worker_1": "a"}, "expected each container with one host"),
        (["a", "b"], WORKERS, {"lab_worker_1": "a", "lab_worker_2": "a"}, "expected each container with one host"),
        (["a", "b"], WORKERS, {"lab_worker_1": "a", "lab_worker_2": "c"}, "expected each container with one host"),
    ],
)
def test_what_cannot_be_matched_lists_both_sides(
    hosts: list[str], running: list[Running], chosen: dict[str, str], why: str
) -> None:
    with pytest.raises(NetworkError) as raised:
        match(hosts, running, chosen)
    assert why in str(raised.value)
    for name in (*hosts, *(each.name for each in running)):
        assert name in str(raised.value)
