"""Graphs of operations become programs in which nobody waits for what can't come."""

from __future__ import annotations

import pytest

from tests.traces.symbolic import stuck
from traces.errors import TraceError
from traces.graph import Graph, Node, programs
from traces.program import Compute, Op, Recv, Send, Wait


def line(graph: Graph) -> tuple[Op, ...]:
    made, _ = programs({0: graph})
    return made[0].ops


def test_the_order_of_the_graph_is_kept_where_it_can_run() -> None:
    graph = (Node(Compute(5)), Node(Send(1, 10), (0,)), Node(Compute(7), (0,)), Node(Compute(9), (1, 2)))

    assert line(graph) == (Compute(5), Send(1, 10), Compute(7), Wait(1), Compute(9))


def test_what_nothing_waits_for_is_waited_for_at_the_end() -> None:
    assert line((Node(Send(1, 10)), Node(Recv(1, 20)), Node(Compute(3)))) == (
        Send(1, 10), Recv(1, 20), Compute(3), Wait(0), Wait(1),
    )  # fmt: skip


def test_an_operation_that_comes_later_in_the_file_is_started_first_where_others_depend_on_it() -> None:
    """In the file's order rank 0 would wait for rank 1's message before it sent what rank 1 sends it for."""
    graphs = {
        0: (Node(Recv(1, 8)), Node(Send(2, 8), (0,)), Node(Recv(2, 8)), Node(Send(1, 8, tag=1), (2,))),
        1: (Node(Recv(0, 8, tag=1)), Node(Send(0, 8), (0,))),
        2: (Node(Send(0, 8)), Node(Recv(0, 8))),
    }

    made, findings = programs(graphs)

    assert stuck(made) == {}
    assert made[0].ops.index(Send(1, 8, tag=1)) < made[0].ops.index(Send(2, 8))
    assert findings == ()


def test_what_a_line_holds_back_is_counted() -> None:
    """The second send needs no calc, but what is computed first keeps the rank."""
    _, findings = programs({0: (Node(Compute(5)), Node(Compute(7)), Node(Compute(9), (0, 1)))})

    assert [(f.code, f.rank, f.message.split()[0]) for f in findings] == [("serialised", 0, "1")]


def test_started_is_not_ended() -> None:
    assert line((Node(Send(1, 10)), Node(Compute(5), beside=(0,)))) == (Send(1, 10), Compute(5), Wait(0))


def test_messages_that_both_sides_send_first_are_short_ones() -> None:
    swap = {rank: (Node(Send(1 - rank, 8)), Node(Recv(1 - rank, 8), (0,))) for rank in (0, 1)}

    made, _ = programs(swap)

    assert made[0].ops == (Send(1, 8), Wait(0), Recv(1, 8), Wait(2))


def test_a_circle_is_an_error() -> None:
    with pytest.raises(TraceError, match="rank 3: operations follow each other in a circle"):
        programs({3: (Node(Compute(1), (1,)), Node(Compute(2), (0,)))})
